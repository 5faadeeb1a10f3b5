package pemfile

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"hash"

	"golang.org/x/crypto/scrypt"
)

// MaxPassphrase is the maximum length of a passphrase in bytes. OpenSSL has the same limit.
const MaxPassphrase = 1024

// Limits of the work and memory that the decryption of a key may cost: a few seconds, and 128 MiB. By default,
// OpenSSL writes 2,048 iterations, or scrypt with N*r*p = 2^17.
const (
	maxIterations = 2_000_000
	maxScrypt     = 1 << 20 // N*r*p
)

const convert = "convert it with: openssl pkcs8 -topk8 -v2 aes-256-cbc -in FILE -out FILE2"

// Object identifiers of RFC 8018 (PKCS #5) and RFC 7914 (scrypt).
var (
	oidPBES2  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}
	oidPBKDF2 = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}
	oidScrypt = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11591, 4, 11}

	// keySizes are the lengths of the keys of AES in CBC mode, in bytes.
	keySizes = map[string]int{"2.16.840.1.101.3.4.1.2": 16, "2.16.840.1.101.3.4.1.22": 24, "2.16.840.1.101.3.4.1.42": 32}
	// hashes are the hash functions of HMAC in PBKDF2. If the file names none, it is SHA-1.
	hashes = map[string]func() hash.Hash{
		"": sha1.New, "1.2.840.113549.2.7": sha1.New, "1.2.840.113549.2.9": sha256.New, "1.2.840.113549.2.10": sha512.New384, "1.2.840.113549.2.11": sha512.New,
	}
)

// Passphrase returns the passphrase in a file, which must be its only line.
func Passphrase(content []byte) ([]byte, error) {
	line := bytes.TrimSuffix(bytes.TrimSuffix(content, []byte("\n")), []byte("\r"))
	switch {
	case len(line) == 0:
		return nil, errors.New("empty, want a passphrase in one line")
	case bytes.ContainsAny(line, "\r\n"):
		return nil, errors.New("more than one line given, want a passphrase in one line")
	case len(line) > MaxPassphrase:
		return nil, fmt.Errorf("%d bytes given, want a passphrase of at most %d", len(line), MaxPassphrase)
	}
	return line, nil
}

// decrypt returns the key in an ENCRYPTED PRIVATE KEY: PBES2 of PKCS #5 with AES in CBC mode, and PBKDF2 or scrypt. It
// checks all limits before the costly derivation. Its errors contain no part of the key or the passphrase.
func decrypt(der, passphrase []byte) (any, error) {
	var file struct {
		Algorithm pkix.AlgorithmIdentifier
		Content   []byte
	}
	var scheme struct{ KDF, Cipher pkix.AlgorithmIdentifier }
	var iv []byte
	if err := unmarshal(der, &file); err != nil {
		return nil, errors.New("the encrypted key is malformed")
	}
	if !file.Algorithm.Algorithm.Equal(oidPBES2) {
		return nil, fmt.Errorf("the key is encrypted by the outdated algorithm %s, want PBES2; %s", file.Algorithm.Algorithm, convert)
	}
	if err := unmarshal(file.Algorithm.Parameters.FullBytes, &scheme); err != nil {
		return nil, errors.New("the encrypted key is malformed")
	}
	size := keySizes[scheme.Cipher.Algorithm.String()]
	if size == 0 {
		return nil, fmt.Errorf("the key is encrypted by algorithm %s, want AES-128, AES-192 or AES-256 in CBC mode; %s", scheme.Cipher.Algorithm, convert)
	}
	if err := unmarshal(scheme.Cipher.Parameters.FullBytes, &iv); err != nil || len(iv) != aes.BlockSize || len(file.Content) == 0 || len(file.Content)%aes.BlockSize != 0 {
		return nil, errors.New("the encrypted key is malformed")
	}
	secret, err := derive(scheme.KDF, passphrase, size)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return nil, err
	}
	plain := make([]byte, len(file.Content))
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(plain, file.Content)
	wrong := errors.New("cannot decrypt the key: the passphrase is wrong, or the file is damaged")
	padding := int(plain[len(plain)-1])
	if padding == 0 || padding > aes.BlockSize || !bytes.HasSuffix(plain, bytes.Repeat([]byte{byte(padding)}, padding)) {
		return nil, wrong
	}
	key, err := x509.ParsePKCS8PrivateKey(plain[:len(plain)-padding])
	if err != nil {
		return nil, wrong
	}
	return key, nil
}

// derive derives the key of a cipher from the passphrase.
func derive(kdf pkix.AlgorithmIdentifier, passphrase []byte, size int) ([]byte, error) {
	malformed := errors.New("the encrypted key is malformed")
	switch {
	case kdf.Algorithm.Equal(oidPBKDF2):
		var p struct {
			Salt       []byte
			Iterations int
			Size       int                      `asn1:"optional"`
			PRF        pkix.AlgorithmIdentifier `asn1:"optional"`
		}
		if err := unmarshal(kdf.Parameters.FullBytes, &p); err != nil || p.Size != 0 && p.Size != size {
			return nil, malformed
		}
		if p.Iterations < 1 || p.Iterations > maxIterations {
			return nil, fmt.Errorf("the encrypted key needs %d iterations, want 1 to %d; %s", p.Iterations, maxIterations, convert)
		}
		newHash := hashes[p.PRF.Algorithm.String()]
		if newHash == nil {
			return nil, fmt.Errorf("the encrypted key uses PBKDF2 with algorithm %s, want HMAC with SHA-256; %s", p.PRF.Algorithm, convert)
		}
		return pbkdf2.Key(newHash, string(passphrase), p.Salt, p.Iterations, size)
	case kdf.Algorithm.Equal(oidScrypt):
		var p struct {
			Salt    []byte
			N, R, P int
			Size    int `asn1:"optional"`
		}
		if err := unmarshal(kdf.Parameters.FullBytes, &p); err != nil || p.Size != 0 && p.Size != size {
			return nil, malformed
		}
		if min(p.N, p.R, p.P) < 1 || p.N > maxScrypt/p.R || p.N*p.R > maxScrypt/p.P { // a product could overflow
			return nil, fmt.Errorf("the encrypted key needs scrypt with N=%d, r=%d and p=%d, want a product of at most %d; %s", p.N, p.R, p.P, maxScrypt, convert)
		}
		return scrypt.Key(passphrase, p.Salt, p.N, p.R, p.P, size)
	}
	return nil, fmt.Errorf("the encrypted key derives its key by algorithm %s, want PBKDF2 or scrypt; %s", kdf.Algorithm, convert)
}

// unmarshal is asn1.Unmarshal, but returns an error for trailing data.
func unmarshal(der []byte, to any) error {
	rest, err := asn1.Unmarshal(der, to)
	if err == nil && len(rest) > 0 {
		err = errors.New("data after the value")
	}
	return err
}

// EncryptedKey is like [Key] for an encrypted key: PKCS #8 as 'openssl pkcs8 -topk8' and 'openssl genpkey -aes256' write
// it. It returns an error for an unencrypted key, because its owner believes that it is encrypted.
func EncryptedKey(data, passphrase []byte) (crypto.Signer, error) { return only(data, passphrase) }
