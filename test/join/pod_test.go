package join

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestNeedsAPIServerFlagInPod runs kubejoin with the service account of a pod. It catches a kubejoin that puts the
// address of the Service into cluster-info, which new machines cannot reach.
func TestNeedsAPIServerFlagInPod(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t) // to mount a separate /var/run for the pod
	s := harness.PrepareSite(t, cluster.Options{Setup: cluster.WithoutClusterInfo})
	config := must.Value(s.Config(s.OwnKubeconfig))(t)
	account := filepath.Join(s.WorkDir, "account")
	must.OK(t, os.Mkdir(account, 0o700))
	ca := must.Value(os.ReadFile(s.CAFile()))(t)
	for name, content := range map[string][]byte{"token": []byte(config.BearerToken), "ca.crt": ca, "namespace": []byte("kubejoin-system")} {
		must.OK(t, os.WriteFile(filepath.Join(account, name), content, 0o600))
	}
	s.Secrets.Add("the service account", config.BearerToken)
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		t.Fatal(err)
	}
	var flags []string
	for _, flag := range s.Flags {
		if !strings.HasPrefix(flag, "--kubeconfig=") {
			flags = append(flags, flag)
		}
	}
	pod := func(more ...string) *harness.Program {
		address := harness.FreeAddress(t)
		script := `mount -t tmpfs tmpfs /var/run && mkdir -p /var/run/secrets/kubernetes.io && cp -r "$1" /var/run/secrets/kubernetes.io/serviceaccount && shift && exec "$@"`
		args := append([]string{"--mount", "sh", "-c", script, "pod", account, harness.Kubejoin(), "serve", "--listen=" + address}, flags...)
		cmd := exec.Command("unshare", append(args, more...)...)
		cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
		p := harness.Launch(t, s.WorkDir, address, s.Curlrc(), cmd)
		p.Secrets = s.Secrets
		return p
	}

	p := pod()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := p.WaitFor(ctx, func(context.Context) error {
		if !strings.Contains(p.Log(), "--api-server") {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		t.Fatalf("the log does not report the missing --api-server: %v", err)
	}
	p.Stop(20 * time.Second)

	p = pod("--api-server=" + s.Server())
	p.WaitReady(t, s.CAFile())
	args, _ := p.JoinArgs(t, "")
	if want := strings.TrimPrefix(s.Server(), "https://"); args[0] != want {
		t.Errorf("the join command names %s, want %s", args[0], want)
	}
	p.CheckSecrets(t)
}
