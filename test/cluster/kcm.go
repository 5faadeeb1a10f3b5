package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// JoinControllers is a value for kube-controller-manager's --controllers: only the controllers that a joining node needs in
// a kubeadm cluster.
const JoinControllers = "bootstrap-signer-controller,token-cleaner-controller," +
	"certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller," +
	"certificatesigningrequest-cleaner-controller"

// StartKCM starts a kube-controller-manager that signs with the cluster CA, and waits until it is healthy. It runs
// [JoinControllers] by default. flags come last, so they can override --controllers.
func (c *Cluster) StartKCM(ctx context.Context, flags ...string) (*Process, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	// kubeadm wrote the advertise address into this kubeconfig.
	kubeconfig := filepath.Join(c.Dir, "controller-manager.conf")
	if _, err := c.kubectlConfig(ctx, kubeconfig, "set-cluster", "kubernetes", "--server="+c.Server()); err != nil {
		return nil, err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + filepath.Join(c.Dir, "kcm"),
		"--cluster-signing-cert-file=" + c.CAFile(),
		"--cluster-signing-key-file=" + c.CAKeyFile(),
		"--root-ca-file=" + c.CAFile(),
		"--service-account-private-key-file=" + c.pki("sa.key"),
		"--use-service-account-credentials",
		"--leader-elect=false",
	}
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--controllers") }) {
		args = append(args, "--controllers="+JoinControllers)
	}
	p, err := c.StartProcess("kube-controller-manager", exec.Command(filepath.Join(c.Bin, "kube-controller-manager"), append(args, flags...)...))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %v", startTimeout))
	defer cancel()
	// Do not verify the self-signed serving certificate: this client only requests /healthz.
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true,
	}}
	url := "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) + "/healthz"
	err = p.WaitFor(ctx, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		return nil
	})
	if err != nil {
		p.Stop(0)
		return nil, err
	}
	return p, nil
}

// kubectlConfig edits a kubeconfig.
func (c *Cluster) kubectlConfig(ctx context.Context, file string, args ...string) (string, error) {
	return run(ctx, append(os.Environ(), "HOME="+c.Dir), filepath.Join(c.Bin, "kubectl"),
		append([]string{"--kubeconfig", file, "config"}, args...)...)
}
