package signer

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"

	"github.com/kubejoin/kubejoin/internal/pemfile"
)

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: der})
}

// LoadCA reads a CA from PEM files. certFile holds one or more certificates. keyFile holds the private key of one of
// them: RSA, ECDSA or Ed25519, as PKCS #8, PKCS #1 or SEC 1, not encrypted. Both may be the same file. Errors name
// the file, and never contain a part of the key. LoadCA refuses with [ErrExposed] a key file that every user may read
// or write. It also refuses a certificate file that every user may write, because machines trust its content.
func LoadCA(certFile, keyFile string) (*CA, error) {
	certPEM, err := readPrivate(certFile, 0o002)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	keyPEM, err := readPrivate(keyFile, 0o006)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	certs, err := pemfile.Certificates(certPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate %s: %w", certFile, err)
	}
	key, err := pemfile.Key(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("CA key %s: %w", keyFile, err)
	}
	ca, err := NewCA(certs, key)
	if err != nil {
		return nil, fmt.Errorf("CA certificate %s and key %s: %w", certFile, keyFile, err)
	}
	return ca, nil
}

// ErrExposed is wrapped if every user of the machine may read or write a file of a CA.
var ErrExposed = errors.New("file is accessible to every user")

// readPrivate reads a file whose mode has none of the given bits. The group may have access: the files of a Secret in
// a pod belong to one.
func readPrivate(path string, bits fs.FileMode) (content []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); runtime.GOOS != "windows" && mode.IsRegular() && mode.Perm()&bits != 0 {
		return nil, fmt.Errorf("%s: %w: mode is %04o, want at most %04o (in a Secret volume, set defaultMode)", path, ErrExposed, mode.Perm(), mode.Perm()&^bits)
	}
	return io.ReadAll(f)
}

// PEM encodes the bundle and the key (PKCS #8) for [LoadCA]. It fails for a key that is not in memory, for example in
// an HSM.
func (ca *CA) PEM() (certs, key []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("CA key of type %T cannot be written to a file", ca.key)
	}
	for _, cert := range ca.bundle {
		certs = append(certs, encodeCertificate(cert.Raw)...)
	}
	return certs, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
