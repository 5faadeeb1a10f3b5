package join

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// refused proves the key, and wants a refusal with this status and text.
func refused(t *testing.T, s *harness.Site, m harness.MachineKey, name string, status int, text string) {
	t.Helper()
	if got, body := m.Prove(t, s, name); got != status || !strings.Contains(body, text) || tokens.Redact(body) != body {
		t.Errorf("%s: got %d %s, want %d with %q", name, got, body, status, text)
	}
}

// machineFile writes a document for machines that join with their keys, and returns its path. The document must have no secret.
func machineFile(t *testing.T, s *harness.Site, query, format string) string {
	t.Helper()
	status, text, err := s.Do(t.Context(), http.MethodPost, "/v1/machine/print-join-command?format="+format+query, s.Bearer(t))
	if err != nil || status != http.StatusOK || tokens.Redact(text) != text {
		t.Fatalf("got %d, %v, %s", status, err, text)
	}
	file := filepath.Join(t.TempDir(), format)
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// becomesUnready makes the Node of a stopped machine not Ready, as kube-controller-manager does after a while.
func becomesUnready(t *testing.T, s *harness.Site, name string) {
	t.Helper()
	node := must.Value(s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
	for i, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			node.Status.Conditions[i].Status = corev1.ConditionUnknown
		}
	}
	must.Value(s.Client().CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))(t)
}

// waitReady waits until a Node is Ready.
func waitReady(t *testing.T, s *harness.Site, name string) *corev1.Node {
	t.Helper()
	var node *corev1.Node
	harness.Wait(t, "Node "+name+" to be Ready", func() (err error) {
		if node, err = s.Client().CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return errors.New("not Ready")
	})
	return node
}

// TestMachineJoinsWithItsKey joins real machines whose user data has no secret: with a known key, with a fingerprint from the console,
// and again after the disk is wiped. No token can take the name of a machine.
func TestMachineJoinsWithItsKey(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	address := harness.FreeAddress(t)
	s := harness.PrepareSite(t, cluster.Options{}, "--listen="+address, "--advertise="+address)
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/node-properties.yaml"))
	s.Start(t)
	known := harness.NewMachineKey(t, s.WorkDir, "known")
	harness.Wait(t, "kubejoin to know that it may patch Nodes", func() error {
		_, stderr, code := s.RunKubejoin(t, "machine", "add", "known", "--key-file", known.Public, "--certificate-duration=72h", "--node-label=tenant=a")
		if code != 0 {
			return errors.New(stderr)
		}
		return nil
	})
	script := machineFile(t, s, "", "script")

	t.Run("known key", func(t *testing.T) {
		refused(t, s, known, "another", http.StatusUnauthorized, "knows no machine another with this key")
		boot := func() *cluster.Node {
			return must.Value(s.Boot("known", true, "sh", script, "--key", known.File, "--", "--node-name", "known"))(t)
		}
		node := boot()
		waitJoined(t, s, node, true, 72*time.Hour)
		first := waitReady(t, s, "known")
		waitProperties(t, s, "known", tokens.NodeProperties{Labels: "tenant=a"})
		refused(t, s, known, "known", http.StatusForbidden, admission.ReasonNodeIsReady)

		// The disk is wiped, and the key survives. The machine replaces its Node.
		node.Stop()
		becomesUnready(t, s, "known")
		node = boot()
		waitJoined(t, s, node, true, 72*time.Hour)
		if again := waitReady(t, s, "known"); again.UID != first.UID {
			t.Errorf("got Node %s, want %s", again.UID, first.UID)
		}
		node.Stop()

		// After the Node is deleted, the machine still holds the name.
		must.OK(t, s.Client().CoreV1().Nodes().Delete(t.Context(), "known", metav1.DeleteOptions{}))
		harness.Wait(t, "the release of the claim", func() error {
			if claims := s.CLI(t, "claim", "list", "-o", "json"); !strings.Contains(claims, `"token": ""`) {
				return fmt.Errorf("got %s", claims)
			}
			return nil
		})
		for _, query := range []string{"?ttl=1h", "?ttl=1h&maxNodes=1&nodeNames=known"} {
			args, _ := s.JoinArgs(t, query)
			thief := must.Value(s.StartNode("known", args))(t)
			harness.Wait(t, "the refusal of a token", func() error {
				stdout, stderr, _ := s.RunKubejoin(t, "explain", "known")
				if !strings.Contains(stdout, "kubejoin machine delete known") {
					return fmt.Errorf("got %s%s", stdout, stderr)
				}
				return nil
			})
			thief.Stop()
		}
		node = boot()
		waitJoined(t, s, node, true, 72*time.Hour)
		waitReady(t, s, "known")

		// Neither a revoked machine nor a deleted one can join again.
		if stdout, stderr, code := s.RunKubejoin(t, "revoke", "known"); code != 0 || !strings.Contains(stderr, "kubejoin machine delete known") {
			t.Errorf("got exit code %d, %s%s, want a warning that names the machine", code, stdout, stderr)
		}
		node.Stop()
		refused(t, s, known, "known", http.StatusForbidden, admission.ReasonMachineRevoked)
		s.RunKubejoin(t, "machine", "delete", "known")
		harness.Wait(t, "the end of the machine", func() error {
			if status, body := known.Prove(t, s, "known"); status != http.StatusUnauthorized {
				return fmt.Errorf("got %d %s", status, body)
			}
			return nil
		})

		// With a new key, a revoked machine comes back, as docs/revocation.md says.
		becomesUnready(t, s, "known")
		fresh := harness.NewMachineKey(t, s.WorkDir, "fresh")
		s.CLI(t, "machine", "add", "known", "--key-file", fresh.Public, "--replace")
		node = must.Value(s.Boot("known", true, "sh", script, "--key", fresh.File, "--", "--node-name", "known"))(t)
		waitJoined(t, s, node, true, 365*24*time.Hour)
		waitReady(t, s, "known")
		node.Stop()
	})
	t.Run("expired", func(t *testing.T) {
		expired := harness.NewMachineKey(t, s.WorkDir, "expired")
		s.CLI(t, "machine", "add", "expired", "--key-file", expired.Public, "--ttl=1s")
		harness.Wait(t, "the expiration", func() error {
			if status, body := expired.Prove(t, s, "expired"); status != http.StatusForbidden || !strings.Contains(body, admission.ReasonMachineExpired) {
				return fmt.Errorf("got %d %s", status, body)
			}
			return nil
		})
	})
	t.Run("name of a Node", func(t *testing.T) {
		key := harness.NewMachineKey(t, s.WorkDir, "worker-7")
		must.Value(s.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-7"}}, metav1.CreateOptions{}))(t)
		add := []string{"machine", "add", "worker-7", "--key-file", key.Public}
		if _, stderr, code := s.RunKubejoin(t, add...); code == 0 || !strings.Contains(stderr, "--replace") {
			t.Errorf("got exit code %d, %s, want a refusal that names --replace", code, stderr)
		}
		s.CLI(t, append(add, "--replace")...)
		if status, body := key.Prove(t, s, "worker-7"); status != http.StatusOK {
			t.Errorf("got %d %s", status, body)
		}
	})
	for name, user := range map[string]struct {
		format string
		boot   func(t *testing.T, file string) []string
	}{"worker-8": {"cloud-config", cloudInit}, "worker-9": {"ignition", ignite}} {
		t.Run("fingerprint on the console, "+user.format, func(t *testing.T) {
			t.Parallel()
			node := must.Value(s.Boot(name, true, user.boot(t, machineFile(t, s, "&node="+name, user.format))...))(t)
			words := ""
			harness.Wait(t, "the fingerprint on the console", func() error {
				_, after, found := strings.Cut(node.Output(), "kubejoin machine add "+name+" --key ")
				if words, _, _ = strings.Cut(after, "\n"); !found || !tokens.IsWords(words) {
					return fmt.Errorf("got %s", node.Output())
				}
				return nil
			})
			if shown := regexp.MustCompile(`(?m)^kubejoin: (this machine|waiting).*\n`).FindAllString(node.Output(), 2); name == "worker-8" {
				sample.Check(t, "docs/machines.md", strings.Join(shown, ""))
			}
			if _, list, err := s.Get(t.Context(), "/v1/pending-machine", s.Bearer(t)); err != nil || !strings.Contains(list, words) {
				t.Errorf("got %s, %v, want a pending machine with %s", list, err, words)
			}
			s.CLI(t, "machine", "add", name, "--key", words)
			waitJoined(t, s, node, true, 365*24*time.Hour)
			if list := s.CLI(t, "machine", "get", name, "-o", "json"); !strings.Contains(list, words) || !strings.Contains(list, "sha256:") {
				t.Errorf("got %s, want the whole key of %s", list, words)
			}
		})
	}
	t.Run("no kubeadm", func(t *testing.T) {
		t.Parallel()
		plain := harness.NewMachineKey(t, s.WorkDir, "plain")
		s.CLI(t, "machine", "add", "plain", "--key-file", plain.Public)
		node := must.Value(s.Boot("plain", false, "sh", machineFile(t, s, "&node=plain", "script"), "--key", plain.File))(t)
		waitJoined(t, s, node, false, 365*24*time.Hour)
	})
	t.Run("time is over", func(t *testing.T) {
		t.Parallel()
		node := must.Value(s.Boot("late", true, "sh", script, "--timeout", "3"))(t)
		waitScriptFailed(t, s, node, 4, "with this key")
	})
}

// joinsWithKey joins a machine with a key of its own, at a kubejoin without Leases. The machine joins again after its disk is wiped.
func joinsWithKey(t *testing.T, s *harness.Site) {
	t.Helper()
	key := harness.NewMachineKey(t, s.WorkDir, "machine-1")
	tool(t, "machine", "add", "machine-1", "--key-file="+key.Public, "--url=https://"+s.Endpoint, "--curlrc="+s.Curlrc(), "--ttl=1h")
	script := machineFile(t, s, "&node=machine-1", "script")
	for range 2 {
		node := must.Value(s.Boot("machine-1", true, "sh", script, "--key", key.File))(t)
		waitJoined(t, s, node, true, 365*24*time.Hour)
		waitReady(t, s, "machine-1")
		refused(t, s, key, "machine-1", http.StatusForbidden, admission.ReasonNodeIsReady)
		node.Stop()
		becomesUnready(t, s, "machine-1")
	}
	refused(t, s, key, "another", http.StatusUnauthorized, "knows no machine another with this key")
}

// TestCopyOfKeyIsReported proves one key from two machines for two minutes.
func TestCopyOfKeyIsReported(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	address := harness.FreeAddress(t)
	s := harness.NewSite(t, cluster.Options{}, "--listen="+address, "--advertise="+address)
	key := harness.NewMachineKey(t, s.WorkDir, "worker-1")
	s.CLI(t, "machine", "add", "worker-1", "--key-file", key.Public)
	node := must.Value(s.Boot("worker-1", true, "sh", machineFile(t, s, "&node=worker-1", "script"), "--key", key.File))(t)
	waitJoined(t, s, node, true, 365*24*time.Hour)
	waitReady(t, s, "worker-1")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		refused(t, s, key, "worker-1", http.StatusForbidden, admission.ReasonNodeIsReady)
		if strings.Contains(s.CheckSecrets(t), `kubejoin_machine_proofs_total{result="cloned"}`) {
			break
		}
		time.Sleep(5 * time.Second)
	}
	s.WaitExplain(t, "worker-1", 0, "kubejoin revoke worker-1")
	harness.Wait(t, "the Event of the Node", func() error {
		events := must.Value(s.Client().CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + admission.ReasonNodeIsReady}))(t)
		if len(events.Items) == 0 || !strings.Contains(events.Items[0].Message, "kubejoin revoke worker-1") {
			return fmt.Errorf("got %d Events", len(events.Items))
		}
		return nil
	})
}

// TestTenThousandMachines adds and lists many machines, and logs how long that takes.
func TestTenThousandMachines(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	const size = 10_000
	rows := make([]string, 0, size+1)
	rows = append(rows, "node,key")
	for i := range size {
		rows = append(rows, fmt.Sprintf("node-%d,sha256:%016x%048d", i, i, 0))
	}
	file := filepath.Join(s.WorkDir, "machines.csv")
	must.OK(t, os.WriteFile(file, []byte(strings.Join(rows, "\n")+"\n"), 0o600))
	began := time.Now()
	stdout, stderr, code := s.RunKubejoin(t, "machine", "add", "-f", file)
	if added := strings.Count(stdout, api.MachineAdded); code != 0 || added != size {
		t.Fatalf("exit code %d, %d machines added, want %d\n%s", code, added, size, stderr)
	}
	t.Logf("added in %s", time.Since(began).Round(100*time.Millisecond))
	for _, where := range [][]string{{"--kubeconfig=" + s.Kubeconfig()}, {"--url=https://" + s.Endpoint, "--curlrc=" + s.Curlrc()}} {
		began = time.Now()
		listed := strings.Count(tool(t, append([]string{"machine", "list", "-o", "name"}, where...)...), "\n")
		if t.Logf("listed in %s with %s", time.Since(began).Round(10*time.Millisecond), where); listed != size {
			t.Errorf("%d machines listed with %s, want %d", listed, where, size)
		}
	}
}
