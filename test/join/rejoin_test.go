package join

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const currentPEM = "/var/lib/kubelet/pki/kubelet-client-current.pem"

// An offMachine is a machine with a real kubelet whose certificate expires.
type offMachine struct {
	*cluster.Node
	site *harness.Site
	uid  types.UID
}

// newOffMachine returns the machine of a node, once the claim has the UID of the Node.
func newOffMachine(t *testing.T, s *harness.Site, node *cluster.Node) *offMachine {
	t.Helper()
	object := must.Value(s.Client().CoreV1().Nodes().Get(t.Context(), node.Name, metav1.GetOptions{}))(t)
	harness.Wait(t, "the UID of the Node in its claim", func() error {
		if _, claims, err := s.Get(t.Context(), "/v1/claim", s.Bearer(t)); err != nil || !strings.Contains(claims, string(object.UID)) {
			return fmt.Errorf("%w: got claims %s, want one with UID %s", err, claims, object.UID)
		}
		return nil
	})
	return &offMachine{node, s, object.UID}
}

// expire gives the stopped kubelet an expired certificate for its own key.
func (m *offMachine) expire(t *testing.T) {
	t.Helper()
	content := must.Value(m.ReadFile(currentPEM))(t)
	pair := must.Value(tls.X509KeyPair(content, content))(t)
	ca := must.Value(tls.LoadX509KeyPair(m.site.CAFile(), m.site.CAKeyFile()))(t)
	expired := *pair.Leaf
	expired.SerialNumber = big.NewInt(time.Now().UnixNano())
	expired.NotBefore, expired.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(-time.Second) // within the validity of the CA
	der := must.Value(x509.CreateCertificate(rand.Reader, &expired, ca.Leaf, pair.Leaf.PublicKey, ca.PrivateKey))(t)
	_, rest := pem.Decode(content) // the key follows the certificate
	m.write(t, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), rest...))
}

// write replaces the certificate and key of the kubelet.
func (m *offMachine) write(t *testing.T, content []byte) {
	t.Helper()
	file := filepath.Join(m.site.WorkDir, "current.pem")
	must.OK(t, os.WriteFile(file, content, 0o600))
	m.run(t, 0, "cp", file, currentPEM) // write into the file behind the link, because the kubelet must be able to replace the link
}

func (m *offMachine) run(t *testing.T, want int, command ...string) string {
	t.Helper()
	out, code, err := m.Run(t.Context(), command...)
	if err != nil || code != want {
		t.Fatalf("%q: exit code %d, %v, want %d\n%s", command, code, err, want, out)
	}
	return out
}

// comeBack runs a command that lets the machine rejoin, starts the kubelet, and waits until it reports the Ready condition
// of the same Node again.
func (m *offMachine) comeBack(t *testing.T, command ...string) {
	t.Helper()
	before, _ := m.ReadFile(currentPEM) // no file on a machine without a disk
	m.run(t, 0, command...)
	if after, err := m.ReadFile(currentPEM); err != nil || string(after) == string(before) {
		t.Fatalf("got no new certificate, %v", err)
	}
	began := time.Now()
	must.OK(t, m.StartKubelet())
	harness.Wait(t, "the node to come back", func() error {
		node, err := m.site.Client().CoreV1().Nodes().Get(t.Context(), m.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node.UID != m.uid {
			t.Fatalf("got Node %s with UID %s, want %s", m.Name, node.UID, m.uid)
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(began.Truncate(time.Second)) {
				return nil
			}
		}
		return errors.New("no report of being Ready since the kubelet started")
	})
	t.Logf("back after %s", time.Since(began).Round(100*time.Millisecond))
}

// diskless is how often the machine without a disk boots.
const diskless = 3

// commandsOfPage returns the first block of commands in a section of docs/rejoin.md, for this server.
func commandsOfPage(t *testing.T, s *harness.Site, heading string) string {
	t.Helper()
	_, section, _ := strings.Cut(string(harness.ReadFile(t, harness.RepositoryFile(t, "docs/rejoin.md"))), "\n### "+heading+"\n")
	_, block, _ := strings.Cut(section, "```sh\n")
	commands, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatalf("docs/rejoin.md has no commands in section %q", heading)
	}
	return strings.NewReplacer("join.example.com:9443", s.Endpoint, "worker-7", "worker-1", "/etc/kubernetes/pki/ca.crt", s.CAFile(), "/boot/", s.WorkDir+"/").Replace(commands)
}

// TestExpiredKubeletComesBack stops a real kubelet until its certificate has expired, and runs one command. After that, the
// kubelet must be the same Node with the same pods. It repeats this with rejoin.sh and with the commands of docs/rejoin.md.
// kubejoin must refuse an earlier copy of the disk, with an Event. Then a machine without a disk boots three times with its
// bound key. The Node keeps its labels, and kubejoin sets those of the token only once.
func TestExpiredKubeletComesBack(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.PrepareSite(t, cluster.Options{}, "--cluster-signing-duration=3m", "--rejoin-window=720h", "--rejoin-budget=20")
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/node-properties.yaml"))
	s.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	must.Value(s.StartKCM(ctx, "--controllers=node-lifecycle-controller"))(t) // which taints the Node while the kubelet is off
	args, _ := s.JoinArgs(t, "?maxNodes=1&nodeLabels=tenant%3Da")
	node := must.Value(s.Join(ctx, "worker-1", args))(t)
	waitRecorded(t, s, "worker-1", waitProperties(t, s, "worker-1", tokens.NodeProperties{Labels: "tenant=a"}).UID)
	s.RunKubectl(t, "label", "node", "worker-1", "tenant-")
	m := newOffMachine(t, s, node)
	if _, err := s.Client().CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err) // needed because this kube-controller-manager does not
	}
	mount := false
	pod := must.Value(s.Client().CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "stays"},
		Spec:       corev1.PodSpec{NodeName: "worker-1", AutomountServiceAccountToken: &mount, Containers: []corev1.Container{{Name: "c", Image: "example.com/c:1"}}},
	}, metav1.CreateOptions{}))(t)
	url := "https://" + s.Endpoint
	first := must.Value(m.ReadFile(currentPEM))(t)
	stop := func() {
		t.Helper()
		must.OK(t, m.StopKubelet())
	}

	// While the certificate is valid, the command does nothing.
	if out := m.run(t, 0, harness.Kubejoin(), "rejoin", "--url", url); !strings.Contains(out, "nothing to do") {
		t.Errorf("valid certificate: got %s", out)
	}

	// The kubelet is off until its certificate has expired. Without kubejoin rejoin, it cannot come back.
	stop()
	m.expire(t)
	must.OK(t, m.StartKubelet())
	must.OK(t, m.WaitKubelet(ctx, "unable to load bootstrap kubeconfig"))
	stop()
	m.comeBack(t, harness.Kubejoin(), "rejoin", "--url", url)
	if n := must.Value(getNode(t, s, "worker-1"))(t); n.Labels["tenant"] != "" {
		t.Errorf("after the rejoin, got labels %v, want no tenant: a person has removed it", n.Labels)
	}

	// Repeat this with the script.
	stop()
	m.expire(t)
	m.comeBack(t, "sh", harness.RepositoryFile(t, "deploy/systemd/rejoin.sh"), "--url", url)

	// Repeat this with openssl and curl.
	stop()
	m.expire(t)
	m.comeBack(t, "sh", "-c", commandsOfPage(t, s, "By hand"))
	kept, err := s.Client().CoreV1().Pods("default").Get(ctx, "stays", metav1.GetOptions{})
	if err != nil || kept.UID != pod.UID || kept.DeletionTimestamp != nil {
		t.Errorf("got pod %v, %v, want the one from before", kept, err)
	}

	// Restore a copy of the disk from before the rejoins.
	stop()
	now := must.Value(m.ReadFile(currentPEM))(t)
	m.write(t, first)
	m.expire(t)
	if out := m.run(t, 3, harness.Kubejoin(), "rejoin", "--url", url); !strings.Contains(out, "KeyNotCurrent") {
		t.Errorf("old copy of the disk: got %s", out)
	}
	harness.Wait(t, "Events of the Node", func() error {
		out := s.RunKubectl(t, "describe", "node", "worker-1")
		for _, reason := range []string{"Rejoined", "KeyNotCurrent"} {
			if !strings.Contains(out, reason) {
				return fmt.Errorf("no Event %s in\n%s", reason, out)
			}
		}
		return nil
	})
	m.write(t, now)

	// Now test a machine without a disk.
	key := filepath.Join(s.WorkDir, "node.key")
	m.run(t, 0, "openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
	m.run(t, 0, harness.Kubejoin(), "rejoin", "--url", url, "--bind-key", key)
	for i := range diskless {
		stop()
		m.run(t, 0, "sh", "-c", "rm -rf /var/lib/kubelet/pki /etc/kubernetes/kubelet.conf")
		m.comeBack(t, harness.Kubejoin(), "rejoin", "--url", url, "--ca-file", s.CAFile(), "--key", key, "--node", "worker-1")
		if i == 0 { // now send the same request by hand; these commands keep existing files
			m.run(t, 0, "sh", "-c", commandsOfPage(t, s, "By hand with a bound key")+
				strings.Replace(commandsOfPage(t, s, "By hand"), "--cert kubelet-client-current.pem", "--cert self.pem", 1))
		}
	}
	if out := s.CLI(t, "claim", "list"); !regexp.MustCompile(fmt.Sprintf(`(?m)^worker-1 .* %d +no +no$`, 4+diskless)).MatchString(out) {
		t.Errorf("got claims\n%s", out)
	}
	metrics := s.CheckSecrets(t)
	if n := harness.Metric(t, metrics, `kubejoin_rejoins_total{result="issued"}`); n != 4+diskless {
		t.Errorf("got %v rejoins, want %d", n, 4+diskless)
	}
}
