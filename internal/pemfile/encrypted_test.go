package pemfile_test

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/pbkdf2"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// passphrase is the passphrase of the keys in testdata, which OpenSSL 3.0 wrote. All P-256 files contain the same key.
const passphrase = "correct horse"

func TestReadsKeysThatOpenSSLEncrypts(t *testing.T) {
	var first crypto.PublicKey
	files := must.Value(filepath.Glob("testdata/[gp]*.pem"))(t)
	for _, file := range files {
		content := must.Value(os.ReadFile(file))(t)
		key, err := pemfile.EncryptedKey(content, []byte(passphrase))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		switch public := key.Public().(type) {
		case *ecdsa.PublicKey:
			if first == nil {
				first = public
			}
			if !public.Equal(first) {
				t.Errorf("%s: got another key", file)
			}
		case *rsa.PublicKey:
			if !strings.HasSuffix(file, "pkcs8-rsa.pem") || public.N.BitLen() != 2048 {
				t.Errorf("%s: got an RSA key with %d bits", file, public.N.BitLen())
			}
		case ed25519.PublicKey:
			if !strings.Contains(file, "ed25519") {
				t.Errorf("%s: got an Ed25519 key", file)
			}
		}
		if _, err := pemfile.Key(content); err == nil || !strings.Contains(err.Error(), "or a file with its passphrase") {
			t.Errorf("%s without a passphrase: got error %v, want one that asks for a file with the passphrase", file, err)
		}
		_, err = pemfile.EncryptedKey(content, []byte("correct horst"))
		if err == nil || !strings.Contains(err.Error(), "the passphrase is wrong, or the file is damaged") || strings.Contains(err.Error(), "horst") {
			t.Errorf("%s with a wrong passphrase: got error %v, want one that says so, without the passphrase", file, err)
		}
	}
	if len(files) != 7 {
		t.Errorf("%d files, want 7", len(files))
	}
}

func TestRefusesOtherEncryption(t *testing.T) {
	for file, want := range map[string]string{
		"refused-des3":        "algorithm 1.2.840.113549.3.7, want AES-128, AES-192 or AES-256 in CBC mode; convert it with: openssl pkcs8 -topk8",
		"refused-pbes1":       "outdated algorithm 1.2.840.113549.1.12.1.3, want PBES2; convert it with: openssl pkcs8 -topk8 -v2 aes-256-cbc",
		"refused-iterations":  "needs 2000001 iterations, want 1 to 2000000",
		"refused-traditional": "(Proc-Type: 4,ENCRYPTED), want PKCS #8; convert it with: openssl pkcs8 -topk8 -v2 aes-256-cbc -in FILE -out FILE2",
	} {
		content := must.Value(os.ReadFile(filepath.Join("testdata", file+".pem")))(t)
		if _, err := pemfile.EncryptedKey(content, []byte(passphrase)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
	plain := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.Value(x509.MarshalPKCS8PrivateKey(csrtest.NewKey()))(t)})
	if _, err := pemfile.EncryptedKey(plain, []byte(passphrase)); err == nil || !strings.Contains(err.Error(), "the key is not encrypted, and a file with a passphrase is given") {
		t.Errorf("not encrypted: %v", err)
	}
}

type pbkdf2Parameters struct {
	Salt       []byte
	Iterations int
	Size       int `asn1:"optional"`
	PRF        pkix.AlgorithmIdentifier
}

type scryptParameters struct {
	Salt    []byte
	N, R, P int
}

// A hostile file must cost neither minutes nor gigabytes, and must not cause a panic. The case "good" shows that each
// other case fails only because of its parameter.
func TestRefusesHostileParameters(t *testing.T) {
	oid := func(last ...int) asn1.ObjectIdentifier {
		return append(asn1.ObjectIdentifier{1, 2, 840, 113549}, last...)
	}
	aes256, scrypt := asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 42}, asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11591, 4, 11}
	salt, iv := []byte("saltsalt"), make([]byte, aes.BlockSize)
	content := must.Value(x509.MarshalPKCS8PrivateKey(csrtest.NewKey()))(t)
	padding := aes.BlockSize - len(content)%aes.BlockSize
	for range padding {
		content = append(content, byte(padding))
	}
	encrypted := make([]byte, len(content))
	block := must.Value(aes.NewCipher(must.Value(pbkdf2.Key(sha256.New, passphrase, salt, 1, 32))(t)))(t)
	cipher.NewCBCEncrypter(block, iv).CryptBlocks(encrypted, content)

	algorithm := func(id asn1.ObjectIdentifier, parameters any) pkix.AlgorithmIdentifier {
		return pkix.AlgorithmIdentifier{Algorithm: id, Parameters: asn1.RawValue{FullBytes: must.Value(asn1.Marshal(parameters))(t)}}
	}
	type scheme struct{ KDF, Cipher pkix.AlgorithmIdentifier }
	hmacSHA256 := pkix.AlgorithmIdentifier{Algorithm: oid(2, 9), Parameters: asn1.NullRawValue}
	good := algorithm(oid(1, 5, 12), pbkdf2Parameters{salt, 1, 32, hmacSHA256})
	byIV := func(iv []byte) pkix.AlgorithmIdentifier { return algorithm(aes256, iv) }
	costs := func(n, r, p int) scheme { return scheme{algorithm(scrypt, scryptParameters{salt, n, r, p}), byIV(iv)} }
	pbkdf := func(iterations, size int, prf pkix.AlgorithmIdentifier) scheme {
		return scheme{algorithm(oid(1, 5, 12), pbkdf2Parameters{salt, iterations, size, prf}), byIV(iv)}
	}
	for name, test := range map[string]struct {
		scheme
		content []byte
		want    string
	}{
		"good":              {scheme{good, byIV(iv)}, encrypted, ""},
		"short IV":          {scheme{good, byIV(iv[1:])}, encrypted, "malformed"},
		"half a block":      {scheme{good, byIV(iv)}, encrypted[:len(encrypted)-8], "malformed"},
		"no content":        {scheme{good, byIV(iv)}, nil, "malformed"},
		"one block missing": {scheme{good, byIV(iv)}, encrypted[:len(encrypted)-16], "the passphrase is wrong"},
		"no iterations":     {pbkdf(0, 32, hmacSHA256), encrypted, "needs 0 iterations"},
		"many iterations":   {pbkdf(1<<31-1, 32, hmacSHA256), encrypted, "needs 2147483647 iterations"},
		"another key size":  {pbkdf(1, 1<<30, hmacSHA256), encrypted, "malformed"},
		"unknown hash":      {pbkdf(1, 32, pkix.AlgorithmIdentifier{Algorithm: oid(2, 5)}), encrypted, "want HMAC with SHA-256"},
		"unknown KDF":       {scheme{algorithm(oid(1, 5, 99), 1), byIV(iv)}, encrypted, "want PBKDF2 or scrypt"},
		"large N":           {costs(1<<30, 1, 1), encrypted, "N=1073741824"},
		"large r":           {costs(2, 1<<30, 1), encrypted, "r=1073741824"},
		"large p":           {costs(2, 1, 1<<30), encrypted, "p=1073741824"},
		"large product":     {costs(1<<11, 1<<7, 8), encrypted, "want a product of at most 1048576"},
		"negative N":        {costs(-2, 1, 1), encrypted, "N=-2"},
		"N is no power":     {costs(3, 1, 1), encrypted, "power of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			der := must.Value(asn1.Marshal(struct {
				Algorithm pkix.AlgorithmIdentifier
				Content   []byte
			}{algorithm(oid(1, 5, 13), test.scheme), test.content}))(t)
			_, err := pemfile.EncryptedKey(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: der}), []byte(passphrase))
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestPassphraseIsOneLine(t *testing.T) {
	for content, want := range map[string]string{
		"a b":                     "a b",
		"a b\n":                   "a b",
		"a b \r\n":                "a b ",
		"":                        "empty",
		"\n":                      "empty",
		"a\nb\n":                  "more than one line",
		"a\n\n":                   "more than one line",
		strings.Repeat("x", 1025): "1025 bytes given",
	} {
		got, err := pemfile.Passphrase([]byte(content))
		if err != nil {
			got = []byte(err.Error())
		}
		if !strings.HasPrefix(string(got), want) || err == nil && string(got) != want {
			t.Errorf("%.20q: %q, want %q", content, got, want)
		}
	}
}
