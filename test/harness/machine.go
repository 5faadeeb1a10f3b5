package harness

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// A MachineKey is the key of a machine. The files contain the private and the public key in PEM.
type MachineKey struct {
	File, Public string
	// ID is the key ID, as in claims.
	ID  string
	key *ecdsa.PrivateKey
}

// NewMachineKey makes a key, and writes its files to a directory.
func NewMachineKey(t *testing.T, dir, name string) MachineKey {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	private := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	public := must.Value(x509.MarshalPKIXPublicKey(&key.PublicKey))(t)
	m := MachineKey{filepath.Join(dir, name+".key"), filepath.Join(dir, name+".pub"), pkcs10.IDOfKey(public), key}
	must.OK(t, os.WriteFile(m.File, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	must.OK(t, os.WriteFile(m.Public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600))
	return m
}

// Prove proves the key for a node name, as the join script does. It returns the status and the body.
func (m MachineKey) Prove(t *testing.T, s *Site, name string) (int, string) {
	t.Helper()
	template := x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: tokens.NodeUserPrefix + name, Organization: []string{tokens.NodesGroup}}}
	der := must.Value(x509.CreateCertificate(rand.Reader, &template, &template, &m.key.PublicKey, m.key))(t)
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(ReadFile(t, s.CAFile()))
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		RootCAs: cas, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: m.key}},
	}}}
	response := must.Value(client.Post("https://"+s.Endpoint+"/v1/machine/"+name+"/join", "", http.NoBody))(t)
	defer func() { _ = response.Body.Close() }()
	return response.StatusCode, string(must.Value(io.ReadAll(response.Body))(t))
}
