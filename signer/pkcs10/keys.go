package pkcs10

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"slices"

	"github.com/kubejoin/kubejoin/signer/approval"
)

// RSA keys outside these sizes never get a certificate, regardless of the signer.KeyPolicy. Smaller keys can be
// broken. Larger keys slow down every TLS handshake for no benefit.
const (
	MinRSABits = 2048
	MaxRSABits = 8192
)

// Curves returns the curves that ECDSA keys may use. A signer.KeyPolicy may allow fewer.
func Curves() []elliptic.Curve {
	return []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}
}

// CheckKey refuses keys that no policy can allow. spki is the SubjectPublicKeyInfo of the key in DER. It names the
// algorithm of a key that crypto/x509 does not know, for which key is nil.
func CheckKey(key any, spki []byte) error {
	switch k := key.(type) {
	case *rsa.PublicKey:
		if bits := k.N.BitLen(); bits < MinRSABits || bits > MaxRSABits {
			return approval.Refuse("the RSA key has %d bits, want %d to %d", bits, MinRSABits, MaxRSABits)
		}
		if k.E < 3 || k.E%2 == 0 {
			return approval.Refuse("the RSA key has public exponent %d, want an odd number of at least 3", k.E)
		}
	case *ecdsa.PublicKey:
		if !slices.Contains(Curves(), k.Curve) {
			return approval.Refuse("the ECDSA key is on curve %s, want P-256, P-384 or P-521", k.Curve.Params().Name)
		}
	case ed25519.PublicKey:
	default:
		return approval.Refuse("the key has the algorithm %s, want RSA, ECDSA or Ed25519", KeyAlgorithm(spki))
	}
	return nil
}

// KeyAlgorithm returns the object identifier of the algorithm in a SubjectPublicKeyInfo in DER, for example
// "2.16.840.1.101.3.4.3.18" (ML-DSA-65), or "unknown" if it is malformed.
func KeyAlgorithm(spki []byte) string {
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	if rest, err := asn1.Unmarshal(spki, &info); err != nil || len(rest) > 0 {
		return "unknown"
	}
	return info.Algorithm.Algorithm.String()
}

// KeyID returns the public key of a request in the format of CA pins: "sha256:" and the SHA-256 of the
// SubjectPublicKeyInfo in lower-case hex.
func KeyID(csr *x509.CertificateRequest) string { return IDOfKey(csr.RawSubjectPublicKeyInfo) }

// IDOfKey is [KeyID] for a SubjectPublicKeyInfo in DER.
func IDOfKey(spki []byte) string {
	sum := sha256.Sum256(spki)
	return "sha256:" + hex.EncodeToString(sum[:])
}
