package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// selfSigned returns a self-signed certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T, name string) (certPEM, keyPEM []byte) {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert := must.Value(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	der := must.Value(x509.MarshalECPrivateKey(key))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// TestServingCertificateFollowsItsFiles replaces the files of the serving certificate. It catches a new pair that needs a
// restart, a certificate that kubejoin serves without the matching key, and open connections that break.
func TestServingCertificateFollowsItsFiles(t *testing.T) {
	harness.Parallel(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	cert, key := selfSigned(t, "first")
	harness.ReplaceFile(t, certFile, cert)
	harness.ReplaceFile(t, keyFile, key)
	data := filepath.Join(dir, "data")
	p := harness.Serve(t, dir, certFile, filepath.Join(data, "curlrc"), "--data-dir="+data, "--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile)
	checkServed := func(name string) error {
		c, err := tls.Dial("tcp", p.Endpoint, &tls.Config{InsecureSkipVerify: true}) // the test compares the certificate itself
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if got := c.ConnectionState().PeerCertificates[0].Subject.CommonName; got != name {
			return fmt.Errorf("kubejoin serves %q, want %q", got, name)
		}
		return nil
	}
	must.OK(t, checkServed("first"))
	cert, key = selfSigned(t, "second")
	harness.ReplaceFile(t, certFile, cert)
	harness.Wait(t, "/readyz to report a certificate without its key", func() error {
		if _, body, err := p.Get(t.Context(), "/readyz", ""); err != nil || !strings.Contains(body, "[-]serving-certificate") {
			return fmt.Errorf("/readyz returns %q, %v", body, err) // this connection is older than the change
		}
		return checkServed("first")
	})
	harness.ReplaceFile(t, keyFile, key)
	harness.Wait(t, "the new certificate", func() error { return checkServed("second") })
	harness.Wait(t, "/readyz after the new certificate", func() error {
		if status, body, err := p.Get(t.Context(), "/readyz", ""); err != nil || status != 200 {
			return fmt.Errorf("%d %s %v", status, body, err)
		}
		return nil
	})
}

// TestTLS12NeedsFlagAndSecureCiphers catches TLS 1.2 without --tls-min-version=VersionTLS12, and TLS 1.2 with insecure
// cipher suites.
func TestTLS12NeedsFlagAndSecureCiphers(t *testing.T) {
	harness.Parallel(t)
	for _, test := range []struct {
		flag, max, ciphers string
		succeeds           bool
	}{
		{"VersionTLS13", "1.3", "", true},
		{"VersionTLS13", "1.2", "", false},
		{"VersionTLS12", "1.3", "", true},
		{"VersionTLS12", "1.2", "", true},
		{"VersionTLS12", "1.2", "ECDHE-ECDSA-AES256-SHA384:ECDHE-ECDSA-AES128-SHA:AES128-GCM-SHA256", false},
	} {
		t.Run(strings.TrimSpace(test.flag+" "+test.max+" "+test.ciphers), func(t *testing.T) {
			t.Parallel()
			dataDir := filepath.Join(t.TempDir(), "data")
			p := harness.ServeStandalone(t, dataDir, "--tls-min-version="+test.flag)
			p.Secrets.Add("the operator", p.Bearer(t))
			args := []string{"--silent", "--show-error", "--cacert", filepath.Join(dataDir, "ca.crt"), "--tls-max", test.max, "--write-out", " %{http_version}"}
			if test.ciphers != "" {
				args = append(args, "--ciphers", test.ciphers)
			}
			curl := exec.CommandContext(t.Context(), "curl", append(args, "https://"+p.Endpoint+"/healthz")...)
			var stderr bytes.Buffer
			curl.Stderr, curl.Env = &stderr, append(os.Environ(), "HOME=/nonexistent")
			answer, err := curl.Output()
			if (err == nil) != test.succeeds || test.succeeds && string(answer) != "ok\n 2" {
				t.Errorf("got %q, %v %s, want success: %v", answer, err, &stderr, test.succeeds)
			}
			// curl exits with 35 if the TLS handshake fails.
			if !test.succeeds && curl.ProcessState.ExitCode() != 35 {
				t.Errorf("curl exits with %d, want 35: %s", curl.ProcessState.ExitCode(), &stderr)
			}
		})
	}
}
