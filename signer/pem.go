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

// LoadCA reads a CA from PEM files: certFile holds one or more certificates, keyFile the private
// key of one of them (PKCS #8, PKCS #1 or SEC 1; RSA, ECDSA or Ed25519; not encrypted). The
// files may be the same one. Errors name the file, and never hold anything of a key. A key file that
// every user may read or write is refused with [ErrExposed], and so is a certificate file that every
// user may write: what is in it, machines trust.
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

// ErrExposed is wrapped when every user of the machine may read or write a file of a CA.
var ErrExposed = errors.New("file is open to every user")

// readPrivate reads a file whose mode has none of the bits. A group may have it: the files of a Secret
// in a pod belong to one.
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
		return nil, fmt.Errorf("%s: %w: mode %04o, want %04o or less (in a Secret volume: defaultMode)", path, ErrExposed, mode.Perm(), mode.Perm()&^bits)
	}
	return io.ReadAll(f)
}

// PEM encodes what [LoadCA] reads: the bundle, and the key as PKCS #8. A key that is not in
// memory, such as one in an HSM, cannot be encoded.
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

// pemBlocks gives all blocks of a PEM file. encoding/pem skips what it cannot read without a
// word: here a block that begins and cannot be read is an error, since a file that is still
// being written would have fewer certificates than it is to have.
func pemBlocks(data []byte) ([]*pem.Block, error) {
	begins := bytes.Count(append([]byte{'\n'}, data...), []byte("\n-----BEGIN "))
	var blocks []*pem.Block
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		blocks = append(blocks, block)
	}
	if len(blocks) < begins {
		return nil, fmt.Errorf("%d PEM blocks begin and %d can be read: one is damaged or cut off", begins, len(blocks))
	}
	return blocks, nil
}

// parseCertificates reads all certificates of a PEM file, and skips blocks of other types and
// text between blocks, as such files have it.
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

// parseKey reads the one private key of a PEM file. What crypto/x509 says about a malformed key
// is not passed on: nothing of a key may get into a log.
func parseKey(data []byte) (crypto.Signer, error) {
	blocks, err := pemBlocks(data)
	if err != nil {
		return nil, err
	}
	var key crypto.Signer
	for _, block := range blocks {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue // such as EC PARAMETERS, which openssl writes before the key
		}
		if block.Type == "ENCRYPTED PRIVATE KEY" || bytes.Contains([]byte(block.Headers["Proc-Type"]), []byte("ENCRYPTED")) {
			return nil, errors.New("the key is encrypted: want it in clear text, readable by its owner only")
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
