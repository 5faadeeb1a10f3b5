package test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
)

// TestCAFiles replaces the CA files of a running kubejoin by what they must not be, and looks
// at the log, a metric, /readyz and the Events for it.
func TestCAFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	s := prepare(t, cluster.Options{})
	goodCert, goodKey := readFile(t, s.CAFile()), readFile(t, s.CAKeyFile())
	write := func(cert, key []byte) {
		t.Helper()
		replace(t, certFile, cert)
		replace(t, keyFile, key)
	}
	write(goodCert, goodKey)
	s.start(t, "--cluster-signing-cert-file="+certFile, "--cluster-signing-key-file="+keyFile)
	// The serving certificate ends with the CA, here before its end even.
	s.http = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	asking := machine(t, s.Cluster)
	n := 0
	ask := func() string {
		t.Helper()
		n++
		name := fmt.Sprint("csr-", n)
		if err := request(t.Context(), asking, name, certificates.KubeAPIServerClientKubeletSignerName, fmt.Sprint("worker-", n)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	issue := func() *x509.Certificate {
		t.Helper()
		leaf := s.issued(t, ask())
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Error(err)
		}
		return leaf
	}
	const inUse = `kubejoin_files_in_use{files="ca"}`
	issue()

	// Two certificates, of which the second matches the key.
	other, otherKey := makeCA(t, "other", nil, time.Now().Add(24*time.Hour))
	write(slices.Concat(other, goodCert), goodKey)
	s.seen(t, "another CA signs, or is trusted, now", "kubejoin_ca_certificates 2", "ok", "CAReplaced 2 certificates are trusted")
	issue()

	for _, unusable := range []struct {
		what, says string
		cert, key  []byte
	}{
		{"half-written", "cut off", slices.Concat(goodCert, other[:len(other)/2]), goodKey},
		{"half of a pair", "matches none of the 1 certificates", other, goodKey},
		{"the other half", "matches none of the 1 certificates", goodCert, otherKey},
		{"unreadable", "no such file", goodCert, nil},
		{"no CA", "no certificate found", nil, goodKey},
		{"expired", "the CA has expired", reissue(t, goodCert, goodKey, time.Now().Add(-time.Minute)), goodKey},
	} {
		write(unusable.cert, unusable.key)
		if unusable.key == nil {
			if err := os.Remove(keyFile); err != nil {
				t.Fatal(err)
			}
		}
		t.Log(unusable.what)
		s.seen(t, unusable.says, inUse+" 0", "cluster-ca failed: the CA files have changed and cannot be used", "CAFilesUnusable "+unusable.says)
		issue() // by the last good one
	}
	write(goodCert, goodKey)
	s.seen(t, "files can be used again", inUse+" 1", "ok", "CAReplaced 1 certificates are trusted")

	// A CA that ends before the certificates would.
	end := time.Now().Add(30 * 24 * time.Hour).Truncate(time.Second)
	write(reissue(t, goodCert, goodKey, end), goodKey)
	until := end.UTC().Format(time.RFC3339)
	s.seen(t, "certificates are shortened to the end of the CA", fmt.Sprintf("kubejoin_ca_not_after_timestamp_seconds %g", float64(end.Unix())),
		"[+]cluster-ca ok: the CA expires at "+until, "CAShortensCertificates "+until)
	if leaf := issue(); !leaf.NotAfter.Equal(end) {
		t.Errorf("issued until %s, the CA ends at %s", leaf.NotAfter, end)
	}

	// A CA that expires while it is in use.
	end = time.Now().Add(12 * time.Second).Truncate(time.Second)
	until = end.UTC().Format(time.RFC3339)
	write(reissue(t, goodCert, goodKey, end), goodKey)
	s.seen(t, "expires="+end.Format("2006-01-02T15:04:05"), fmt.Sprintf("kubejoin_ca_not_after_timestamp_seconds %g", float64(end.Unix())), "cluster-ca", "CAReplaced "+until)
	s.seen(t, "the CA has expired and nothing can be signed", inUse+" 1", "cluster-ca failed: the CA expired at "+until, "CAExpired "+until)
	waiting := ask()
	s.seen(t, "will be tried again", `kubejoin_csr_sign_failures_total{reason="SigningFailed",signer="kubernetes.io/kube-apiserver-client-kubelet"}`,
		"cluster-ca failed", "SigningFailed the CA has expired")
	write(goodCert, goodKey)
	s.issued(t, waiting)
	s.seen(t, "another CA signs, or is trusted, now", inUse+" 1", "ok", "CAReplaced 1 certificates are trusted")
}

// seen waits until something can be seen in all the places where an operator may look: a text
// in the log, the beginning of a metric, a text in the answer of /readyz?verbose ("ok" is that
// it is ready), and an Event of a reason with a text in its message.
func (s *site) seen(t *testing.T, log, metric, ready, event string) {
	t.Helper()
	wait(t, "what "+event+" is about", func() error {
		if !strings.Contains(s.Log(), log) {
			return fmt.Errorf("the log does not say %q", log)
		}
		_, metrics, err := s.get(t.Context(), "/metrics", s.bearer(t))
		if err != nil || !strings.Contains(metrics, "\n"+metric) {
			return fmt.Errorf("no metric %s, %v", metric, err)
		}
		status, checks, err := s.get(t.Context(), "/readyz?verbose", "")
		if ready == "ok" {
			ready = "readyz check passed"
		}
		if err != nil || !strings.Contains(checks, ready) || (status != http.StatusOK) != strings.Contains(ready, " failed") && ready != "cluster-ca" {
			return fmt.Errorf("/readyz answers %d %s, %v; want %q", status, checks, err, ready)
		}
		reason, message, _ := strings.Cut(event, " ")
		events, err := s.Kubectl(t.Context(), "get", "events", "-A", "-o", `jsonpath={range .items[*]}{.reason}{"\t"}{.message}{"\n"}{end}`)
		for line := range strings.Lines(events) {
			if r, m, _ := strings.Cut(line, "\t"); r == reason && strings.Contains(m, message) {
				return nil
			}
		}
		return fmt.Errorf("no Event %s, %v:\n%s", event, err, events)
	})
}

// A standalone kubejoin's CA is replaced step by step: what it says of the cluster follows, and
// at every step those who have just asked can discover it.
func TestStandaloneCARotation(t *testing.T) {
	t.Parallel()
	dataDir := filepath.Join(t.TempDir(), "data")
	p := standalone(t, dataDir)
	file := filepath.Join(dataDir, "ca.pem")
	before, err := signer.LoadCA(file, file)
	if err != nil {
		t.Fatal(err)
	}
	after, err := signer.GenerateCA("kubernetes", time.Now(), 365*24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	oldCert, oldKey := encodeCA(t, before)
	newCert, newKey := encodeCA(t, after)
	args, token := p.join(t, "")
	oldPins := pins(args)

	for _, step := range []struct {
		what    string
		content []byte
		signs   *signer.CA
		trusted []*x509.Certificate
	}{
		{"the new one is trusted", slices.Concat(oldCert, newCert, oldKey), before, []*x509.Certificate{before.Certificate(), after.Certificate()}},
		{"the new one signs", slices.Concat(newCert, oldCert, newKey), after, []*x509.Certificate{after.Certificate(), before.Certificate()}},
		{"the old one is gone", slices.Concat(newCert, newKey), after, []*x509.Certificate{after.Certificate()}},
	} {
		replace(t, file, step.content)
		want := clusterinfo.Pins(step.trusted)
		wait(t, step.what, func() error {
			line, err := p.joinCommand(t, "") // curl -K curlrc: ca.crt follows, too
			if err != nil {
				return err
			}
			if args, err = cluster.JoinArgs(line); err != nil {
				return err
			}
			if got := pins(args); !slices.Equal(got, want) {
				return fmt.Errorf("pins %q, want %q", got, want)
			}
			return nil
		})
		// A token from before everything is signed with what is true now.
		found, err := clusterinfo.Discover(t.Context(), p.address, token, want)
		if err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if len(found.CAs) != len(step.trusted) {
			t.Errorf("%s: %d CAs discovered, want %d", step.what, len(found.CAs), len(step.trusted))
		}
		if ca := readFile(t, filepath.Join(dataDir, "ca.crt")); strings.Count(string(ca), "BEGIN CERTIFICATE") != len(step.trusted) {
			t.Errorf("%s: ca.crt is\n%s", step.what, ca)
		}
		roots := x509.NewCertPool()
		roots.AddCert(step.signs.Certificate())
		c, err := tls.Dial("tcp", p.address, &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatalf("%s: the serving certificate: %v", step.what, err)
		}
		_ = c.Close()
	}
	if _, err := clusterinfo.Discover(t.Context(), p.address, token, oldPins); err == nil {
		t.Error("discovery passes with the pin of a CA that is gone")
	}

	// One that is cut off changes nothing, and is said to be.
	info := func() string {
		_, body, err := p.get(t.Context(), "/api/v1/namespaces/kube-public/configmaps/cluster-info", "")
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	pem := readFile(t, filepath.Join(dataDir, "ca.crt"))
	p.http = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool(pem)}}}
	was := info()
	replace(t, file, slices.Concat(oldCert, oldKey[:len(oldKey)/2]))
	wait(t, "a cut file to be noticed", func() error {
		if status, body, err := p.get(t.Context(), "/readyz", ""); err != nil || status != 503 || !strings.Contains(body, "cluster-ca") {
			return fmt.Errorf("%d %s %v", status, body, err)
		}
		return nil
	})
	if info() != was {
		t.Error("cluster-info has changed for a CA file that cannot be used")
	}
	p.checkSecrets(t)
}

func pins(args []string) []string {
	var list []string
	for i, arg := range args {
		if arg == "--discovery-token-ca-cert-hash" {
			list = append(list, args[i+1])
		}
	}
	return list
}

func pool(pem []byte) *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(pem)
	return p
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// replace writes a file as careful tools do.
func replace(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func encodeCA(t *testing.T, ca *signer.CA) (cert, key []byte) {
	t.Helper()
	cert, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// makeCA makes a CA with this key, or a new one if it is nil.
func makeCA(t *testing.T, name string, key crypto.Signer, end time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	if key == nil {
		var err error
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// reissue gives the certificate of a CA that has the name and the key of another one, so that
// who trusts the one trusts what the other signs.
func reissue(t *testing.T, certPEM, keyPEM []byte, end time.Time) []byte {
	t.Helper()
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	again, _ := makeCA(t, pair.Leaf.Subject.CommonName, pair.PrivateKey.(crypto.Signer), end)
	return again
}
