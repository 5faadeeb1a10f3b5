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

// swaps is how many certificates TestCertificateComesFromOneCA has issued.
const swaps = 100_000

// While the CA is replaced every millisecond each certificate is of one CA alone: the issuer
// that it names has signed it, its validity is within that CA's, and the intermediate sent along
// is that CA's.
func TestCertificateComesFromOneCA(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
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
	// Whoever asks for the CA first in a millisecond replaces it: a goroutine with a ticker gets
	// its turn every ten under load.
	var current atomic.Pointer[signer.CA]
	current.Store(cas[0])
	var last, swapped atomic.Int64
	replaced := func() (*signer.CA, error) {
		was, tick := last.Load(), time.Since(now).Milliseconds()
		if tick > was && last.CompareAndSwap(was, tick) {
			current.Store(cas[swapped.Add(1)%n])
		}
		return current.Load(), nil
	}
	authority := signer.Authority{Unthrottled: true, Signers: signer.FixedSigners(signer.KubernetesSigners(replaced, 365*24*time.Hour))}
	request := kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, csrtest.ECDSA(elliptic.P256()))

	var left atomic.Int64
	left.Store(swaps)
	var issued [n]atomic.Int64
	var working sync.WaitGroup
	for range 2 * runtime.GOMAXPROCS(0) {
		working.Go(func() {
			for left.Add(-1) >= 0 && !t.Failed() {
				chain, err := authority.Sign(t.Context(), request, nil)
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
					t.Errorf("issuer %s", leaf.Issuer)
					return
				}
				ca := cas[i].Certificate()
				if err := leaf.CheckSignatureFrom(ca); err != nil {
					t.Errorf("issuer %s has not signed: %v", leaf.Issuer, err)
				}
				if !leaf.NotAfter.Equal(ca.NotAfter) {
					t.Errorf("issued by %s to %s, want to %s", leaf.Issuer, leaf.NotAfter, ca.NotAfter)
				}
				if block, _ := pem.Decode(rest); block == nil || !bytes.Equal(block.Bytes, ca.Raw) {
					t.Errorf("issued by %s, with another intermediate", leaf.Issuer)
				}
				issued[i].Add(1)
			}
		})
	}
	working.Wait()
	// One in each millisecond that somebody asked in; a busy machine leaves many without.
	took := time.Since(now)
	if swapped.Load() < min(took.Milliseconds(), swaps)/4 {
		t.Errorf("%d swaps in %s", swapped.Load(), took)
	}
	var counts [n]int64
	for i := range issued {
		if counts[i] = issued[i].Load(); counts[i] == 0 {
			t.Errorf("CA %d has issued nothing: the swaps prove nothing", i)
		}
	}
	t.Logf("%d certificates, %d swaps in %s, by CA: %v", swaps, swapped.Load(), took, counts)
}

// Cut off anywhere, the files of a CA are refused, or are what they look like: an end between
// two certificates cannot be told.
func TestLoadCADetectsTruncatedFiles(t *testing.T) {
	dir := t.TempDir()
	oldKey, key := csrtest.Ed25519(), csrtest.Ed25519()
	var certs []byte
	boundaries := map[int]int{} // certificates, by length
	for i, c := range []*x509.Certificate{caCertificate(t, "new", key, nil, nil, nil), caCertificate(t, "old", oldKey, nil, nil, nil)} {
		certs = append(certs, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
		boundaries[len(certs)] = i + 1
		boundaries[len(certs)-1] = i + 1 // less a newline
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
		// The next certificate has not begun as far as can be seen.
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
			t.Errorf("%d of %d bytes of the key are taken", end, len(keyPEM))
		} else if len(err.Error()) > 600 || end > 80 && bytes.Contains([]byte(err.Error()), keyPEM[60:80]) {
			t.Errorf("error shows the key or too much: %v", err)
		}
	}
	if ca, err := load(certs, keyPEM); err != nil || ca.Certificate().Subject.CommonName != "new" || len(ca.Bundle()) != 2 {
		t.Errorf("whole: %v, %v", ca, err)
	}
}
