package signer

import (
	"crypto/x509"
	"encoding/asn1"
	"slices"

	"github.com/cloudflare/cfssl/csr"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"

	cfssl "github.com/cloudflare/cfssl/signer"
)

// subjectOverride returns the subject that cfssl must use instead of the request's; nil if it may use the request's.
// cfssl copies unknown attributes, for example an email address from openssl. kube-controller-manager drops them.
// cfssl cannot set a street or postal code, so a subject with one of these and an unknown attribute is refused.
func subjectOverride(request *x509.CertificateRequest) (*cfssl.Subject, error) {
	var unknown asn1.ObjectIdentifier
	for _, attribute := range request.Subject.Names {
		if !pkcs10.Kept(attribute.Type) {
			unknown = attribute.Type
		}
	}
	if unknown == nil {
		return nil, nil
	}
	from := request.Subject
	if len(from.StreetAddress) > 0 || len(from.PostalCode) > 0 {
		return nil, approval.Refuse("the subject has attribute %s together with a street or postal code: leave out one of them", unknown)
	}
	to := &cfssl.Subject{CN: from.CommonName, SerialNumber: from.SerialNumber}
	for _, v := range from.Country {
		to.Names = append(to.Names, csr.Name{C: v})
	}
	for _, v := range from.Province {
		to.Names = append(to.Names, csr.Name{ST: v})
	}
	for _, v := range from.Locality {
		to.Names = append(to.Names, csr.Name{L: v})
	}
	for _, v := range from.Organization {
		to.Names = append(to.Names, csr.Name{O: v})
	}
	for _, v := range from.OrganizationalUnit {
		to.Names = append(to.Names, csr.Name{OU: v})
	}
	return to, nil
}

// cfsslUsages returns the usages by cfssl's names, the extended ones sorted and without duplicates. cfssl keeps the
// order and the duplicates that it is given.
func cfsslUsages(usages []certificates.KeyUsage) []string {
	number := func(u certificates.KeyUsage) int { // number of an extended usage; -1 for others
		if _, extended, _ := approval.X509Usages([]certificates.KeyUsage{u}); len(extended) > 0 { // no error: all usages are known here
			return int(extended[0])
		}
		return -1
	}
	var bits, extended []certificates.KeyUsage
	for _, u := range usages {
		if number(u) < 0 {
			bits = append(bits, u)
		} else if !slices.ContainsFunc(extended, func(e certificates.KeyUsage) bool { return number(e) == number(u) }) {
			extended = append(extended, u)
		}
	}
	slices.SortFunc(extended, func(a, b certificates.KeyUsage) int { return number(a) - number(b) })
	var names []string
	for _, u := range append(bits, extended...) {
		names = append(names, string(u))
	}
	return names
}
