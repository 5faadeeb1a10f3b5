package pkcs10

import (
	"crypto/x509"
	"encoding/asn1"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kubejoin/kubejoin/signer/approval"
)

// The subject attributes that kube-controller-manager keeps, because crypto/x509/pkix has fields for them. Each
// number is the last number of an OID under 2.5.4 (X.520).
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

// Kept reports whether a certificate keeps this subject attribute of its request.
func Kept(oid asn1.ObjectIdentifier) bool {
	if len(oid) != 4 || oid[0] != 2 || oid[1] != 5 || oid[2] != 4 {
		return false
	}
	switch oid[3] {
	case attrCommonName, attrSerialNumber, attrCountry, attrLocality, attrProvince, attrStreet, attrOrganization, attrUnit, attrPostalCode:
		return true
	}
	return false
}

// checkAttributes returns an [*approval.Error] for a subject that no signer issues. It refuses values that are not
// text, repeated attributes of which crypto/x509 keeps only one, and names that only look like reserved ones.
func checkAttributes(csr *x509.CertificateRequest) error {
	var commonNames, serialNumbers int
	for _, attribute := range csr.Subject.Names {
		value, text := attribute.Value.(string)
		switch {
		case !text:
			return approval.Refuse("the subject attribute %s is not text", attribute.Type)
		case !utf8.ValidString(value):
			return approval.Refuse("the subject attribute %s is not valid UTF-8", attribute.Type)
		case strings.ContainsFunc(value, unicode.IsControl):
			return approval.Refuse("the subject attribute %s has a control character: %+.100q", attribute.Type, value)
		}
		if !Kept(attribute.Type) {
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
			// crypto/x509 reads the last value of a repeated attribute, other implementations the first.
			return approval.Refuse("the subject has attribute %s more than once", attribute.Type)
		}
		if err := checkSystemName(value); err != nil {
			return err
		}
	}
	return nil
}
