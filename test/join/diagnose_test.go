package join

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

//go:embed diagnose.sh
var diagnoseMachine string

// A testMachine is a machine with a join script and perhaps a fault. It has its own network, in which a relay connects each
// address in targets to its target outside. If the target is "", nothing listens on the address.
type testMachine struct {
	script, machine string // the join script, and a shell command that causes the fault
	args, env       []string
	targets         map[string]string
	listen          string // an address that another program on the machine uses
}

// line matches one line of sh join.sh --diagnose.
var line = regexp.MustCompile(`(?m)^(ok|error|warning|unknown) +([a-z-]+): (.*)$`)

// diagnose runs sh join.sh --diagnose and returns its output and exit code.
func (b *testMachine) diagnose(t *testing.T, s *harness.Site) (output string, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "join.sh")
	must.OK(t, os.WriteFile(file, []byte(b.script), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", slices.Concat([]string{"-c", diagnoseMachine, "machine", s.Bin, b.machine, "sh", file, "--diagnose"}, b.args)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS}
	cmd.Env = append(os.Environ(), b.env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	started := make(chan error)
	var listeners []net.Listener
	go func() {
		// The runtime ends a locked thread together with its goroutine, so no other goroutine runs in this network.
		runtime.LockOSThread()
		started <- func() error {
			if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
				return fmt.Errorf("network namespace: %w", err)
			}
			if output, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, output)
			}
			for address, target := range b.targets {
				if target == "" {
					continue
				}
				l, err := net.Listen("tcp", address)
				if err != nil {
					return err
				}
				listeners = append(listeners, l)
				go relay(l, target)
			}
			if b.listen != "" {
				l, err := net.Listen("tcp", b.listen)
				if err != nil {
					return err
				}
				listeners = append(listeners, l)
			}
			return cmd.Start()
		}()
	}()
	err := <-started
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// relay connects the clients of a listener to a target, until the listener is closed.
func relay(l net.Listener, target string) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = client.Close() }()
			server, err := net.Dial("tcp", target)
			if err != nil {
				return
			}
			defer func() { _ = server.Close() }()
			go func() { _, _ = io.Copy(server, client) }()
			_, _ = io.Copy(client, server)
		}()
	}
}

// TestDiagnose injects faults into a machine that does not join. The output must name each fault and a remedy. A healthy
// machine must have no finding.
func TestDiagnose(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	listen := harness.FreeAddress(t)
	_, port, _ := net.SplitHostPort(listen)
	endpoint := "join.test:" + port
	s := harness.NewSite(t, cluster.Options{}, "--listen="+listen, "--advertise="+endpoint)
	healthy := testMachine{script: diagnosedScript(t, s, ""), targets: map[string]string{listen: listen, s.Address: s.Address}}
	waitAccepted(t, s, scriptToken(t, healthy.script))

	for _, with := range []struct{ program, machine string }{
		{"sh", ""},
		{"dash", `set -- dash "$2" --diagnose`},
		{"bash", `set -- bash "$2" --diagnose`},
		{"busybox", `set -- busybox sh "$2" --diagnose`},
		{"mksh", `set -- mksh "$2" --diagnose`},
		{"mawk", `ln -s "$(command -v mawk)" /run/bin/awk`},
		{"gawk", `ln -s "$(command -v gawk)" /run/bin/awk`},
		{"original-awk", `ln -s "$(command -v original-awk)" /run/bin/awk`},
	} {
		t.Run("healthy machine, "+with.program, func(t *testing.T) {
			if with.program != "sh" {
				need.Programs(t, with.program)
			}
			b := healthy
			b.machine = with.machine
			output, code := b.diagnose(t, s)
			if code != 0 || !strings.Contains(output, "\nchecks: 26, errors: 0, warnings: 0, not checked: 0\n") || strings.Contains(output, "changed: ") {
				t.Errorf("got exit code %d, want 0 and no finding:\n%s", code, output)
			}
			s.Secrets.CheckAbsent(t, "the output", output)
		})
	}

	clusterCA := must.Value(tls.LoadX509KeyPair(s.CAFile(), s.CAKeyFile()))(t)
	otherCA := certtest.CA(t, "other")
	now := time.Now()
	serving := func(ca *tls.Certificate, name string, begin time.Time) tls.Certificate {
		return *certtest.Issue(t, &x509.Certificate{DNSNames: []string{name}, NotBefore: begin, NotAfter: begin.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, ca)
	}
	_, clusterInfo, err := s.Program.Get(t.Context(), harness.ClusterInfoPath, "")
	if err != nil {
		t.Fatal(err)
	}
	// instead returns a fault: another server responds at kubejoin's address.
	instead := func(certificate tls.Certificate, status int, body string) func(*testing.T, *testMachine) {
		return func(t *testing.T, b *testMachine) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "" {
					t.Error("the script sends the token")
				}
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			}))
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
			server.StartTLS()
			t.Cleanup(server.Close)
			b.targets = map[string]string{listen: server.Listener.Addr().String(), s.Address: s.Address}
		}
	}
	onMachine := func(command string) func(*testing.T, *testMachine) {
		return func(_ *testing.T, b *testMachine) { b.machine = command }
	}
	// fake returns a fault: a program that only prints a text.
	fake := func(program, text string) func(*testing.T, *testMachine) {
		return onMachine(fmt.Sprintf("rm -f /run/bin/%[1]s; printf '#!/bin/sh\\necho %[2]s\\n' >/run/bin/%[1]s; chmod +x /run/bin/%[1]s", program, text))
	}
	clock := func(ahead time.Duration) func(*testing.T, *testMachine) {
		return fake("date", fmt.Sprintf("$(($(/bin/date +%%%%s) + %d))", int(ahead.Seconds())))
	}
	withToken := func(query string, prepare func(t *testing.T, token tokens.Token)) func(*testing.T, *testMachine) {
		return func(t *testing.T, b *testMachine) {
			b.script = diagnosedScript(t, s, query)
			prepare(t, scriptToken(t, b.script))
		}
	}
	createNode := func(t *testing.T, name string, ready corev1.ConditionStatus) {
		t.Helper()
		nodes := s.Client().CoreV1().Nodes()
		node := must.Value(nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		must.Value(nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))(t)
	}
	request := func(t *testing.T, id, node, signerName string) string {
		t.Helper()
		name := "csr-" + id
		must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, id), name, signerName, node))
		return name
	}

	for _, fault := range []struct {
		name   string
		inject func(*testing.T, *testMachine)
		want   string // all findings
		says   string // a part of the finding's line
	}{
		{"name of kubejoin does not resolve", onMachine("printf '127.0.0.1 localhost\\n' >/run/hosts"), "error endpoint-dns", "join.test"},
		{"kubejoin is unreachable", func(_ *testing.T, b *testMachine) { b.targets = map[string]string{s.Address: s.Address} }, "error endpoint-tcp", endpoint},
		{"nothing speaks TLS", func(t *testing.T, b *testMachine) {
			server := httptest.NewServer(nil)
			t.Cleanup(server.Close)
			b.targets = map[string]string{listen: server.Listener.Addr().String(), s.Address: s.Address}
		}, "error endpoint-tls", "does it serve HTTPS?"},
		{"man in the middle", instead(serving(otherCA, "join.test", now), 200, clusterInfo), "error endpoint-tls", "man in the middle"},
		{"certificate for another name", instead(serving(&clusterCA, "else.test", now), 200, clusterInfo), "error endpoint-tls", "must name join.test"},
		{"expired certificate", instead(serving(&clusterCA, "join.test", now.Add(-2*time.Hour)), 200, clusterInfo), "error endpoint-tls", "not valid at this machine's time"},
		{"another cluster", func(_ *testing.T, b *testMachine) {
			b.script = regexp.MustCompile("pins='sha256:[0-9a-f]*").ReplaceAllString(b.script, "pins='sha256:"+strings.Repeat("0", 64))
		}, "error pin", "want sha256:0000"},
		{"clock behind", clock(-10 * time.Minute), "error clock", "behind the clock"},
		{"clock ahead", clock(10 * time.Minute), "error clock", "ahead of the clock"},
		{"clock a bit behind", clock(-2 * time.Minute), "warning clock", "behind the clock"},
		{"no cluster-info", instead(serving(&clusterCA, "join.test", now), 404, ""), "error cluster-info", "HTTP 404"},
		{"cluster-info not public", instead(serving(&clusterCA, "join.test", now), 403, ""), "error cluster-info", "HTTP 403"},
		{"a web page", instead(serving(&clusterCA, "join.test", now), 200, "<html>"), "error cluster-info", "no CA"},

		{"token deleted", withToken("", func(t *testing.T, token tokens.Token) {
			s.RunKubectl(t, "-n", "kube-system", "delete", "secret", "bootstrap-token-"+token.ID())
			waitUnsigned(t, s, token.ID())
			waitRefused(t, s, token)
		}), "error token", "unknown"},
		{"another secret", func(_ *testing.T, b *testMachine) {
			b.script = strings.ReplaceAll(b.script, scriptToken(t, b.script).RevealSecret(), tokens.Generate().RevealSecret())
		}, "error token", "another secret"},
		{"not signed", withToken("", func(t *testing.T, token tokens.Token) {
			s.RunKubectl(t, "-n", "kube-system", "patch", "secret", "bootstrap-token-"+token.ID(), "-p", `{"stringData":{"usage-bootstrap-signing":"false"}}`)
			waitUnsigned(t, s, token.ID())
			waitAccepted(t, s, token)
		}), "error signature", "no signature"},
		{"signs only", withToken("", func(t *testing.T, token tokens.Token) {
			s.RunKubectl(t, "-n", "kube-system", "patch", "secret", "bootstrap-token-"+token.ID(), "-p", `{"stringData":{"usage-bootstrap-authentication":"false"}}`)
			waitRefused(t, s, token)
		}), "error token", "usage authentication"},
		{"signature of something else", instead(serving(&clusterCA, "join.test", now), 200, strings.Replace(clusterInfo, "kind: Config", "kind:  Config", 1)), "error signature", "invalid"},

		{"API server is unreachable", func(_ *testing.T, b *testMachine) { b.targets = map[string]string{listen: listen} }, "error api-tcp", s.Address},
		{"another server in place of the API server", func(t *testing.T, b *testMachine) {
			instead(serving(otherCA, "127.0.0.1", now), 200, "{}")(t, b)
			b.targets = map[string]string{listen: listen, s.Address: b.targets[listen]}
		}, "error api-tls", "127.0.0.1"},
		{"kubelet is too new", fake("kubelet", "Kubernetes v1.99.1"), "error version", "kubelet 1.99"},
		{"kubelet is too old", fake("kubelet", "Kubernetes v1.20.1"), "error version", "kubelet 1.20"},
		{"kubeadm is too new", fake("kubeadm", "v1.99.1"), "error version", "kubeadm 1.99"},
		{"Node exists", func(t *testing.T, b *testMachine) {
			createNode(t, "twin", corev1.ConditionTrue)
			b.args = []string{"--", "--node-name", "twin"}
		}, "error node", "Ready"},
		{"Node exists and is not Ready", func(t *testing.T, b *testMachine) {
			createNode(t, "ghost", corev1.ConditionFalse)
			b.args = []string{"--", "--node-name=ghost"}
		}, "warning node", "replace-node"},
		{"request refused", withToken("&maxNodes=1&nodeNames=worker-9", func(t *testing.T, token tokens.Token) {
			waitAccepted(t, s, token)
			name := request(t, token.ID(), "worker-1", certificates.KubeAPIServerClientKubeletSignerName)
			harness.Wait(t, "refusal", func() error {
				r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
				if err == nil && len(r.Status.Conditions) == 0 {
					err = errors.New("no condition")
				}
				return err
			})
		}), "error requests", "NodeNameNotAllowed"},

		{"request waits", withToken("", func(t *testing.T, token tokens.Token) {
			waitAccepted(t, s, token)
			request(t, token.ID(), "worker-1", "example.com/none")
		}), "warning requests", "waits"},

		{"name of the machine", onMachine("echo worker_1 >/proc/sys/kernel/hostname"), "error node-name", "worker_1"},
		{"name of the machine in --add-config", func(_ *testing.T, b *testMachine) {
			b.machine = "printf 'nodeRegistration:\\n  criSocket: unix:///run/containerd/containerd.sock\\n  name: \"Worker_2\"\\nskipPhases: []\\n' >/run/more.yaml"
			b.args = []string{"--add-config", "/run/more.yaml"}
		}, "error node-name", "worker_2"},
		{"no container runtime", onMachine("rm /run/containerd/containerd.sock"), "error runtime", "containerd.sock"},
		{"no runtime at --cri-socket", func(_ *testing.T, b *testMachine) { b.args = []string{"--", "--cri-socket=unix:///run/else.sock"} }, "error runtime", "/run/else.sock"},
		{"dead container runtime", onMachine("kill $!; until ! kill -0 $! 2>/dev/null; do sleep 0.05; done; [ -S /run/containerd/containerd.sock ] || ln /run/dead.sock /run/containerd/containerd.sock"), "error runtime", "does not answer"},
		{"container runtime without CRI", func(t *testing.T, b *testMachine) {
			file := filepath.Join(t.TempDir(), "s")
			l := must.Value(net.Listen("unix", file))(t)
			// This server responds like gRPC to a method that is not implemented.
			server := &http.Server{Protocols: &http.Protocols{}, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // otherwise the server resets the stream, and curl may fail
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("Grpc-Status", "12")
			})}
			server.Protocols.SetUnencryptedHTTP2(true)
			go func() { _ = server.Serve(l) }()
			t.Cleanup(func() { _ = server.Close() })
			b.args = []string{"--", "--cri-socket", "unix://" + file}
		}, "error runtime", "disabled_plugins"},
		{"two container runtimes", onMachine("mkdir /run/crio; runtime /run/crio/crio.sock"), "error runtime", "/run/crio/crio.sock"},
		{"port of the kubelet in use", func(_ *testing.T, b *testMachine) { b.listen = "127.0.0.1:10250" }, "error ports", "10250"},
		{"leftover kubelet.conf", onMachine("touch /etc/kubernetes/kubelet.conf"), "error leftovers", "/etc/kubernetes/kubelet.conf"},
		{"leftover bootstrap-kubelet.conf", onMachine("touch /etc/kubernetes/bootstrap-kubelet.conf"), "error leftovers", "bootstrap-kubelet.conf"},
		{"CA of another cluster", onMachine("mkdir /etc/kubernetes/pki; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout /run/key -subj /CN=x -out /etc/kubernetes/pki/ca.crt 2>/dev/null"), "error ca-file, error leftovers", "another cluster"},
		{"expired kubelet certificate", func(t *testing.T, b *testMachine) {
			b.machine = "mkdir /var/lib/kubelet/pki; cp " + kubeletCertificate(t, &clusterCA, "worker-1", now.Add(-time.Hour)) + " /var/lib/kubelet/pki/kubelet-client-current.pem"
		}, "error kubelet-certificate", "has expired"},
		{"no kubelet", onMachine("rm /run/bin/kubelet; PATH=/run/bin:/usr/bin:/bin:/usr/sbin:/sbin"), "error programs", "missing: kubelet"},
		{"neither kubeadm nor kubelet", onMachine("rm /run/bin/kube*; PATH=/run/bin:/usr/bin:/bin:/usr/sbin:/sbin"), "error programs", "missing: kubeadm kubelet"},
		{"cgroup v1", onMachine("rm /sys/fs/cgroup/cgroup.controllers"), "error cgroup", "cgroup v1"},
		{"swap", onMachine("echo /swapfile file 1 0 -2 >>/run/swaps"), "warning swap", "swapoff"},
		{"no IPv4 forwarding", onMachine("echo 0 >/proc/sys/net/ipv4/ip_forward"), "warning ip-forward", "sysctl"},
		{"no IPv4 forwarding, and an address as endpoint", func(t *testing.T, b *testMachine) {
			b.script = strings.ReplaceAll(b.script, endpoint, s.Address)
			b.machine = "echo 0 >/proc/sys/net/ipv4/ip_forward"
		}, "error ip-forward", "sysctl"},
		{"proxy", func(_ *testing.T, b *testMachine) { b.env = []string{"https_proxy=http://127.0.0.1:1"} }, "error endpoint-tcp, warning proxy", "no_proxy"},
	} {
		t.Run(fault.name, func(t *testing.T) {
			b := healthy
			fault.inject(t, &b)
			output, code := b.diagnose(t, s)
			var findings, said []string
			for _, m := range line.FindAllStringSubmatch(output, -1) {
				if m[1] == "error" || m[1] == "warning" {
					findings = append(findings, m[1]+" "+m[2])
					said = append(said, m[3])
					if _, remedy, _ := strings.Cut(m[3], "; "); remedy == "" {
						t.Errorf("got no remedy in %q", m[0])
					}
				}
			}
			slices.Sort(findings)
			if got := strings.Join(findings, ", "); got != fault.want || code != 1 || !strings.Contains(strings.Join(said, "\n"), fault.says) || strings.Contains(output, "changed: ") {
				t.Errorf("got exit code %d and %q, want 1 and %q with %q:\n%s", code, got, fault.want, fault.says, output)
			}
			if strings.Contains(output, scriptToken(t, b.script).RevealSecret()) {
				t.Error("the output holds the token secret")
			}
			if strings.Contains(output, "delete node") {
				t.Error("a remedy deletes a Node whose machine may run")
			}
			s.Secrets.CheckAbsent(t, "the output", output)
		})
	}

	t.Run("control plane", func(t *testing.T) {
		b := healthy
		b.machine = "mkdir /etc/kubernetes/manifests; touch /etc/kubernetes/manifests/etcd.yaml"
		output, code := b.diagnose(t, s)
		if code != 0 || !strings.Contains(output, "this machine is a control plane; nothing to do\n") || strings.Contains(output, "changed: ") {
			t.Errorf("got exit code %d:\n%s", code, output)
		}
	})
	t.Run("machine that has joined", func(t *testing.T) {
		createNode(t, "member", corev1.ConditionTrue)
		current := kubeletCertificate(t, &clusterCA, "member", now.Add(time.Hour))
		b := healthy
		b.machine = fmt.Sprintf("printf 'clusters:\\n- cluster:\\n    certificate-authority: %s\\n    server: https://%s\\nusers:\\n- user:\\n    client-certificate: %s\\n    client-key: %[3]s\\n' >/etc/kubernetes/kubelet.conf", s.CAFile(), s.Address, current)
		want := "ok       leftovers: this machine has joined as Node member of https://" + s.Address + "; nothing to do\n"
		if output, code := b.diagnose(t, s); code != 0 || output != want {
			t.Errorf("got exit code %d, want 0 and %s:\n%s", code, want, output)
		}
	})
}

// kubeletCertificate returns a file with the certificate and key of a kubelet.
func kubeletCertificate(t *testing.T, ca *tls.Certificate, node string, end time.Time) string {
	t.Helper()
	certificate := certtest.Issue(t, &x509.Certificate{
		Subject:   pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		NotBefore: end.Add(-2 * time.Hour), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca)
	file := filepath.Join(t.TempDir(), "kubelet-client-current.pem")
	key := must.Value(x509.MarshalPKCS8PrivateKey(certificate.PrivateKey))(t)
	content := slices.Concat(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	must.OK(t, os.WriteFile(file, content, 0o600))
	return file
}

// diagnosedScript returns the join script with a new token.
func diagnosedScript(t *testing.T, s *harness.Site, query string) string {
	t.Helper()
	script := string(harness.ReadFile(t, joinFile(t, s, "?ttl=1h"+query, "script")))
	token := scriptToken(t, script)
	s.Secrets.Add("token "+token.ID(), token.RevealSecret())
	return script
}

// scriptToken returns the token in a join script.
func scriptToken(t *testing.T, script string) tokens.Token {
	t.Helper()
	m := regexp.MustCompile(`(?m)^    token='(.*)'$`).FindStringSubmatch(script)
	if m == nil {
		t.Fatal("the script has no token")
	}
	return must.Value(tokens.Parse(m[1]))(t)
}

// waitUnsigned waits until cluster-info has no signature by a token.
func waitUnsigned(t *testing.T, s *harness.Site, id string) {
	t.Helper()
	harness.Wait(t, "removal of the signature", func() error {
		_, body, err := s.Program.Get(t.Context(), harness.ClusterInfoPath, "")
		if err == nil && strings.Contains(body, "jws-kubeconfig-"+id) {
			err = errors.New("cluster-info is signed")
		}
		return err
	})
}

// waitAccepted waits until the API server accepts a token. It may accept the token for a few more seconds after a deletion.
func waitAccepted(t *testing.T, s *harness.Site, token tokens.Token) {
	t.Helper()
	waitAnswer(t, s, token, "acceptance of the token", apierrors.IsNotFound)
}

// waitRefused waits until the API server refuses a token.
func waitRefused(t *testing.T, s *harness.Site, token tokens.Token) {
	t.Helper()
	waitAnswer(t, s, token, "refusal of the token", apierrors.IsUnauthorized)
}

// waitAnswer reads a missing Node with the token until is returns true for the error of the API server. The API server gets
// tokens and permissions from watches, which may lag.
func waitAnswer(t *testing.T, s *harness.Site, token tokens.Token, what string, is func(error) bool) {
	t.Helper()
	config := rest.AnonymousClientConfig(s.AdminConfig())
	config.BearerToken = token.Reveal()
	client := must.Value(kubernetes.NewForConfig(config))(t)
	harness.Wait(t, what, func() error {
		if _, err := client.CoreV1().Nodes().Get(t.Context(), "none", metav1.GetOptions{}); !is(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}
