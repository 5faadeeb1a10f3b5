// Package pemfile reads PEM: certificates, keys and requests. encoding/pem skips a block that it cannot read, so a certificate
// can silently vanish from a bundle. All of kubejoin reads PEM with this package, which returns an error for such a block.
package pemfile

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"
)

// PEM block types.
const (
	Certificate = "CERTIFICATE"
	PublicKey   = "PUBLIC KEY"

	encryptedKey = "ENCRYPTED PRIVATE KEY"
)

var begin, end = []byte("-----BEGIN "), []byte("-----END ")

// Blocks returns all blocks. It ignores text between them. It returns an error for empty data, and for each beginning or
// end of a block that encoding/pem cannot read. encoding/pem cannot read a block after a space or a byte order mark, two
// blocks without a newline between them, and a damaged or truncated block.
func Blocks(data []byte) ([]*pem.Block, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, errors.New("empty, want PEM")
	}
	var blocks []*pem.Block
	offset := 0
	for i, text := range bytes.Split(data, begin) { // first the text before the first block, then one block each
		rest := text
		if i > 0 {
			var block *pem.Block
			block, rest = pem.Decode(data[offset : offset+len(begin)+len(text)])
			if block == nil || offset > 0 && data[offset-1] != '\n' {
				return nil, fmt.Errorf("PEM block %d (line %d) is damaged or truncated: want BEGIN and END at the start of a line, and base64 between them", i, line(data, offset))
			}
			blocks = append(blocks, block)
			offset += len(begin)
		}
		offset += len(text)
		if at := bytes.Index(rest, end); at >= 0 {
			return nil, fmt.Errorf("the PEM block that ends at line %d has no BEGIN line", line(data, offset-len(rest)+at))
		}
	}
	return blocks, nil
}

// line returns the number of the line at an offset.
func line(data []byte, offset int) int { return bytes.Count(data[:offset], []byte("\n")) + 1 }

// One returns the content of the only block. The block must have the given type and no headers. Only white space may
// surround it.
func One(data []byte, blockType string) ([]byte, error) {
	data = bytes.TrimSpace(data)
	blocks, err := Blocks(data)
	switch {
	case err != nil:
		return nil, err
	case len(blocks) == 0:
		return nil, fmt.Errorf("not PEM: want one block of type %s", blockType)
	case len(blocks) > 1:
		return nil, fmt.Errorf("there are %d PEM blocks, want one", len(blocks))
	case blocks[0].Type != blockType:
		return nil, fmt.Errorf("the PEM block is of type %.40q, want %s", blocks[0].Type, blockType)
	case len(blocks[0].Headers) > 0:
		return nil, errors.New("the PEM block has headers, want none")
	}
	if !bytes.HasPrefix(data, begin) || !bytes.HasSuffix(data, []byte("-----END "+blockType+"-----")) {
		return nil, errors.New("there is data around the PEM block, want only the block")
	}
	return blocks[0].Bytes, nil
}

// Certificates returns all certificates, at least one. It skips blocks of other types, such as keys. It returns an error
// for a certificate that crypto/tls and client-go would skip: one with headers, or with a type that only OpenSSL uses.
func Certificates(data []byte) ([]*x509.Certificate, error) {
	blocks, err := Blocks(data)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for i, block := range blocks {
		if !strings.HasSuffix(block.Type, Certificate) {
			continue
		}
		if block.Type != Certificate || len(block.Headers) > 0 {
			return nil, fmt.Errorf("PEM block %d: want type %s without headers, which 'openssl x509' writes", i+1, Certificate)
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

// Encode returns certificates in PEM.
func Encode(certs ...*x509.Certificate) (content []byte) {
	for _, c := range certs {
		content = append(content, pem.EncodeToMemory(&pem.Block{Type: Certificate, Bytes: c.Raw})...)
	}
	return content
}

// OnlyCertificates is like [Certificates], but returns an error for blocks of other types.
func OnlyCertificates(data []byte) ([]*x509.Certificate, error) {
	blocks, err := Blocks(data)
	if err != nil {
		return nil, err
	}
	for i, block := range blocks {
		if block.Type != Certificate {
			return nil, fmt.Errorf("PEM block %d: want no blocks of types other than %s", i+1, Certificate)
		}
	}
	return Certificates(data)
}

// Pool returns all certificates as a pool.
func Pool(data []byte) (*x509.CertPool, error) {
	certs, err := Certificates(data)
	if err != nil {
		return nil, err
	}
	return PoolOf(certs), nil
}

// PoolOf returns a pool of these certificates.
func PoolOf(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool
}

// Presented returns the certificates in the output of a signer, up to the first malformed one. Like the TLS client
// that presents them, it skips blocks that it cannot read. Use it only to inspect other parties' certificates, never
// to decide about trust.
func Presented(data []byte) (chain []*x509.Certificate) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != Certificate {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			break
		}
		chain = append(chain, cert)
	}
	return chain
}

// IsEncrypted reports whether data is an encrypted private key.
func IsEncrypted(data []byte) bool {
	block, _ := pem.Decode(data)
	return block != nil && block.Type == encryptedKey
}

// Key returns the only private key: RSA, ECDSA or Ed25519, as PKCS #8, PKCS #1 or SEC 1, not encrypted. It drops the
// errors of crypto/x509, because no part of a key may get into a log.
func Key(data []byte) (crypto.Signer, error) { return only(data, nil) }

// only returns the only private key. A passphrase, if there is one, decrypts it.
func only(data, passphrase []byte) (crypto.Signer, error) {
	blocks, err := Blocks(data)
	if err != nil {
		return nil, err
	}
	var key crypto.Signer
	for _, block := range blocks {
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue // for example EC PARAMETERS, which openssl writes before the key
		}
		encrypted := block.Type == encryptedKey
		switch {
		case key != nil:
			return nil, errors.New("more than one private key found: want one")
		case strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED"):
			return nil, errors.New("the key is encrypted in the outdated form of OpenSSL (Proc-Type: 4,ENCRYPTED), want PKCS #8; " + convert)
		case encrypted && passphrase == nil:
			return nil, errors.New("the key is encrypted: want an unencrypted key that only its owner may read, or a file with its passphrase")
		case !encrypted && passphrase != nil:
			return nil, errors.New("the key is not encrypted, and a file with a passphrase is given: encrypt the key, or leave out the passphrase")
		}
		var parsed any
		var err error
		switch block.Type {
		case encryptedKey:
			if parsed, err = decrypt(block.Bytes, passphrase); err != nil {
				return nil, err
			}
		case "PRIVATE KEY":
			parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			parsed, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "EC PRIVATE KEY":
			parsed, err = x509.ParseECPrivateKey(block.Bytes)
		default:
			return nil, fmt.Errorf("PEM block of type %.40q: want PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY", block.Type)
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

// KeyPair returns a certificate, its intermediates and its key for TLS.
func KeyPair(certificate, key []byte) (tls.Certificate, error) {
	if _, err := Certificates(certificate); err != nil {
		return tls.Certificate{}, fmt.Errorf("certificate: %w", err)
	}
	if _, err := Key(key); err != nil {
		return tls.Certificate{}, fmt.Errorf("key: %w", err)
	}
	return tls.X509KeyPair(certificate, key)
}

// LoadKeyPair is like [KeyPair], but reads two files.
func LoadKeyPair(certFile, keyFile string) (tls.Certificate, error) {
	certificate, err := os.ReadFile(certFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return tls.Certificate{}, err
	}
	pair, err := KeyPair(certificate, key)
	if err != nil {
		err = fmt.Errorf("%s and %s: %w", certFile, keyFile, err)
	}
	return pair, err
}
