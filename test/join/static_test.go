package join

import (
	"context"
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/keyutil"
)

// tool runs kubejoin and returns what it prints.
func tool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), harness.Kubejoin(), args...)
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("kubejoin %s: %v\n%s", args[0], err, exit.Stderr)
		}
		t.Fatal(err)
	}
	return string(output)
}

// TestJoinsByBootstrapKubeconfig joins kubelets without kubeadm, as a static user and with a bootstrap token, and with the
// kinds of keys that kubelets choose from Kubernetes 1.38 on. It catches bootstrap kubeconfigs that do not work or that
// other users can read, and keys that kubejoin refuses.
func TestJoinsByBootstrapKubeconfig(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	line := tool(t, "token", "generate", "-o", "csv", "--user=kubelet-bootstrap", "--uid=10001")
	static, _, _ := strings.Cut(line, ",")
	s.Secrets.Add("the static user", static)
	csv := filepath.Join(s.WorkDir, "token.csv")
	must.OK(t, os.WriteFile(csv, []byte(line), 0o600))
	restartAPIServer(t, s, "--token-auth-file="+csv)
	for name, role := range map[string]string{
		"kubelet-bootstrap":        "system:node-bootstrapper",
		"kubelet-bootstrap-client": "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
	} {
		s.RunKubectl(t, "create", "clusterrolebinding", name, "--clusterrole="+role, "--user=kubelet-bootstrap")
	}
	conf := func(name string, args ...string) string {
		file := filepath.Join(s.WorkDir, name+".conf")
		tool(t, append([]string{"kubeconfig", "bootstrap", "--kubeconfig=" + s.Kubeconfig(), "--output-file", file}, args...)...)
		info, err := os.Stat(file)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("%s: %v %v", file, info, err)
		}
		return file
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for _, test := range []struct {
		name, conf, requester string
		key                   crypto.Signer
	}{
		{"static", conf("static", "--user=kubelet-bootstrap", "--token-auth-file="+csv), "kubelet-bootstrap", nil},
		{"token", conf("token", "--max-nodes=1", "--node-name=token"), "system:bootstrap:", nil},
		{"p-384", conf("p-384", "--max-nodes=1"), "system:bootstrap:", csrtest.ECDSA(elliptic.P384())},
		{"rsa-2048", conf("rsa-2048", "--max-nodes=1"), "system:bootstrap:", csrtest.RSA2048()},
		{"rsa-4096", conf("rsa-4096", "--max-nodes=1"), "system:bootstrap:", must.Value(rsa.GenerateKey(rand.Reader, 4096))(t)},
	} {
		var keyPEM []byte
		if test.key != nil {
			keyPEM = must.Value(keyutil.MarshalPrivateKeyToPEM(test.key))(t)
		}
		node := must.Value(s.StartKubelet(test.name, test.conf, keyPEM))(t)
		must.OK(t, node.WaitRegistered(ctx))
		if _, err := s.Client().CoreV1().Nodes().Get(ctx, test.name, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		chain := must.Value(node.ClientCertificate())(t)
		harness.CheckKubeletCertificate(t, s, chain[0], test.name, 365*24*time.Hour)
		if test.key != nil && !reflect.DeepEqual(chain[0].PublicKey, test.key.Public()) {
			t.Errorf("%s: the certificate has another key than the kubelet", test.name)
		}
		requests := s.RunKubectl(t, "get", "csr", "-o", `jsonpath={range .items[*]}{.spec.username} {.status.conditions[*].type}{"\n"}{end}`)
		if !strings.Contains("\n"+requests, "\n"+test.requester) {
			t.Errorf("want a request by %s, got\n%s", test.requester, requests)
		}
		node.Stop()
	}
	// The static user gets no certificate for the name of an existing Node.
	node := must.Value(s.StartKubelet("token", filepath.Join(s.WorkDir, "static.conf"), nil))(t)
	if err := node.WaitKubelet(ctx, "NodeExists"); err != nil {
		t.Error(err)
	}
	s.CheckSecrets(t)
}
