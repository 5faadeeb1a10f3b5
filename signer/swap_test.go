package signer_test

import (
	"bytes"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

// swaps is the number of certificates that TestCertificateComesFromOneCA issues.
const swaps = 20_000

// While the CA is replaced all the time, each certificate must come from one CA: its issuer signed it, it
// expires with that CA, and the response has the intermediate of that CA.
func TestCertificateComesFromOneCA(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	const n = 8
	var cas [n]*signer.CA
	byName := map[string]int{}
	now := time.Now()
	for i := range cas {
		name := fmt.Sprint("ca-", i)
		key, root := csrtest.ECDSA(elliptic.P256()), csrtest.ECDSA(elliptic.P256()) // Ed25519 is slow under the race detector
		cert := caCertificate(t, name, key, caCertificate(t, "root", root, nil, nil, nil), root, func(c *x509.Certificate) {
			c.NotAfter = now.Add(time.Duration(i+1) * time.Hour)
		})
		cas[i] = must(signer.NewCA([]*x509.Certificate{cert}, key))
		byName[name] = i
	}
	// Every third request of the CA replaces it, however fast the machine is.
	var current atomic.Pointer[signer.CA]
	current.Store(cas[0])
	var asked atomic.Int64
	replaced := func() (*signer.CA, error) {
		if i := asked.Add(1); i%3 == 0 {
			current.Store(cas[i/3%n])
		}
		return current.Load(), nil
	}
	authority := signer.Authority{Unthrottled: true, Signers: signer.FixedSigners(must(signer.KubernetesSigners(replaced, 365*24*time.Hour)))}
	request := kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, csrtest.ECDSA(elliptic.P256()))

	var left atomic.Int64
	left.Store(swaps)
	var issued [n]atomic.Int64
	var working sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		working.Go(func() {
			for left.Add(-1) >= 0 && !t.Failed() {
				chain, err := authority.Sign(t.Context(), request)
				if err != nil {
					t.Error(err)
					return
				}
				block, rest := pem.Decode(chain)
				leaf, err := x509.ParseCertificate(block.Bytes)
				if err != nil {
					t.Error(err)
					return
				}
				i, known := byName[leaf.Issuer.CommonName]
				if !known {
					t.Errorf("got unknown issuer %s", leaf.Issuer)
					return
				}
				ca := cas[i].Certificate()
				if err := leaf.CheckSignatureFrom(ca); err != nil {
					t.Errorf("signature is not by issuer %s: %v", leaf.Issuer, err)
				}
				if !leaf.NotAfter.Equal(ca.NotAfter) {
					t.Errorf("issued by %s until %s, want until %s", leaf.Issuer, leaf.NotAfter, ca.NotAfter)
				}
				if block, _ := pem.Decode(rest); block == nil || !bytes.Equal(block.Bytes, ca.Raw) {
					t.Errorf("issued by %s, but the response has another intermediate", leaf.Issuer)
				}
				issued[i].Add(1)
			}
		})
	}
	working.Wait()
	var counts [n]int64
	for i := range issued {
		if counts[i] = issued[i].Load(); counts[i] == 0 {
			t.Errorf("CA %d issued nothing, want certificates from each CA", i)
		}
	}
	t.Logf("%d certificates, the CA requested %d times, by CA: %v", swaps, asked.Load(), counts)
}

// LoadCA refuses truncated files. It cannot detect a cut between two certificates and then loads those that are
// there.
func TestLoadCADetectsTruncatedFiles(t *testing.T) {
	dir := t.TempDir()
	oldKey, key := csrtest.Ed25519(), csrtest.Ed25519()
	var certs []byte
	boundaries := map[int]int{} // certificates, by length
	for i, c := range []*x509.Certificate{caCertificate(t, "new", key, nil, nil, nil), caCertificate(t, "old", oldKey, nil, nil, nil)} {
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		boundaries[len(certs)] = i + 1
		boundaries[len(certs)-1] = i + 1 // without the last newline
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))})
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	load := func(certs, key []byte) (*signer.CA, error) {
		t.Helper()
		if err := os.WriteFile(certFile, certs, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(keyFile, key, 0o600); err != nil {
			t.Fatal(err)
		}
		return signer.LoadCA(certFile, keyFile)
	}
	for end := range len(certs) {
		want := boundaries[end]
		// LoadCA does not detect an incomplete "-----BEGIN " of the next certificate.
		for begun := 1; begun < len("-----BEGIN ") && want == 0; begun++ {
			want = boundaries[end-begun]
		}
		ca, err := load(certs[:end], keyPEM)
		if (err == nil) != (want > 0) || err == nil && len(ca.Bundle()) != want {
			t.Errorf("%d of %d bytes of the certificates: %v, want %d certificates (0: an error)", end, len(certs), err, want)
		}
	}
	for end := range len(keyPEM) - 1 {
		if _, err := load(certs, keyPEM[:end]); err == nil {
			t.Errorf("%d of %d bytes of the key: got no error", end, len(keyPEM))
		} else if len(err.Error()) > 600 || end > 80 && bytes.Contains([]byte(err.Error()), keyPEM[60:80]) {
			t.Errorf("error shows the key or too much: %v", err)
		}
	}
	if ca, err := load(certs, keyPEM); err != nil || ca.Certificate().Subject.CommonName != "new" || len(ca.Bundle()) != 2 {
		t.Errorf("complete files: got %v, %v", ca, err)
	}
}
