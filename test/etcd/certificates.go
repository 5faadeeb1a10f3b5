package etcd

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// Files are the paths of the files for kubejoin's --etcd-cafile, --etcd-certfile and --etcd-keyfile.
type Files struct{ CA, Cert, Key string }

// User returns the files of an etcd user, and writes them at the first call. The common name of the certificate is the user
// name.
func (c *Cluster) User(name string) (Files, error) {
	f := Files{CA: c.file("ca.crt"), Cert: c.file("user-" + name + ".crt"), Key: c.file("user-" + name + ".key")}
	if _, err := os.Stat(f.Cert); !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	return f, c.ca.issue(f.Cert, f.Key, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// An authority is the CA of an etcd cluster.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// newAuthority writes ca.crt into a folder, and removes the certificates of an earlier CA there.
func newAuthority(dir string) (a authority, err error) {
	for _, pattern := range []string{"*.crt", "*.key"} {
		earlier, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return a, err
		}
		for _, file := range earlier {
			if err := os.Remove(file); err != nil {
				return a, err
			}
		}
	}
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return a, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "etcd-ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := a.sign(template, template, a.key.Public())
	if err != nil {
		return a, err
	}
	if a.certificate, err = x509.ParseCertificate(der); err != nil {
		return a, err
	}
	return a, writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", der)
}

// server writes server.crt and server.key, which all members share. Members also use it as client certificate for each other.
func (a authority) server(dir string) error {
	return a.issue(filepath.Join(dir, "server.crt"), filepath.Join(dir, "server.key"), &x509.Certificate{
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (a authority) issue(certFile, keyFile string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := a.sign(template, a.certificate, key.Public())
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return errors.Join(writePEM(certFile, "CERTIFICATE", der), writePEM(keyFile, "PRIVATE KEY", private))
}

func (a authority) sign(template, issuer *x509.Certificate, key crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	return x509.CreateCertificate(rand.Reader, template, issuer, key, a.key)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
