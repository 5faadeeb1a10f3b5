package test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certlint"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
	"k8s.io/klog/v2"
)

// binary is the kubejoin under test, built by TestMain.
var binary string

// records are the issuance records of all processes that are started.
var records certlint.Records

// inProcess has what authorities of the tests themselves have issued.
var inProcess certlint.Log

func TestMain(m *testing.M) {
	if flag.Parse(); testing.Short() {
		fmt.Println("the tests of the whole program are left out with -short")
		os.Exit(0)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kubejoin-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "kubejoin")
	args := []string{"build", "-tags", "apicheck", "-o", binary}
	if race {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/kubejoin/kubejoin/cmd/kubejoin")...)
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building kubejoin:", err)
		return 1
	}
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // what client-go tells of faults that tests make
	records = certlint.Records(dir)
	answers := filepath.Join(dir, "answers")
	if err := os.Setenv(openapicheck.Environment, answers); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := errors.Join(lintIssued(), lookedAt.report(), checkAnswers(answers)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// lintIssued holds every certificate that kubejoin has issued in all the tests against zlint and
// openssl.
func lintIssued() error {
	issued, findings, err := records.Check(context.Background())
	if err != nil {
		return fmt.Errorf("certificates that were issued: %w", err)
	}
	here, found := inProcess.Findings()
	findings = append(findings, found...)
	fmt.Printf("%d certificates are issued by processes of kubejoin and %d by the tests' own, and zlint and openssl have %d findings\n", issued, here, len(findings))
	if len(findings) > 0 {
		return errors.New(certlint.Summary(findings))
	}
	if issued == 0 && flag.Lookup("test.run").Value.String() == "" {
		return errors.New("no certificate is issued in all the tests: this check could not fail")
	}
	return nil
}

// A program is a running 'kubejoin serve'.
type program struct {
	*cluster.Process
	address string
	curlrc  string
	roots   *x509.CertPool
	http    *http.Client
	secrets *secrets
}

// serve starts kubejoin with the flags given and waits until it is ready. dir has its log.
// caFile is what its serving certificate is checked against; curlrc, if it is not there yet,
// is made with a bearer of an operator.
func serve(t *testing.T, dir, caFile, curlrc string, flags ...string) *program {
	t.Helper()
	p := start(t, dir, curlrc, flags...)
	p.ready(t, caFile)
	return p
}

// start is serve without the waiting.
func start(t *testing.T, dir, curlrc string, flags ...string) *program {
	t.Helper()
	return startBinary(t, binary, dir, curlrc, flags...)
}

func startBinary(t *testing.T, binary, dir, curlrc string, flags ...string) *program {
	t.Helper()
	address := ""
	for _, flag := range flags {
		if value, found := strings.CutPrefix(flag, "--listen="); found {
			address = value
		}
	}
	if address == "" {
		port, err := cluster.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	return launch(t, dir, address, curlrc, exec.Command(binary, append([]string{"serve", "--listen=" + address, "-v=1"}, flags...)...))
}

// launch starts a command that is, or becomes, 'kubejoin serve' at an address.
func launch(t *testing.T, dir, address, curlrc string, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{address: address, curlrc: curlrc, secrets: &secrets{list: map[string]string{}}}
	keepCA := record(cmd)
	var err error
	if p.Process, err = cluster.StartProcess("kubejoin", filepath.Join(dir, "kubejoin-"+rand.Text()[:6]+".log"), cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop(20 * time.Second)
		if err := keepCA(); err != nil {
			t.Error(err)
		}
		said := p.Log()
		if t.Failed() {
			t.Logf("kubejoin said:\n%s", said)
		}
		if strings.Contains(said, "WARNING: DATA RACE") || strings.Contains(said, "panic:") {
			t.Error("kubejoin had a data race or a panic")
		}
		p.secrets.learn(t, curlrc, valueOf(cmd, "--data-dir"))
		p.secrets.Lock()
		known := len(p.secrets.list)
		p.secrets.Unlock()
		if known == 0 { // of a program that never came so far as to have one
			return
		}
		p.secrets.absent(t, "the log", said)
		if file := valueOf(cmd, "--issuance-record"); file != "" {
			lines, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // it is made at the start
				t.Error(err)
			}
			p.secrets.absent(t, "the issuance record", string(lines))
		}
	})
	return p
}

// valueOf is what a command has as the value of a flag; empty if it has not.
func valueOf(cmd *exec.Cmd, flag string) string {
	for _, arg := range cmd.Args {
		if name, value, _ := strings.Cut(arg, "="); name == flag {
			return value
		}
	}
	return ""
}

// record has a command of 'kubejoin serve' keep an issuance record, if it does not do so already.
// What is returned keeps its CA, now and when it is called.
func record(cmd *exec.Cmd) (keepCA func() error) {
	var ca []string
	for _, arg := range cmd.Args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--issuance-record":
			return func() error { return nil }
		case "--cluster-signing-cert-file":
			ca = append(ca, value)
		case "--signer-config": // and CAs of signers in folders beside it
			own, err := filepath.Glob(filepath.Join(filepath.Dir(value), "*", "*.crt"))
			if err != nil {
				return func() error { return err }
			}
			ca = append(ca, own...)
		case "--data-dir":
			ca = append(ca, filepath.Join(value, "ca.pem"))
		}
	}
	flag, keepCA := records.Flag(ca...)
	cmd.Args = append(cmd.Args, flag)
	_ = keepCA() // the second time tells what is wrong
	return keepCA
}

// ready waits until kubejoin answers that it is.
func (p *program) ready(t *testing.T, caFile string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := p.WaitFor(ctx, func(ctx context.Context) error {
		if p.http == nil {
			pem, err := os.ReadFile(caFile)
			if err != nil {
				return err
			}
			p.roots = x509.NewCertPool()
			p.roots.AppendCertsFromPEM(pem)
			p.http = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}}}
		}
		status, body, err := p.get(ctx, "/readyz", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("readyz: %d %s", status, body)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (p *program) get(ctx context.Context, path, bearer string) (int, string, error) {
	return p.do(ctx, http.MethodGet, path, bearer)
}

func (p *program) do(ctx context.Context, method, path, bearer string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+p.address+path, nil)
	if err != nil {
		return 0, "", err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := p.http.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

var bearerLine = regexp.MustCompile(`(?m)^header = "Authorization: Bearer (\S+)"$`)

// bearer is what the curlrc holds.
func (p *program) bearer(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(p.curlrc)
	if err != nil {
		t.Fatal(err)
	}
	found := bearerLine.FindSubmatch(content)
	if found == nil {
		t.Fatalf("%s has no bearer token", p.curlrc)
	}
	return string(found[1])
}

// joinCommand asks for a join command with curl, as the README does, and returns its answer.
func (p *program) joinCommand(t *testing.T, query string) (string, error) {
	t.Helper()
	var stderr bytes.Buffer
	curl := exec.CommandContext(t.Context(), "curl", "-K", p.curlrc, "-X", "POST", "https://"+p.address+"/v1/token/print-join-command"+query)
	curl.Stderr = &stderr
	answer, err := curl.Output()
	if errors.Is(err, exec.ErrNotFound) {
		t.Fatal("curl is missing: install it, these tests use it as kubejoin's users do")
	}
	if err != nil {
		return "", fmt.Errorf("curl: %w: %s%s", err, stderr.String(), answer)
	}
	return string(answer), nil
}

// join is joinCommand that must succeed; it returns the arguments after kubeadm join.
func (p *program) join(t *testing.T, query string) (args []string, token tokens.Token) {
	t.Helper()
	line, err := p.joinCommand(t, query)
	if err != nil {
		t.Fatal(err)
	}
	args, err = cluster.JoinArgs(line)
	if err != nil {
		t.Fatal(err)
	}
	for i, arg := range args[:len(args)-1] {
		if arg == "--token" {
			if token, err = tokens.Parse(args[i+1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.secrets.add("token "+token.ID(), token.RevealSecret())
	return args, token
}

// checkSecrets looks for secrets in the log and the metrics, and returns the metrics.
func (p *program) checkSecrets(t *testing.T) string {
	t.Helper()
	bearer := p.bearer(t)
	p.secrets.add("the operator", bearer)
	status, metrics, err := p.get(t.Context(), "/metrics", bearer)
	if err != nil || status != http.StatusOK {
		t.Fatalf("metrics: %d %v", status, err)
	}
	p.secrets.absent(t, "the metrics", metrics)
	p.secrets.absent(t, "the log", p.Log())
	return metrics
}

// metric is the value of a sample in metrics, by all that stands before the value.
func metric(t *testing.T, metrics, sample string) float64 {
	t.Helper()
	for line := range strings.Lines(metrics) {
		if value, found := strings.CutPrefix(line, sample+" "); found {
			n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric %s", sample)
	return 0
}

// kill is kill -9.
func (p *program) kill(t *testing.T) {
	t.Helper()
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
}

// wait calls check until it returns nil, for at most a minute.
func wait(t *testing.T, what string, check func() error) {
	t.Helper()
	waitFor(t, time.Minute, what, check)
}

// waitFor is wait for at most as long as given.
func waitFor(t *testing.T, most time.Duration, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: %v", what, err)
		}
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

var errAllowed = errors.New("still allowed")

var errNotYet = errors.New("not yet")
