package pkcs10

import (
	"crypto/x509"
	"encoding/asn1"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// MaxBytes is the maximum size of a certificate request in PEM. A request with an 8192-bit key and a hundred names
// needs a tenth of it.
const MaxBytes = 64 << 10

// BlockType is the PEM block type of a certificate request.
const BlockType = "CERTIFICATE REQUEST"

// Parse reads a PKCS #10 request: exactly one PEM block of type CERTIFICATE REQUEST, with only white space around it.
// Its errors are [*approval.Error]. It does not verify the signature; [CheckSignature] does.
func Parse(data []byte) (*x509.CertificateRequest, error) {
	if len(data) > MaxBytes {
		return nil, approval.Refuse("the certificate request has %d bytes, want at most %d", len(data), MaxBytes)
	}
	der, err := pemfile.One(data, BlockType)
	if err != nil {
		return nil, approval.Refuse("the certificate request is malformed: %v", err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, approval.Refuse("the certificate request cannot be parsed: %v", err)
	}
	return csr, nil
}

var (
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}

	// Attributes that hold a user's UID. kube-apiserver reads the first attribute from client certificates
	// (feature AllowParsingUserUIDFromCertAuth). RFC 4519 defines the second.
	oidKubernetesUID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
	oidUID           = asn1.ObjectIdentifier{0, 9, 2342, 19200300, 100, 1, 1}
)

// Check returns an [*approval.Error] for a request that no signer signs. It refuses weak or unusual keys, CAs, and
// subjects with a UID. It also refuses content that crypto/x509 does not read, or reads differently from other
// implementations.
func Check(csr *x509.CertificateRequest) error {
	if csr == nil {
		return approval.Refuse("no certificate request given")
	}
	// Check the key before the signature: crypto/x509 cannot verify a signature with an unknown key type, and its error
	// does not name the algorithm.
	if err := CheckKey(csr.PublicKey, csr.RawSubjectPublicKeyInfo); err != nil {
		return err
	}
	for _, ext := range csr.Extensions {
		if !ext.Id.Equal(oidBasicConstraints) {
			continue // other extensions are not copied into the certificate; checkNames reads the names
		}
		var constraints struct {
			IsCA       bool `asn1:"optional"`
			MaxPathLen int  `asn1:"optional,default:-1"`
		}
		if rest, err := asn1.Unmarshal(ext.Value, &constraints); err != nil || len(rest) > 0 {
			return approval.Refuse("the basic constraints in the certificate request are malformed")
		}
		if constraints.IsCA {
			return approval.Refuse("the certificate request is for a CA certificate")
		}
	}
	for _, attribute := range csr.Subject.Names {
		if attribute.Type.Equal(oidKubernetesUID) || attribute.Type.Equal(oidUID) {
			return approval.Refuse("the subject has a UID attribute (%s): an API server may use it as the user's UID", attribute.Type)
		}
		// RFC 5280, appendix A: a DirectoryString is not empty.
		if value, ok := attribute.Value.(string); ok && value == "" {
			return approval.Refuse("the subject attribute %s is empty", attribute.Type)
		}
	}
	if err := checkAttributes(csr); err != nil {
		return err
	}
	return checkNames(csr)
}

// CheckSignature returns an [*approval.Error] if the request is not signed by its own key. It is the slowest of all
// checks, and cfssl repeats it when it signs.
func CheckSignature(csr *x509.CertificateRequest) error {
	if err := csr.CheckSignature(); err != nil {
		return approval.Refuse("the certificate request is not signed by its own key: %v", err)
	}
	return nil
}
