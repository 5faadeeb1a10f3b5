package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// stopGrace is how long kubejoin may take to stop.
const stopGrace = 5 * time.Second

// manifests is the folder of manifests for kubejoin, relative to the repository root, where make runs.
const manifests = "deploy/manifests"

// public is the RBAC that lets anonymous machines read cluster-info.
const public = "deploy/cluster-info-public.yaml"

// A session is a running demo.
type session struct {
	out      io.Writer
	cluster  *cluster.Cluster
	address  string // address of kubejoin
	curlrc   string
	kubejoin *cluster.Process
}

func demo(ctx context.Context, kubejoin string, out io.Writer) (err error) {
	s := &session{out: out}
	s.say("Start a Kubernetes control plane without kube-controller-manager and without cluster-info")
	s.cluster, err = cluster.Start(ctx, cluster.Options{Setup: cluster.WithoutClusterInfo, Progress: out})
	if err != nil {
		return err
	}
	defer func() {
		s.kubejoin.Stop(stopGrace)
		if closing := s.cluster.Close(); err == nil {
			err = closing
		}
	}()
	s.say("Start kubejoin: it signs cluster-info, and approves and signs certificates")
	if err := s.startKubejoin(ctx, kubejoin); err != nil {
		return err
	}
	s.say("Get the join command with curl; the curlrc contains the bearer token")
	line, err := s.joinCommand(ctx)
	if err != nil {
		return err
	}
	s.say("Join a node with the real kubeadm and the real kubelet, in about two seconds")
	if err := s.join(ctx, "worker-1", line); err != nil {
		return err
	}
	s.say("Show the node and its certificate request")
	for _, args := range [][]string{
		{"wait", "--for=condition=Ready", "node/worker-1", "--timeout=60s"},
		{"get", "nodes,csr"},
	} {
		if err := s.kubectl(ctx, args...); err != nil {
			return err
		}
	}
	s.sayFarewell()
	select {
	case <-ctx.Done():
		s.say("Stopping")
		return nil
	case <-s.kubejoin.Done():
		return fmt.Errorf("kubejoin exited unexpectedly:\n%s", s.kubejoin.Log())
	}
}

func (s *session) say(text string) { fmt.Fprintf(s.out, "\n== %s\n", text) }

// command prints a command before it runs.
func (s *session) command(words ...string) { fmt.Fprintln(s.out, "$ "+strings.Join(words, " ")) }

func (s *session) startKubejoin(ctx context.Context, program string) error {
	port, err := cluster.FreePort()
	if err != nil {
		return err
	}
	s.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	s.curlrc = filepath.Join(s.cluster.Dir, "curlrc")
	operators := filepath.Join(s.cluster.Dir, "operators.csv")
	bearer := rand.Text()
	for file, content := range map[string]string{
		operators: bearer + `,admin,admin,"kubejoin:admins"` + "\n",
		s.curlrc:  fmt.Sprintf("cacert = %q\nheader = \"Authorization: Bearer %s\"\nsilent\nshow-error\nfail-with-body\n", s.cluster.CAFile(), bearer),
	} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return err
		}
	}
	// The namespace, the RBAC, and the admission policy that limits kubejoin.
	for _, file := range []string{manifests, public} {
		if err := s.kubectl(ctx, "apply", "--filename", file); err != nil {
			return err
		}
	}
	identity, err := s.cluster.ServiceAccountKubeconfig(ctx, "kubejoin-system", "kubejoin")
	if err != nil {
		return err
	}
	args := []string{"serve",
		"--kubeconfig=" + identity,
		"--cluster-signing-cert-file=" + s.cluster.CAFile(),
		"--cluster-signing-key-file=" + s.cluster.CAKeyFile(),
		"--token-auth-file=" + operators,
		"--listen=" + s.address,
	}
	s.command("kubejoin", strings.Join(args, " \\\n    "))
	s.kubejoin, err = s.cluster.StartProcess("kubejoin", exec.Command(program, args...))
	if err != nil {
		return err
	}
	return waitReady(ctx, s.kubejoin, s.address, s.cluster.CAPool())
}

// waitReady waits for /readyz of a kubejoin. Like every client, it trusts only the cluster CA.
func waitReady(ctx context.Context, kubejoin *cluster.Process, address string, roots *x509.CertPool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 30*time.Second, fmt.Errorf("not ready after 30 s"))
	defer cancel()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	return kubejoin.WaitFor(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
		if err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz: %s: %s", resp.Status, body)
		}
		return nil
	})
}

func (s *session) joinCommandURL() string {
	return "https://" + s.address + "/v1/token/print-join-command"
}

func (s *session) joinCommand(ctx context.Context) (string, error) {
	args := []string{"-K", s.curlrc, "-X", "POST", s.joinCommandURL()}
	s.command(append([]string{"curl"}, args...)...)
	curl := exec.CommandContext(ctx, "curl", args...)
	var stderr strings.Builder
	curl.Stderr = &stderr
	line, err := curl.Output()
	if err != nil {
		return "", fmt.Errorf("curl: %w: %s%s\nlog of kubejoin:\n%s", err, stderr.String(), line, s.kubejoin.Log())
	}
	fmt.Fprintln(s.out, strings.TrimSpace(string(line)))
	return string(line), nil
}

func (s *session) join(ctx context.Context, name, line string) error {
	args, err := cluster.JoinArgs(line)
	if err != nil {
		return err
	}
	s.command("kubeadm join", args[0], "--node-name", name, "…")
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, fmt.Errorf("not joined after 2 min"))
	defer cancel()
	node, err := s.cluster.Join(ctx, name, args)
	if err != nil {
		return fmt.Errorf("%w\nlog of kubejoin:\n%s", err, s.kubejoin.Log())
	}
	// Skip the output before the first empty line: messages about this machine.
	_, joined, _ := strings.Cut(node.Output(), "\n\n")
	fmt.Fprintf(s.out, "%s\n(full output of kubeadm: %s, log of the kubelet: %s)\n", strings.TrimSpace(joined), node.KubeadmLog, node.KubeletLog)
	return nil
}

func (s *session) kubectl(ctx context.Context, args ...string) error {
	s.command(append([]string{"kubectl"}, args...)...)
	text, err := s.cluster.Kubectl(ctx, args...)
	fmt.Fprint(s.out, text)
	return err
}

func (s *session) sayFarewell() {
	s.say("The demo runs until Ctrl-C and then removes everything. Try in another terminal, as root:")
	fmt.Fprintf(s.out, `export KUBECONFIG=%s PATH=%s:$PATH
kubectl get nodes,csr
kubectl --namespace kube-public get configmap cluster-info --output yaml
curl -K %s -X POST '%s?ttl=1h'
tail -f %s
`, s.cluster.Kubeconfig(), s.cluster.Bin, s.curlrc, s.joinCommandURL(), s.kubejoin.LogFile)
}
