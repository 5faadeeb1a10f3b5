package signer

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
)

const certificateBlock = "CERTIFICATE"

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der})
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
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate %s: %w", certFile, err)
	}
	key, err := parseKey(keyPEM)
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

// pemBlocks returns all blocks of a PEM file. It fails if a block begins and cannot be read, which encoding/pem
// silently skips. Otherwise a file that is still being written would seem to have fewer certificates.
func pemBlocks(data []byte) ([]*pem.Block, error) {
	begins := bytes.Count(append([]byte{'\n'}, data...), []byte("\n-----BEGIN "))
	var blocks []*pem.Block
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	if len(blocks) < begins {
		return nil, fmt.Errorf("%d PEM blocks begin, but only %d can be read: a block is damaged or truncated", begins, len(blocks))
	}
	return blocks, nil
}

// parseCertificates reads all certificates of a PEM file. It skips blocks of other types, and text between blocks.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for _, block := range blocks {
		if block.Type != certificateBlock {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, errors.New("no certificate found: want a PEM block of type CERTIFICATE")
	}
	return certs, nil
}

// parseKey reads the only private key of a PEM file. It drops the errors of crypto/x509, because no part of a key may
// get into a log.
func parseKey(data []byte) (crypto.Signer, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	var key crypto.Signer
	for _, block := range blocks {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue // for example EC PARAMETERS, which openssl writes before the key
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || bytes.Contains([]byte(block.Headers["Proc-Type"]), []byte("ENCRYPTED")) {
			return nil, errors.New("the key is encrypted: want an unencrypted key that only its owner may read")
		}
		if key != nil {
			return nil, errors.New("more than one private key found: want one")
		}
		var parsed any
		var err error
		switch block.Type {
		case "PRIVATE KEY":
			parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			parsed, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			return nil, fmt.Errorf("PEM block of type %s: want PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY", block.Type)
		}
		if err != nil {
			return nil, fmt.Errorf("the PEM block of type %s holds no valid key", block.Type)
		}
		signer, ok := parsed.(crypto.Signer)
		if !ok {
			return nil, fmt.Errorf("key of type %T cannot sign: want RSA, ECDSA or Ed25519", parsed)
		}
		key = signer
	}
	if key == nil {
		return nil, errors.New("no private key found: want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY")
	}
	return key, nil
}
