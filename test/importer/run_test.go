package importer_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
)

// A site contains the input files of the programs, like those that `make run` creates in kubejoin-data.
type site struct {
	ca                                     *signer.CA
	bearer                                 string
	caFile, caCert, operators, curlrc, dir string
}

func newSite(t *testing.T) site {
	t.Helper()
	dir := t.TempDir()
	s := site{bearer: rand.Text(), dir: dir, caFile: filepath.Join(dir, "ca.pem"), caCert: filepath.Join(dir, "ca.crt"), operators: filepath.Join(dir, "operators.csv"), curlrc: filepath.Join(dir, "curlrc")}
	var err error
	s.ca = the(signer.GenerateCA("kubernetes", time.Now(), time.Hour*24*365))(t)
	cert, key, err := s.ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{
		s.caCert:    cert,
		s.caFile:    slices.Concat(cert, key),
		s.operators: []byte(s.bearer + `,ada,,"kubejoin:admins"` + "\n"),
		s.curlrc:    []byte("cacert = \"" + s.caCert + "\"\nheader = \"Authorization: Bearer " + s.bearer + "\"\nsilent\nfail-with-body\n"),
	} {
		must(t, os.WriteFile(file, content, 0o600))
	}
	return s
}

// client returns a client that trusts only the CA.
func (s site) client(t *testing.T) *http.Client {
	roots := x509.NewCertPool()
	roots.AddCert(s.ca.Certificate())
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// run runs a program until it exits.
func run(t *testing.T, stdin []byte, program string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, diagnostics strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	err = cmd.Run()
	return out.String(), diagnostics.String(), err
}

// start starts a program. The returned function stops it, fails the test if it exits with an error, and returns its
// log.
func start(t *testing.T, program string, args ...string) (stop func() string) {
	t.Helper()
	process := the(cluster.StartProcess(filepath.Base(program), filepath.Join(t.TempDir(), "log"), exec.Command(program, args...)))(t)
	t.Cleanup(func() {
		process.Stop(0)
		if t.Failed() {
			t.Logf("%s:\n%s", process.Name, process.Log())
		}
	})
	return func() string {
		t.Helper()
		process.Stop(time.Minute)
		if err := process.Err(); err != nil {
			t.Errorf("got %v after a stop, want exit code 0", err)
		}
		return process.Log()
	}
}

// parseLine reads a join command as kubeadm does.
func parseLine(t *testing.T, line string) clusterinfo.Discovery {
	t.Helper()
	args := the(cluster.JoinArgs(line))(t)
	d := clusterinfo.Discovery{Endpoint: args[0], Retry: 50 * time.Millisecond}
	flags := flag.NewFlagSet("kubeadm join", flag.ContinueOnError)
	flags.Func("token", "", func(s string) (err error) { d.Token, err = tokens.Parse(s); return err })
	flags.Func("discovery-token-ca-cert-hash", "", func(s string) error { d.Pins = append(d.Pins, s); return nil })
	if err := flags.Parse(args[1:]); err != nil || flags.NArg() > 0 {
		t.Fatalf("got a join command with %d more words, want none: %v", flags.NArg(), err)
	}
	return d
}

// discover runs discovery as a joining node does. It retries until the server is available.
func discover(t *testing.T, d clusterinfo.Discovery) clusterinfo.Discovered {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	found := the(d.Run(ctx))(t)
	return found
}

func (b build) testMintServeDiscover(t *testing.T) {
	s := newSite(t)
	listen := freeAddress(t)
	const apiServer = "https://api.example.com:6443"
	store := filepath.Join(s.dir, "tokens.db")
	mint := []string{"-store", store, "-ca", s.caCert, "-api-server", apiServer, "-endpoint", listen, "-node", "worker-3", "-ttl", "1h"}

	line, stderr, err := run(t, nil, b.program("mint-token"), mint...)
	if err != nil {
		t.Fatalf("mint-token: %v\n%s", err, stderr)
	}
	stop := start(t, b.program("embed-server"), "-listen", listen, "-api-server", apiServer, "-store", store, "-ca", s.caFile, "-operators", s.operators)
	minted := parseLine(t, line)
	found := discover(t, minted)
	if found.Server != apiServer || len(found.CAs) != 1 || !found.CAs[0].Equal(s.ca.Certificate()) {
		t.Errorf("discovered %s and %d CAs, want %s and the CA", found.Server, len(found.CAs), apiServer)
	}

	web := s.client(t)
	for _, test := range []struct {
		method, path, bearer string
		status               int
		want                 string
	}{
		{"GET", "/", "", 200, "an installer's own page\n"},
		{"GET", "/other", "", 404, "404 page not found\n"}, // response of the mux, not of kubejoin
		{"POST", "/v1/token/print-join-command", "", 401, ""},
		{"POST", "/v1/token/print-join-command", s.bearer, 200, "kubeadm join " + listen + " --token "},
	} {
		r := the(http.NewRequestWithContext(t.Context(), test.method, "https://"+listen+test.path, nil))(t)
		if test.bearer != "" {
			r.Header.Set("Authorization", "Bearer "+test.bearer)
		}
		answer := the(web.Do(r))(t)
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != test.status || !strings.HasPrefix(string(body), test.want) {
			t.Errorf("%s %s: %d %v, want %d and %q", test.method, test.path, answer.StatusCode, err, test.status, test.want)
		}
		if test.bearer != "" {
			minted := parseLine(t, string(body))
			discover(t, minted)
		}
	}

	t.Run("remote token", func(t *testing.T) { b.testRemoteToken(t, s, listen, minted.Token) })
	t.Run("curl", func(t *testing.T) { testCurl(t, s, listen, found) })
	if out, stderr, err := run(t, nil, b.program("mint-token"), mint...); err == nil || out != "" || !strings.Contains(stderr, "file is in use by ") {
		t.Errorf("mint-token while a server uses the file: got %v, %q, want file is in use", err, stderr)
	}
	log := stop()
	for _, secret := range []string{minted.Token.RevealSecret(), s.bearer} {
		if strings.Contains(log, secret) {
			t.Error("the server's log contains a secret")
		}
	}
}

// testRemoteToken creates a token over HTTPS, in addition to the token minted in the file store.
func (b build) testRemoteToken(t *testing.T, s site, listen string, minted tokens.Token) {
	args := []string{"-url", "https://" + listen, "-ca", s.caCert, "-node", "worker-7"}
	line, stderr, err := run(t, []byte(s.bearer+"\n"), b.program("remote-token"), args...)
	if err != nil {
		t.Fatalf("remote-token: %v\n%s", err, stderr)
	}
	made := parseLine(t, line)
	discover(t, made)
	c := client.Client{URL: "https://" + listen, Bearer: api.Secret(s.bearer), HTTP: s.client(t)}
	for token, node := range map[tokens.Token]string{minted: "worker-3", made.Token: "worker-7"} {
		got, err := c.GetToken(t.Context(), token.ID())
		if err != nil || got.MaxNodes != 1 || !slices.Equal(got.NodeNames, []string{node}) || got.Status != api.StatusActive {
			t.Errorf("token for %s: got %+v, %v, want an active one for this node only", node, got, err)
		}
	}

	wrong := rand.Text()
	for _, test := range []struct{ bearer, node, want string }{
		{wrong, "worker-7", "does not accept these credentials"},
		{s.bearer, "Worker 7", "nodeNames"},
	} {
		args[len(args)-1] = test.node
		out, stderr, err := run(t, []byte(test.bearer+"\n"), b.program("remote-token"), args...)
		if err == nil || out != "" || !strings.Contains(stderr, test.want) || strings.Contains(stderr, test.bearer) {
			t.Errorf("remote-token of %s: %v %q %s", test.node, err, out, strings.ReplaceAll(stderr, test.bearer, "<bearer>"))
		}
	}
}

func testCurl(t *testing.T, s site, listen string, want clusterinfo.Discovered) {
	needCurlAndOpenSSL(t)
	t.Setenv("SERVER", listen)
	t.Setenv("CURLRC", s.curlrc)
	line, stderr, err := run(t, nil, "../../examples/curl/join-line.sh", "rack 7 & 8")
	if err != nil {
		t.Fatalf("join-line.sh: %v\n%s", err, stderr)
	}
	d := parseLine(t, line)
	discover(t, d)
	kubeconfig, stderr, err := run(t, nil, "../../examples/curl/discovery.sh", d.Endpoint, d.Pins[0])
	if err != nil || kubeconfig != string(want.Kubeconfig) {
		t.Errorf("discovery.sh: %v %s\n%s\nwant\n%s", err, stderr, kubeconfig, want.Kubeconfig)
	}
	wrong := "sha256:" + strings.Repeat("0", 64)
	if out, stderr, err := run(t, nil, "../../examples/curl/discovery.sh", d.Endpoint, wrong); err == nil || out != "" || !strings.Contains(stderr, "wanted "+wrong) {
		t.Errorf("discovery.sh with a wrong pin: got %v %q %s, want an error", err, out, stderr)
	}
}

var (
	limitsOutput = regexp.MustCompile("(?s)\n```console\n\\$ go run ./examples/enforce-limits\n(.*?)```")
	randomID     = regexp.MustCompile(`token \w{6} `)
	nextCommand  = regexp.MustCompile(`(create another one: ).*`)
)

// testEnforceLimits compares the output with docs/library.md.
func (b build) testEnforceLimits(t *testing.T) {
	page := the(os.ReadFile("../../docs/library.md"))(t)
	want := limitsOutput.FindSubmatch(page)
	if want == nil {
		t.Fatal("docs/library.md has no output of enforce-limits")
	}
	got, stderr, err := run(t, nil, b.program("enforce-limits"))
	got = nextCommand.ReplaceAllString(randomID.ReplaceAllString(got, "token … "), "$1…")
	if err != nil || got != string(want[1]) {
		t.Errorf("got %v %s\n%s\nwant, as in docs/library.md\n%s", err, stderr, got, want[1])
	}
}

func (b build) testSignCSR(t *testing.T) {
	s := newSite(t)
	key := the(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	request := func(commonName string) []byte {
		der := the(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName, Organization: []string{"system:nodes"}}}, key))(t)
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	}
	args := []string{"-ca", s.caFile, "-ca-key", s.caFile, "-duration", "6h"}
	chain, stderr, err := run(t, request("system:node:worker-1"), b.program("sign-csr"), args...)
	if err != nil {
		t.Fatalf("sign-csr: %v\n%s", err, stderr)
	}
	block, rest := pem.Decode([]byte(chain))
	if block == nil || len(rest) > 0 {
		t.Fatalf("want one certificate:\n%s", chain)
	}
	cert := the(x509.ParseCertificate(block.Bytes))(t)
	roots := x509.NewCertPool()
	roots.AddCert(s.ca.Certificate())
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) || cert.Subject.CommonName != "system:node:worker-1" {
		t.Errorf("got a certificate of %s, with the right key: %v, want one of system:node:worker-1", cert.Subject, key.PublicKey.Equal(cert.PublicKey))
	}
	if left := time.Until(cert.NotAfter); left > 6*time.Hour || left < 6*time.Hour-time.Minute {
		t.Errorf("the certificate expires in %s, want 6h", left)
	}

	if out, stderr, err := run(t, request("admin"), b.program("sign-csr"), args...); err == nil || out != "" || !strings.Contains(stderr, "system:node:") {
		t.Errorf("CSR of another subject than a node: got %v %q %q, want an error", err, out, stderr)
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port := the(cluster.FreePort())(t)
	return localhost(port)
}

// needCurlAndOpenSSL skips a test without the programs of the scripts. In CI the test fails instead.
func needCurlAndOpenSSL(t *testing.T) {
	t.Helper()
	for _, program := range []string{"curl", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip("needs " + program)
		}
	}
}
