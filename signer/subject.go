package signer

import (
	"crypto/x509"
	"encoding/asn1"
	"strings"
	"unicode"
	"unicode/utf8"

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

// checkAttributes says, with a [*Refused], what is wrong with a subject whoever asks for it: what is
// no text, what crypto/x509 keeps one of where there are several, and what is for the eye alone.
func checkAttributes(csr *x509.CertificateRequest) error {
	var commonNames, serialNumbers int
	for _, attribute := range csr.Subject.Names {
		value, text := attribute.Value.(string)
		switch {
		case !text:
			return refuse("the subject attribute %s is no text", attribute.Type)
		case !utf8.ValidString(value):
			return refuse("the subject attribute %s is in no encoding that is known here", attribute.Type)
		case strings.ContainsFunc(value, unicode.IsControl):
			return refuse("the subject attribute %s has a control character: %+.100q", attribute.Type, value)
		}
		if !kept(attribute.Type) {
			continue
		}
		switch attribute.Type[3] {
		case attrCommonName:
			commonNames++
		case attrSerialNumber:
			serialNumbers++
		case attrOrganization:
		default:
			continue
		}
		if commonNames > 1 || serialNumbers > 1 {
			// crypto/x509 takes the last, others the first.
			return refuse("the subject has attribute %s more than once", attribute.Type)
		}
		if err := checkReserved(value); err != nil {
			return err
		}
	}
	return nil
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
