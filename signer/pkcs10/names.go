package pkcs10

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// MaxNames is the maximum number of subject alternative names in a certificate request.
const MaxNames = approval.MaxNames

var oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}

// nameKinds are the kinds of GeneralName (RFC 5280, section 4.2.1.6) by their tag.
var nameKinds = [...]string{"otherName", "email", "DNS", "x400Address", "directoryName", "ediPartyName", "URI", "IP", "registeredID"}

const (
	kindEmail = 1
	kindDNS   = 2
	kindURI   = 6
	kindIP    = 7
)

// checkNames returns an [*approval.Error] for names that no signer issues.
func checkNames(csr *x509.CertificateRequest) error {
	if err := CheckNames(csr.Extensions); err != nil {
		return err
	}
	if len(csr.Subject.ToRDNSequence()) == 0 && len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses)+len(csr.URIs) == 0 {
		// RFC 5280, section 4.1.2.6.
		return approval.Refuse("the certificate request has neither a subject nor subject alternative names")
	}
	return nil
}

// CheckNames returns an [*approval.Error] for subject alternative names that no signer issues. It parses the
// extension itself, because crypto/x509 silently drops the kinds that it does not know. The requester would not
// notice that a name is missing.
func CheckNames(extensions []pkix.Extension) error {
	for _, ext := range extensions {
		if !ext.Id.Equal(oidSubjectAltName) {
			continue
		}
		var list asn1.RawValue
		if rest, err := asn1.Unmarshal(ext.Value, &list); err != nil || len(rest) > 0 || list.Tag != asn1.TagSequence || list.Class != asn1.ClassUniversal {
			return approval.Refuse("the subject alternative names are malformed")
		}
		for n, rest := 1, list.Bytes; len(rest) > 0; n++ {
			if n > MaxNames {
				return approval.Refuse("the certificate request has more than %d subject alternative names", MaxNames)
			}
			var name asn1.RawValue
			var err error
			if rest, err = asn1.Unmarshal(rest, &name); err != nil || name.Class != asn1.ClassContextSpecific {
				return approval.Refuse("the subject alternative names are malformed")
			}
			if err := checkName(name.Tag, name.Bytes); err != nil {
				return approval.Refuse("subject alternative name %d %v", n, err)
			}
		}
	}
	return nil
}

func checkName(kind int, value []byte) error {
	what := fmt.Sprintf("is of kind %d", kind)
	if kind >= 0 && kind < len(nameKinds) {
		what = "is of kind " + nameKinds[kind]
	}
	switch kind {
	case kindEmail, kindDNS, kindURI:
	case kindIP:
		// An IPv4-mapped address (RFC 4291, section 2.5.5.2) is an IPv4 address in disguise: checks for IPv4 may miss
		// it.
		if len(value) == 16 && strings.HasPrefix(string(value), "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff") {
			return fmt.Errorf("is an IPv4-mapped IPv6 address, ::ffff:%d.%d.%d.%d: want the IPv4 address in 4 bytes", value[12], value[13], value[14], value[15])
		}
		return nil
	default:
		return fmt.Errorf("%s: want only DNS, IP, email and URI", what)
	}
	if len(value) == 0 {
		return fmt.Errorf("%s and empty", what)
	}
	for _, c := range value {
		if c <= ' ' || c >= 0x7f {
			return fmt.Errorf("%s, and %.100q has a space or a character that is not printable ASCII", what, safetext.Redact(string(value)))
		}
	}
	if kind == kindDNS && len(value) > dnsname.MaxLength {
		return fmt.Errorf("%s and has %d characters, want at most %d", what, len(value), dnsname.MaxLength)
	}
	return nil
}
