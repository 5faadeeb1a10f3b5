package ca

import (
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
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
)

// TestReportsUnusableCAFilesAndKeepsSigning replaces the CA files of a running kubejoin with unusable ones. It catches
// a kubejoin that stops signing, or a log, metric, /readyz or Event that does not report the problem.
func TestReportsUnusableCAFilesAndKeepsSigning(t *testing.T) {
	harness.Parallel(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	s := harness.PrepareSite(t, cluster.Options{})
	goodCert, goodKey := harness.ReadFile(t, s.CAFile()), harness.ReadFile(t, s.CAKeyFile())
	write := func(cert, key []byte) {
		t.Helper()
		harness.ReplaceFile(t, certFile, cert)
		harness.ReplaceFile(t, keyFile, key)
	}
	write(goodCert, goodKey)
	s.Start(t, "--cluster-signing-cert-file="+certFile, "--cluster-signing-key-file="+keyFile)
	// The client cannot verify the serving certificate, which expires during this test.
	s.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	asking := harness.AsMachine(t, s.Cluster)
	n := 0
	ask := func() string {
		t.Helper()
		n++
		name := fmt.Sprint("csr-", n)
		must.OK(t, harness.CreateRequest(t.Context(), asking, name, certificates.KubeAPIServerClientKubeletSignerName, fmt.Sprint("worker-", n)))
		return name
	}
	issue := func() *x509.Certificate {
		t.Helper()
		leaf := s.WaitIssued(t, ask())
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Error(err)
		}
		return leaf
	}
	const inUse = `kubejoin_files_in_use{files="ca"}`
	issue()

	// A file with two certificates. Only the second matches the key.
	other, otherKey := makeCA(t, "other", time.Now().Add(24*time.Hour))
	write(slices.Concat(other, goodCert), goodKey)
	waitReported(t, s, "CA replaced", "kubejoin_ca_certificates 2", "ok", "CAReplaced 2 certificates are trusted")
	issue()

	for _, test := range []struct {
		name, want string
		cert, key  []byte
	}{
		{"half-written", "damaged or truncated", slices.Concat(goodCert, other[:len(other)/2]), goodKey},
		{"certificate without its key", "matches none of the 1 certificates", other, goodKey},
		{"key without its certificate", "matches none of the 1 certificates", goodCert, otherKey},
		{"unreadable", "no such file", goodCert, nil},
		{"no CA", "empty, want PEM", nil, goodKey},
		{"expired", "the CA has expired", reissue(t, goodCert, goodKey, time.Now().Add(-time.Minute)), goodKey},
	} {
		write(test.cert, test.key)
		if test.key == nil {
			must.OK(t, os.Remove(keyFile))
		}
		t.Log(test.name)
		waitReported(t, s, test.want, inUse+" 0", "cluster-ca failed: the new CA files cannot be used", "CAFilesUnusable "+test.want)
		issue() // kubejoin still signs with the last valid CA
	}
	write(goodCert, goodKey)
	waitReported(t, s, "files are valid again", inUse+" 1", "ok", "CAReplaced 1 certificates are trusted")

	// A CA that expires before the end of the certificates' normal lifetime.
	end := time.Now().Add(30 * 24 * time.Hour).Truncate(time.Second)
	write(reissue(t, goodCert, goodKey, end), goodKey)
	until := end.UTC().Format(time.RFC3339)
	waitReported(t, s, "CA expires before the certificates that it signs, shortening them", fmt.Sprintf("kubejoin_ca_not_after_timestamp_seconds %g", float64(end.Unix())),
		"[+]cluster-ca ok: the CA expires at "+until, "CAShortensCertificates "+until)
	if leaf := issue(); !leaf.NotAfter.Equal(end) {
		t.Errorf("the certificate expires at %s, want the expiry of the CA, %s", leaf.NotAfter, end)
	}

	// A CA that expires while it is in use.
	end = time.Now().Add(25 * time.Second).Truncate(time.Second) // kubejoin needs 4 s to notice the files
	until = end.UTC().Format(time.RFC3339)
	write(reissue(t, goodCert, goodKey, end), goodKey)
	waitReported(t, s, "expires="+end.Format("2006-01-02T15:04:05"), fmt.Sprintf("kubejoin_ca_not_after_timestamp_seconds %g", float64(end.Unix())), "cluster-ca", "CAReplaced "+until)
	waitReported(t, s, "CA expired, cannot sign", inUse+" 1", "cluster-ca failed: the CA expired at "+until, "CAExpired "+until)
	waiting := ask()
	waitReported(t, s, "will be retried", `kubejoin_csr_sign_failures_total{reason="SigningFailed",signer="kubernetes.io/kube-apiserver-client-kubelet"}`,
		"cluster-ca failed", "SigningFailed the CA has expired")
	write(goodCert, goodKey)
	s.WaitIssued(t, waiting)
	waitReported(t, s, "CA replaced", inUse+" 1", "ok", "CAReplaced 1 certificates are trusted")
}

// waitReported waits until kubejoin reports something in every place where operators look. log is a text in the log, metric
// the prefix of a metric, and ready a text in /readyz?verbose ("ok" means ready). event is the reason of an Event and a
// part of its message.
func waitReported(t *testing.T, s *harness.Site, log, metric, ready, event string) {
	t.Helper()
	harness.Wait(t, "log, metric, /readyz and Event for "+event, func() error {
		if !strings.Contains(s.Log(), log) {
			return fmt.Errorf("the log does not contain %q", log)
		}
		_, metrics, err := s.Get(t.Context(), "/metrics", s.Bearer(t))
		if err != nil || !strings.Contains(metrics, "\n"+metric) {
			return fmt.Errorf("no metric %s, %v", metric, err)
		}
		status, checks, err := s.Get(t.Context(), "/readyz?verbose", "")
		if ready == "ok" {
			ready = "readyz check passed"
		}
		if err != nil || !strings.Contains(checks, ready) || (status != http.StatusOK) != strings.Contains(ready, " failed") && ready != "cluster-ca" {
			return fmt.Errorf("/readyz returns %d %s, %v; want %q", status, checks, err, ready)
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

// TestStandaloneCARotationKeepsDiscoveryWorking replaces the CA of a standalone kubejoin step by step. It catches a step
// after which machines cannot discover the cluster with a new join command.
func TestStandaloneCARotationKeepsDiscoveryWorking(t *testing.T) {
	harness.Parallel(t)
	dataDir := filepath.Join(t.TempDir(), "data")
	p := harness.ServeStandalone(t, dataDir)
	file := filepath.Join(dataDir, "ca.pem")
	before := must.Value(signer.LoadCA(file, file))(t)
	after := must.Value(signer.GenerateCA("kubernetes", time.Now(), 365*24*time.Hour))(t)
	oldCert, oldKey := encodeCA(t, before)
	newCert, newKey := encodeCA(t, after)
	args, token := p.JoinArgs(t, "")
	oldPins := pins(args)

	for _, step := range []struct {
		what    string
		content []byte
		signs   *signer.CA
		trusted []*x509.Certificate
	}{
		{"the new CA is trusted", slices.Concat(oldCert, newCert, oldKey), before, []*x509.Certificate{before.Certificate(), after.Certificate()}},
		{"the new CA signs", slices.Concat(newCert, oldCert, newKey), after, []*x509.Certificate{after.Certificate(), before.Certificate()}},
		{"the old CA is removed", slices.Concat(newCert, newKey), after, []*x509.Certificate{after.Certificate()}},
	} {
		harness.ReplaceFile(t, file, step.content)
		want := clusterinfo.Pins(step.trusted)
		harness.Wait(t, step.what, func() error {
			line, err := p.JoinCommand(t, "") // curl -K curlrc also needs the new ca.crt
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
		// kubejoin signs the current cluster-info with a token from before the rotation.
		found, err := clusterinfo.Discover(t.Context(), p.Endpoint, token, want)
		if err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if len(found.CAs) != len(step.trusted) {
			t.Errorf("%s: %d CAs discovered, want %d", step.what, len(found.CAs), len(step.trusted))
		}
		// kubejoin writes ca.crt and issues its serving certificate right after it has replaced cluster-info.
		roots := x509.NewCertPool()
		roots.AddCert(step.signs.Certificate())
		harness.Wait(t, step.what+": ca.crt and the serving certificate", func() error {
			if ca := harness.ReadFile(t, filepath.Join(dataDir, "ca.crt")); strings.Count(string(ca), "BEGIN CERTIFICATE") != len(step.trusted) {
				return fmt.Errorf("want %d certificates in ca.crt, got\n%s", len(step.trusted), ca)
			}
			c, err := tls.Dial("tcp", p.Endpoint, &tls.Config{RootCAs: roots})
			if err != nil {
				return err
			}
			return c.Close()
		})
	}
	if _, err := clusterinfo.Discover(t.Context(), p.Endpoint, token, oldPins); err == nil {
		t.Error("discovery succeeds with the pin of a removed CA, want an error")
	}

	// kubejoin ignores a truncated CA file and reports it.
	info := func() string {
		_, body, err := p.Get(t.Context(), harness.ClusterInfoPath, "")
		if err != nil {
			t.Fatal(err)
		}
		return body
	}
	pem := harness.ReadFile(t, filepath.Join(dataDir, "ca.crt"))
	p.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool(pem)}}}
	was := info()
	harness.ReplaceFile(t, file, slices.Concat(oldCert, oldKey[:len(oldKey)/2]))
	harness.Wait(t, "/readyz to report the truncated CA file", func() error {
		if status, body, err := p.Get(t.Context(), "/readyz", ""); err != nil || status != 503 || !strings.Contains(body, "cluster-ca") {
			return fmt.Errorf("%d %s %v", status, body, err)
		}
		return nil
	})
	if info() != was {
		t.Error("cluster-info changed after an unusable CA file, want it unchanged")
	}
	p.CheckSecrets(t)
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

func encodeCA(t *testing.T, ca *signer.CA) (cert, key []byte) {
	t.Helper()
	cert, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

// makeCA creates a CA.
func makeCA(t *testing.T, name string, end time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: end,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	keyDER := must.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
}

// reissue returns a CA certificate with the same name and key but another expiry time. Clients that trust the old
// certificate accept certificates from the new one.
func reissue(t *testing.T, certPEM, keyPEM []byte, end time.Time) []byte {
	t.Helper()
	pair := must.Value(tls.X509KeyPair(certPEM, keyPEM))(t)
	// It keeps the key identifier, because openssl finds the issuer by it, and another version of Go may compute another
	// identifier.
	template := *pair.Leaf
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), end
	der := must.Value(x509.CreateCertificate(rand.Reader, &template, pair.Leaf, pair.Leaf.PublicKey, pair.PrivateKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
