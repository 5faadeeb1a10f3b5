package joinformat

import (
	"encoding/hex"
	"fmt"
	"log/slog"
	"unique"
)

// A CertificateKey decrypts the keys of the control plane, as 'kubeadm init phase upload-certs
// --upload-certs' prints it. It never prints itself. The zero CertificateKey is none.
type CertificateKey struct {
	hex unique.Handle[string] // a handle, as in tokens.Token, which fmt does not look through
}

// ParseCertificateKey reads 64 hexadecimal digits. Its error holds nothing of them.
func ParseCertificateKey(s string) (CertificateKey, error) {
	if key, err := hex.DecodeString(s); err != nil || len(key) != 32 {
		return CertificateKey{}, fmt.Errorf("certificate key: want 64 hexadecimal digits, not %d characters", len(s))
	}
	return CertificateKey{unique.Make(s)}, nil
}

// IsZero reports whether it is none.
func (k CertificateKey) IsZero() bool { return k == CertificateKey{} }

// Reveal gives the digits, or nothing for none.
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
