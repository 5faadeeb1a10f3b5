package joinformat

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"unique"
)

// A CertificateKey decrypts the keys of the control plane. 'kubeadm init phase upload-certs
// --upload-certs' prints it. All ways of formatting it redact it. The zero CertificateKey means none.
type CertificateKey struct {
	hex unique.Handle[string] // a handle, as in tokens.Token, so that fmt cannot print the key
}

// GenerateCertificateKey returns a random key.
func GenerateCertificateKey() CertificateKey {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	return CertificateKey{unique.Make(hex.EncodeToString(key[:]))}
}

// ParseCertificateKey parses 64 hexadecimal digits. Its error does not repeat the input.
func ParseCertificateKey(s string) (CertificateKey, error) {
	if key, err := hex.DecodeString(s); err != nil || len(key) != 32 {
		return CertificateKey{}, fmt.Errorf("certificate key: want 64 hexadecimal digits, not %d characters", len(s))
	}
	return CertificateKey{unique.Make(s)}, nil
}

// IsZero reports whether k is the zero CertificateKey.
func (k CertificateKey) IsZero() bool { return k == CertificateKey{} }

// Reveal returns the digits; empty for the zero CertificateKey.
func (k CertificateKey) Reveal() string {
	if k.IsZero() {
		return ""
	}
	return k.hex.Value()
}

func (k CertificateKey) String() string {
	if k.IsZero() {
		return ""
	}
	return "<redacted>"
}

// GoString redacts like [CertificateKey.String].
func (k CertificateKey) GoString() string { return "joinformat.CertificateKey(" + k.String() + ")" }

// LogValue redacts like [CertificateKey.String].
func (k CertificateKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText redacts like [CertificateKey.String].
func (k CertificateKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }
