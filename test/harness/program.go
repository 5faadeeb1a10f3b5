package harness

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/tokens"
)

// A Program is a running 'kubejoin serve'.
type Program struct {
	*cluster.Process
	Endpoint string         // host and port that kubejoin serves on
	Curlrc   string         // path of a curl configuration with an operator's bearer
	Roots    *x509.CertPool // CAs of the serving certificate; nil before WaitReady
	HTTP     *http.Client   // trusts Roots; nil before WaitReady
	Secrets  *Secrets       // secrets that must not occur in the log
}

// Serve starts kubejoin with the flags given and waits until it is ready. It writes the log into dir. caFile contains the
// CAs of the serving certificate. curlrc is a curl configuration with the bearer token of an operator; a standalone
// kubejoin writes this file itself.
func Serve(t *testing.T, dir, caFile, curlrc string, flags ...string) *Program {
	t.Helper()
	p := Start(t, dir, curlrc, flags...)
	p.WaitReady(t, caFile)
	return p
}

// Start is like [Serve], but does not wait.
func Start(t *testing.T, dir, curlrc string, flags ...string) *Program {
	t.Helper()
	return StartBinary(t, Kubejoin(), dir, curlrc, flags...)
}

// StartBinary is like [Start], but runs another binary than [Kubejoin].
func StartBinary(t *testing.T, binary, dir, curlrc string, flags ...string) *Program {
	t.Helper()
	address := ""
	for _, flag := range flags {
		if value, found := strings.CutPrefix(flag, "--listen="); found {
			address = value
		}
	}
	if address == "" {
		address = FreeAddress(t)
	}
	return Launch(t, dir, address, curlrc, exec.Command(binary, append([]string{"serve", "--listen=" + address, "-v=1"}, flags...)...))
}

// Launch starts a command that is, or executes, 'kubejoin serve' at an address. When the test ends, Launch looks for
// data races and secrets in the log.
func Launch(t *testing.T, dir, address, curlrc string, cmd *exec.Cmd) *Program {
	t.Helper()
	p := &Program{Endpoint: address, Curlrc: curlrc, Secrets: NewSecrets()}
	keepCA := record(cmd)

	p.Process = must.Value(cluster.StartProcess("kubejoin", filepath.Join(dir, "kubejoin-"+rand.Text()[:6]+".log"), cmd))(t)
	t.Cleanup(func() {
		p.Stop(20 * time.Second)
		if err := keepCA(); err != nil {
			t.Error(err)
		}
		said := p.Log()
		if t.Failed() {
			t.Logf("log of kubejoin:\n%s", said)
		}
		if strings.Contains(said, "WARNING: DATA RACE") || strings.Contains(said, "panic:") {
			t.Error("kubejoin had a data race or a panic")
		}
		p.Secrets.learn(t, curlrc, valueOf(cmd, "--data-dir"))
		if p.Secrets.none() { // the program ended before it created any secret
			return
		}
		p.Secrets.CheckAbsent(t, "the log", said)
		if file := valueOf(cmd, "--issuance-record"); file != "" {
			lines, err := os.ReadFile(file)
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // the file is missing if the program ended early
				t.Error(err)
			}
			p.Secrets.CheckAbsent(t, "the issuance record", string(lines))
		}
	})
	return p
}

// valueOf returns the value of a flag of a command, or an empty string if the command does not have the flag.
func valueOf(cmd *exec.Cmd, flag string) string {
	for _, arg := range cmd.Args {
		if name, value, _ := strings.Cut(arg, "="); name == flag {
			return value
		}
	}
	return ""
}

// record adds an issuance record to a command of 'kubejoin serve' that has none. keepCA copies the CAs that the command has
// at the time of the call.
func record(cmd *exec.Cmd) (keepCA func() error) {
	var ca []string
	for _, arg := range cmd.Args {
		name, value, _ := strings.Cut(arg, "=")
		switch name {
		case "--issuance-record":
			return func() error { return nil }
		case "--cluster-signing-cert-file":
			ca = append(ca, value)
		case "--signer-config": // the CAs of its signers are in the same folder, or in a folder beside it
			for _, pattern := range []string{"*.crt", "*/*.crt"} {
				own, err := filepath.Glob(filepath.Join(filepath.Dir(value), pattern))
				if err != nil {
					return func() error { return err }
				}
				ca = append(ca, own...)
			}
		case "--data-dir":
			ca = append(ca, filepath.Join(value, "ca.pem"))
		}
	}
	flag, keepCA := records.Flag(ca...)
	cmd.Args = append(cmd.Args, flag)
	_ = keepCA() // the call at the end reports errors
	return keepCA
}

// WaitReady waits until kubejoin reports that it is ready.
func (p *Program) WaitReady(t *testing.T, caFile string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	must.OK(t, p.WaitFor(ctx, func(ctx context.Context) error {
		if p.HTTP == nil {
			pem, err := os.ReadFile(caFile)
			if err != nil {
				return err
			}
			p.Roots = x509.NewCertPool()
			p.Roots.AppendCertsFromPEM(pem)
			p.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.Roots}}}
		}
		status, body, err := p.Get(ctx, "/readyz", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("readyz: %d %s", status, body)
		}
		return err
	}))
}

// Get sends a GET request and returns the status and the body.
func (p *Program) Get(ctx context.Context, path, bearer string) (int, string, error) {
	return p.Do(ctx, http.MethodGet, path, bearer)
}

// Do sends a request without a body and returns the status and the body of the response.
func (p *Program) Do(ctx context.Context, method, path, bearer string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+p.Endpoint+path, nil)
	if err != nil {
		return 0, "", err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	response, err := p.HTTP.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

var bearerLine = regexp.MustCompile(`(?m)^header = "Authorization: Bearer (\S+)"$`)

// Bearer returns the bearer token in the curlrc.
func (p *Program) Bearer(t *testing.T) string {
	t.Helper()
	content := must.Value(os.ReadFile(p.Curlrc))(t)
	found := bearerLine.FindSubmatch(content)
	if found == nil {
		t.Fatalf("%s has no bearer token", p.Curlrc)
	}
	return string(found[1])
}

// JoinCommand requests a join command with curl, as the README does.
func (p *Program) JoinCommand(t *testing.T, query string) (string, error) {
	t.Helper()
	var stderr bytes.Buffer
	curl := exec.CommandContext(t.Context(), "curl", "-K", p.Curlrc, "-X", "POST", "https://"+p.Endpoint+"/v1/token/print-join-command"+query)
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

// JoinArgs is [Program.JoinCommand], but fails the test on an error. It returns the arguments after kubeadm join.
func (p *Program) JoinArgs(t *testing.T, query string) (args []string, token tokens.Token) {
	t.Helper()
	line := must.Value(p.JoinCommand(t, query))(t)
	args = must.Value(cluster.JoinArgs(line))(t)
	for i, arg := range args[:len(args)-1] {
		if arg == "--token" {
			token = must.Value(tokens.Parse(args[i+1]))(t)
		}
	}
	p.Secrets.Add("token "+token.ID(), token.RevealSecret())
	return args, token
}

// CheckSecrets looks for secrets in the log and in the metrics, and returns the metrics.
func (p *Program) CheckSecrets(t *testing.T) string {
	t.Helper()
	bearer := p.Bearer(t)
	p.Secrets.Add("the operator", bearer)
	status, metrics, err := p.Get(t.Context(), "/metrics", bearer)
	if err != nil || status != http.StatusOK {
		t.Fatalf("metrics: %d %v", status, err)
	}
	p.Secrets.CheckAbsent(t, "the metrics", metrics)
	p.Secrets.CheckAbsent(t, "the log", p.Log())
	return metrics
}

// Metric returns the value of a sample in metrics. sample is the name of the metric with its labels.
func Metric(t *testing.T, metrics, sample string) float64 {
	t.Helper()
	for line := range strings.Lines(metrics) {
		if value, found := strings.CutPrefix(line, sample+" "); found {
			return must.Value(strconv.ParseFloat(strings.TrimSpace(value), 64))(t)
		}
	}
	t.Fatalf("no metric %s", sample)
	return 0
}

// Kill sends SIGKILL and waits until the process has ended.
func (p *Program) Kill(t *testing.T) {
	t.Helper()
	must.OK(t, p.Signal(syscall.SIGKILL))
	<-p.Done()
}

// WaitLeader waits until this replica leads, and returns how long that took.
func (p *Program) WaitLeader(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	Wait(t, "a new leader", func() error {
		if !strings.Contains(p.Metrics(t), "\nkubejoin_leader 1\n") {
			return fmt.Errorf("this replica is not the leader")
		}
		return nil
	})
	return time.Since(began)
}

// Metrics returns the metrics in the text format of Prometheus.
func (p *Program) Metrics(t *testing.T) string {
	t.Helper()
	status, metrics, err := p.Get(t.Context(), "/metrics", p.Bearer(t))
	if err != nil || status != 200 {
		t.Fatalf("metrics: %d %v", status, err)
	}
	return metrics
}

// ServeStandalone is [Serve] for a standalone kubejoin.
func ServeStandalone(t *testing.T, dataDir string, flags ...string) *Program {
	t.Helper()
	return Serve(t, t.TempDir(), filepath.Join(dataDir, "ca.crt"), filepath.Join(dataDir, "curlrc"), append([]string{"--data-dir=" + dataDir}, flags...)...)
}

// ClusterInfoPath is the path at which machines request cluster-info.
const ClusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// FreeAddress returns an address on 127.0.0.1 that no other test uses.
func FreeAddress(t *testing.T) string {
	t.Helper()
	port := must.Value(cluster.FreePort())(t)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
