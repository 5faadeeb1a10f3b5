package test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// In a pod kubejoin finds the cluster by its service account, and refuses to guess the address
// that cluster-info is to name: the service's is of no use to machines that are not nodes yet.
func TestInPod(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t) // for a /var/run of the pod's own
	s := prepare(t, cluster.Options{Setup: cluster.WithoutClusterInfo})
	config, err := s.Config(s.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	account := filepath.Join(s.dir, "account")
	if err := os.Mkdir(account, 0o700); err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(s.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"token": []byte(config.BearerToken), "ca.crt": ca, "namespace": []byte("kubejoin-system")} {
		if err := os.WriteFile(filepath.Join(account, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.known.add("the service account", config.BearerToken)
	host, port, err := net.SplitHostPort(s.Address)
	if err != nil {
		t.Fatal(err)
	}
	var flags []string
	for _, flag := range s.flags {
		if !strings.HasPrefix(flag, "--kubeconfig=") {
			flags = append(flags, flag)
		}
	}
	pod := func(more ...string) *program {
		free, err := cluster.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		address := "127.0.0.1:" + itoa(free)
		script := `mount -t tmpfs tmpfs /var/run && mkdir -p /var/run/secrets/kubernetes.io && cp -r "$1" /var/run/secrets/kubernetes.io/serviceaccount && shift && exec "$@"`
		args := append([]string{"--mount", "sh", "-c", script, "pod", account, binary, "serve", "--listen=" + address}, flags...)
		cmd := exec.Command("unshare", append(args, more...)...)
		cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
		p := launch(t, s.dir, address, s.curlrc(), cmd)
		p.secrets = s.known
		return p
	}

	p := pod()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.WaitFor(ctx, func(context.Context) error {
		if !strings.Contains(p.Log(), "--api-server") {
			return errNotYet
		}
		return nil
	}); err != nil {
		t.Fatalf("the log does not say that --api-server is missing: %v", err)
	}
	p.Stop(20 * time.Second)

	p = pod("--api-server=" + s.Server())
	p.ready(t, s.CAFile())
	args, _ := p.join(t, "")
	if want := strings.TrimPrefix(s.Server(), "https://"); args[0] != want {
		t.Errorf("the join command names %s, want %s", args[0], want)
	}
	p.checkSecrets(t)
}
