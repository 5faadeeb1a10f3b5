package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// A signingWorld is what all HTTPS servers share: a CA, a serving certificate and an administrator.
type signingWorld struct {
	dir     string
	root    *x509.Certificate
	rootKey *ecdsa.PrivateKey
	bearer  string // bearer token of kubejoin's administrator
}

func newSigningWorld(dir string) (*signingWorld, error) {
	w := &signingWorld{dir: dir, bearer: rand.Text()}
	return w, w.makeCA()
}

func (w *signingWorld) path(name string) string { return filepath.Join(w.dir, name) }

// makeCA creates the CA and the serving certificate.
func (w *signingWorld) makeCA() error {
	var err error
	if w.rootKey, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, w.rootKey.Public(), w.rootKey)
	if err != nil {
		return err
	}
	if w.root, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serving, err := w.certificate(&x509.Certificate{
		Subject: pkix.Name{CommonName: "bench"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, key)
	if err != nil {
		return err
	}
	for _, pair := range []struct {
		name string
		der  []byte
		key  *ecdsa.PrivateKey
	}{{"ca", der, w.rootKey}, {"serving", serving.Certificate[0], key}} {
		keyDER, err := x509.MarshalECPrivateKey(pair.key)
		if err != nil {
			return err
		}
		if err := errors.Join(
			os.WriteFile(w.path(pair.name+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.der}), 0o600),
			os.WriteFile(w.path(pair.name+".key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600),
		); err != nil {
			return err
		}
	}
	return nil
}

// certificate issues a certificate from the CA, valid for an hour.
func (w *signingWorld) certificate(template *x509.Certificate, key *ecdsa.PrivateKey) (tls.Certificate, error) {
	template.SerialNumber = new(big.Int).SetBytes([]byte(rand.Text()))
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, w.root, key.Public(), w.rootKey)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

func nodeSubject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

// nodeRequest returns a kubelet's CSR in PEM.
func nodeRequest(name string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: nodeSubject(name)}, key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), err
}

// exchange sends a request to the server at base. It returns an error unless the status is a success.
func exchange(client *http.Client, base string, r *http.Request) (body []byte, err error) {
	if r.URL, err = r.URL.Parse(base + r.URL.String()); err != nil {
		return nil, err
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	body, err = io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusCreated {
		return nil, fmt.Errorf("%s: %.500s", response.Status, body)
	}
	return body, nil
}

const certificatePath = "/v1/certificate"

// post returns a POST request, with a bearer token unless bearer is empty.
func post(path string, body []byte, bearer string) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodPost, path, bytes.NewReader(body))
	if err == nil && bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	return r, err
}

// postNode returns a request for the client certificate of a node.
func postNode(path, node string, key *ecdsa.PrivateKey, bearer string) (*http.Request, error) {
	request, err := nodeRequest(node, key)
	if err != nil {
		return nil, err
	}
	return post(path, request, bearer)
}
