package signer

import (
	"crypto/x509"
	"encoding/asn1"

	"github.com/cloudflare/cfssl/csr"
	cfssl "github.com/cloudflare/cfssl/signer"
)

// The attributes that crypto/x509/pkix has fields for, all under 2.5.4 (X.520), by their last
// number: what kube-controller-manager keeps of a subject.
const (
	attrCommonName   = 3
	attrSerialNumber = 5
	attrCountry      = 6
	attrLocality     = 7
	attrProvince     = 8
	attrStreet       = 9
	attrOrganization = 10
	attrUnit         = 11
	attrPostalCode   = 17
)

func kept(oid asn1.ObjectIdentifier) bool {
	if len(oid) != 4 || oid[0] != 2 || oid[1] != 5 || oid[2] != 4 {
		return false
	}
	switch oid[3] {
	case attrCommonName, attrSerialNumber, attrCountry, attrLocality, attrProvince, attrStreet, attrOrganization, attrUnit, attrPostalCode:
		return true
	}
	return false
}

// subjectOverride is the subject that cfssl is to use in place of the request's, or nil if the
// request's will do. cfssl copies attributes that it does not know, such as an email address
// that openssl asked for; KCM drops them. cfssl has no way to give a street or postal code, so
// these beside an unknown attribute are refused.
func subjectOverride(request *x509.CertificateRequest) (*cfssl.Subject, error) {
	var unknown asn1.ObjectIdentifier
	for _, attribute := range request.Subject.Names {
		if !kept(attribute.Type) {
			unknown = attribute.Type
		}
	}
	if unknown == nil {
		return nil, nil
	}
	from := request.Subject
	if len(from.StreetAddress) > 0 || len(from.PostalCode) > 0 {
		return nil, refuse("the subject has attribute %s beside a street or postal code: leave one of them out", unknown)
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
