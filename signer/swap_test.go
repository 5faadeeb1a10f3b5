package signer_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// While the CA is replaced all the time, each certificate must come from one CA: its issuer signed it, it
// expires with that CA, and the response has the intermediate of that CA.
func TestCertificateComesFromOneCA(t *testing.T) {
	const n = 3
	byName := map[string]*x509.Certificate{}
	var cas [n]*signer.CA
	for i := range cas {
		key, root := csrtest.NewKey(), csrtest.NewKey()
		cert := caCertificate(t, fmt.Sprint("ca-", i), key, caCertificate(t, "root", root, nil, nil, nil), root, func(c *x509.Certificate) {
			c.NotAfter = time.Now().Add(time.Duration(i+1) * time.Hour)
		})
		cas[i], byName[cert.Subject.CommonName] = must.Get(signer.NewCA([]*x509.Certificate{cert}, key)), cert
	}
	// Each call returns another CA.
	asked := 0
	replaced := func() (*signer.CA, error) { asked++; return cas[asked%n], nil }
	authority := signer.Authority{Signers: signer.FixedSigners(must.Get(signer.KubernetesSigners(replaced, 365*24*time.Hour)))}
	request := kubernetesRequest(t, certificates.KubeAPIServerClientKubeletSignerName, nil)
	for range 2 * n {
		chain := must.Value(authority.Sign(t.Context(), request))(t)
		certs := decode(t, chain)
		ca := byName[certs[0].Issuer.CommonName]
		if ca == nil || len(certs) != 2 || !certs[1].Equal(ca) || !certs[0].NotAfter.Equal(ca.NotAfter) {
			t.Fatalf("issued by %s until %s with %d certificates, want those of one CA", certs[0].Issuer, certs[0].NotAfter, len(certs))
		}
		if err := certs[0].CheckSignatureFrom(ca); err != nil {
			t.Errorf("signature is not by issuer %s: %v", certs[0].Issuer, err)
		}
	}
}

// During a rotation, other goroutines replace the CA and the limit of lifetimes while certificates are made. For each
// certificate, key, subject, issuer, chain, lifetime, usage, and the CA in its entry of the record must be right.
// KUBEJOIN_TEST_SIGNATURES is the number of certificates.
func TestCertificatesAreRightWhileCAIsReplaced(t *testing.T) {
	count := must.Value(strconv.Atoi(cmp.Or(os.Getenv("KUBEJOIN_TEST_SIGNATURES"), "2000")))(t)
	const n, workers = 4, 8
	byPin := map[string]*signer.CA{}
	most := map[string]time.Duration{} // by the common name of the CA
	var cas [n]*signer.CA
	for i := range cas {
		key, root := csrtest.NewKey(), csrtest.NewKey()
		certs := []*x509.Certificate{caCertificate(t, fmt.Sprint("ca-", i), key, nil, nil, nil)}
		if i%2 == 1 { // a CA below a root
			certs = []*x509.Certificate{caCertificate(t, fmt.Sprint("ca-", i), key, caCertificate(t, "root", root, nil, nil, nil), root, nil)}
		}
		for j := range i { // old CAs in its bundle
			certs = append(certs, cas[j].Certificate())
		}
		cas[i] = must.Get(signer.NewCA(certs, key))
		byPin[clusterinfo.Pin(certs[0])], most[certs[0].Subject.CommonName] = cas[i], time.Duration(i)*time.Hour // the first CA has no limit
	}
	var now atomic.Pointer[signer.CA]
	now.Store(cas[0])
	log := &entries{}
	const normal = 7 * time.Hour
	at := time.Now().Truncate(time.Second)
	authority := &signer.Authority{
		Signers:     signer.FixedSigners(must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return now.Load(), nil }, normal))),
		MaxLifetime: func(ca *x509.Certificate, _ string) time.Duration { return most[ca.Subject.CommonName] },
		Record:      log, Unthrottled: true,
		Now: func() time.Time { return at },
	}
	ctx, stop := context.WithCancel(t.Context())
	var swapping, signing sync.WaitGroup
	defer swapping.Wait()
	defer stop()
	swapping.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			now.Store(cas[i%n])
			runtime.Gosched()
		}
	})
	var made atomic.Int64
	used := make([]atomic.Int64, n)
	wrong := make(chan string, workers)
	for range workers {
		var requests []approval.Request
		for _, name := range kubernetesSignerNames[:2] {
			requests = append(requests, kubernetesRequest(t, name, csrtest.NewKey()))
		}
		signing.Go(func() {
			for i := made.Add(1); i <= int64(count); i = made.Add(1) {
				r := requests[i%2]
				answer, err := authority.Sign(t.Context(), r)
				if err != nil {
					wrong <- err.Error()
					return
				}
				block, rest := pem.Decode(answer)
				cert := must.Get(x509.ParseCertificate(block.Bytes))
				var number int
				if _, err := fmt.Sscanf(cert.Issuer.CommonName, "ca-%d", &number); err != nil {
					wrong <- "issuer " + cert.Issuer.String()
					return
				}
				ca := cas[number].Certificate()
				used[number].Add(1)
				want := normal
				if limit := most[ca.Subject.CommonName]; limit > 0 {
					want = limit
				}
				var chain []byte
				if number%2 == 1 {
					chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
				}
				use := x509.ExtKeyUsageClientAuth
				if r.SignerName == certificates.KubeletServingSignerName {
					use = x509.ExtKeyUsageServerAuth
				}
				switch {
				case cert.CheckSignatureFrom(ca) != nil:
					wrong <- "signed by another CA than " + cert.Issuer.String()
				case !bytes.Equal(cert.RawSubjectPublicKeyInfo, r.CSR.RawSubjectPublicKeyInfo):
					wrong <- "another key"
				case !bytes.Equal(cert.RawSubject, r.CSR.RawSubject):
					wrong <- "subject " + cert.Subject.String()
				case len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != use:
					wrong <- fmt.Sprint("usages ", cert.ExtKeyUsage)
				case !cert.NotAfter.Equal(at.Add(want)) || !cert.NotBefore.Equal(at.Add(-5*time.Minute)):
					wrong <- fmt.Sprintf("CA %d: from %s to %s, want a lifetime of %s", number, cert.NotBefore, cert.NotAfter, want)
				case !bytes.Equal(rest, chain):
					wrong <- fmt.Sprintf("CA %d: chain %q", number, rest)
				default:
					continue
				}
				return
			}
		})
	}
	signing.Wait()
	close(wrong)
	for text := range wrong {
		t.Error(text)
	}
	if len(log.all) != count && !t.Failed() {
		t.Fatalf("got %d entries, want %d", len(log.all), count)
	}
	for _, e := range log.all {
		block, _ := pem.Decode([]byte(e.Certificate))
		cert := must.Value(x509.ParseCertificate(block.Bytes))(t)
		if ca := byPin[e.CA]; ca == nil || cert.CheckSignatureFrom(ca.Certificate()) != nil {
			t.Fatalf("the record names CA %q for a certificate of %s", e.CA, cert.Issuer)
		}
	}
	for i := range used {
		if used[i].Load() == 0 && !t.Failed() {
			t.Errorf("CA %d signed nothing, so this test shows nothing about it", i)
		}
	}
}

// LoadCA refuses truncated files. It cannot detect a cut between two certificates. It then loads the remaining
// certificates.
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
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must.Get(x509.MarshalPKCS8PrivateKey(key))})
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	load := func(certs, key []byte) (*signer.CA, error) {
		t.Helper()
		must.OK(t, os.WriteFile(certFile, certs, 0o600))
		must.OK(t, os.WriteFile(keyFile, key, 0o600))
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
