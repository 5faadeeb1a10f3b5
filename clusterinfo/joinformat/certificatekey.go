package joinformat

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"time"
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

// Lifetimes of an [Upload].
const (
	// UploadTTL is how long an upload is valid after the last call that returned its key, as in kubeadm.
	UploadTTL = 2 * time.Hour
	// KeyTTL is the maximum time for which a key is valid, even if later calls return it again.
	KeyTTL = 4 * time.Hour
)

// A KeyEndsError reports that the key of an upload expires too soon for a new join command. A new upload now would
// invalidate the key in earlier join commands.
type KeyEndsError struct {
	// Expires is when the key expires.
	Expires time.Time
}

func (e *KeyEndsError) Error() string {
	return fmt.Sprintf("the certificate key of earlier join commands ends at %s and is not extended; retry then, or if nobody needs them any more, end it now with: kubejoin certs delete",
		e.Expires.UTC().Format(time.RFC3339))
}

// An Upload is the result of [github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts.Uploader.Upload].
type Upload struct {
	// Key decrypts the files. kubejoin does not store it.
	Key CertificateKey
	// Expires is when the Secret is deleted, unless a later call extends it.
	Expires time.Time
	// TokenID is the ID of the bootstrap token that owns the Secret. The token has no usages.
	TokenID string
	// Shared is true if an earlier call returned the same key, which still works.
	Shared bool
	// Replaced is true if there was another upload. Its key no longer works.
	Replaced bool
}

// Warnings returns warnings for the person who gets the key in a join command.
func (u Upload) Warnings() []string {
	warnings := []string{"the certificate key in this join command works until " + u.Expires.Format(time.RFC3339) + ", and gives access to the key of the cluster CA"}
	if u.Replaced {
		warnings = append(warnings, "this upload replaced another one: join commands with an earlier certificate key no longer work")
	}
	return warnings
}
