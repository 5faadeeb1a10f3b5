package signer

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/pemfile"
)

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: der})
}

// LoadCA is [LoadEncryptedCA] with a key that is not encrypted.
func LoadCA(certFile, keyFile string) (*CA, error) { return LoadEncryptedCA(certFile, keyFile, "") }

// LoadEncryptedCA reads a CA from PEM files. certFile holds one or more certificates. keyFile holds the private key of one of
// them: RSA, ECDSA or Ed25519, as PKCS #8, PKCS #1 or SEC 1. Both may be the same file. passphraseFile holds the
// passphrase in one line, if keyFile is an encrypted PKCS #8 key, and is otherwise empty. Errors name the file, and never
// contain a part of the key or the passphrase. LoadEncryptedCA refuses with [ErrExposed] a file with a key or a passphrase
// that every user may read or write. It also refuses a certificate file that every user may write, because machines trust
// its content.
func LoadEncryptedCA(certFile, keyFile, passphraseFile string) (*CA, error) {
	certs, err := loadCertificates(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := pemfile.ReadPrivate(keyFile, pemfile.Secret)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	key, err := keyOf(keyPEM, passphraseFile)
	if err != nil {
		return nil, fmt.Errorf("CA key %s: %w", keyFile, err)
	}
	ca, err := NewCA(certs, key)
	if err != nil {
		return nil, fmt.Errorf("CA certificate %s and key %s: %w", certFile, keyFile, err)
	}
	return ca, nil
}

// LoadCAWithKey is [NewCA] for the certificates in a file, and a key that may be, for example, in a hardware security
// module. Like [LoadCA], it refuses a file that every user may write.
func LoadCAWithKey(certFile string, key crypto.Signer) (*CA, error) {
	certs, err := loadCertificates(certFile)
	if err != nil {
		return nil, err
	}
	ca, err := NewCA(certs, key)
	if err != nil {
		return nil, fmt.Errorf("CA certificate %s: %w", certFile, err)
	}
	return ca, nil
}

// keyOf returns the key of a CA. passphraseFile is empty if the key is not encrypted.
func keyOf(keyPEM []byte, passphraseFile string) (crypto.Signer, error) {
	if passphraseFile == "" {
		return pemfile.Key(keyPEM)
	}
	content, err := pemfile.ReadPrivate(passphraseFile, pemfile.Secret)
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w", err)
	}
	passphrase, err := pemfile.Passphrase(content)
	if err != nil {
		return nil, fmt.Errorf("passphrase: %s: %w", passphraseFile, err)
	}
	return pemfile.EncryptedKey(keyPEM, passphrase)
}

func loadCertificates(file string) ([]*x509.Certificate, error) {
	content, err := pemfile.ReadPrivate(file, 0o002)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	certs, err := pemfile.Certificates(content)
	if err != nil {
		return nil, fmt.Errorf("CA certificate %s: %w", file, err)
	}
	return certs, nil
}

// ErrExposed is wrapped if every user of the machine may read or write a file of a CA.
var ErrExposed = pemfile.ErrExposed

// PEM encodes the bundle and the key (PKCS #8) for [LoadCA]. It fails for a key that is not in memory, for example in
// an HSM.
func (ca *CA) PEM() (certs, key []byte, err error) {
	if ca.remote != nil {
		return nil, nil, errElsewhere
	}
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("CA key of type %T cannot be written to a file", ca.key)
	}
	return ca.BundlePEM(), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// BundlePEM encodes the bundle.
func (ca *CA) BundlePEM() (certs []byte) {
	for _, cert := range ca.bundle {
		certs = append(certs, encodeCertificate(cert.Raw)...)
	}
	return certs
}
