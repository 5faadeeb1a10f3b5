package test

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
)

// selfSigned is a certificate for 127.0.0.1, and its key.
func selfSigned(t *testing.T, name string) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

// Files of the serving certificate that are replaced are served without a restart, to new connections; half
// of a pair is not, and /readyz says so. Requests on connections that are there go on.
func TestServingCertificateFollowsItsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	cert, key := selfSigned(t, "first")
	replace(t, certFile, cert)
	replace(t, keyFile, key)
	data := filepath.Join(dir, "data")
	p := serve(t, dir, certFile, filepath.Join(data, "curlrc"), "--data-dir="+data, "--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile)
	served := func(name string) error {
		c, err := tls.Dial("tcp", p.address, &tls.Config{InsecureSkipVerify: true}) // it is looked at here
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		if got := c.ConnectionState().PeerCertificates[0].Subject.CommonName; got != name {
			return fmt.Errorf("serves %q, want %q", got, name)
		}
		return nil
	}
	if err := served("first"); err != nil {
		t.Fatal(err)
	}
	cert, key = selfSigned(t, "second")
	replace(t, certFile, cert)
	wait(t, "half of a pair", func() error {
		if _, body, err := p.get(t.Context(), "/readyz", ""); err != nil || !strings.Contains(body, "[-]serving-certificate") {
			return fmt.Errorf("/readyz says %q, %v", body, err) // on a connection from before
		}
		return served("first")
	})
	replace(t, keyFile, key)
	wait(t, "the new certificate", func() error { return served("second") })
	if status, body, err := p.get(t.Context(), "/readyz", ""); err != nil || status != 200 {
		t.Errorf("/readyz: %d %s %v", status, body, err)
	}
}

// TLS 1.2 is spoken where the flag says so, and there only with what is good in it.
func TestTLSMinVersion(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		flag, max, ciphers string
		good               bool
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
			p := standalone(t, dataDir, "--tls-min-version="+test.flag)
			p.secrets.add("the operator", p.bearer(t))
			args := []string{"--silent", "--show-error", "--cacert", filepath.Join(dataDir, "ca.crt"), "--tls-max", test.max, "--write-out", " %{http_version}"}
			if test.ciphers != "" {
				args = append(args, "--ciphers", test.ciphers)
			}
			curl := exec.CommandContext(t.Context(), "curl", append(args, "https://"+p.address+"/healthz")...)
			var stderr bytes.Buffer
			curl.Stderr, curl.Env = &stderr, append(os.Environ(), "HOME=/nonexistent")
			answer, err := curl.Output()
			if (err == nil) != test.good || test.good && string(answer) != "ok\n 2" {
				t.Errorf("%q %v %s, want success: %v", answer, err, &stderr, test.good)
			}
			// 35 is curl's for a handshake that failed.
			if !test.good && curl.ProcessState.ExitCode() != 35 {
				t.Errorf("curl ends with %d: %s", curl.ProcessState.ExitCode(), &stderr)
			}
		})
	}
}
