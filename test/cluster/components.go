package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// startTimeout is how long a component may take to be ready on a busy machine.
const startTimeout = 3 * time.Minute

func (c *Cluster) pki(name string) string { return filepath.Join(c.Dir, "pki", name) }

func (c *Cluster) startEtcd() error {
	client, err := FreePort()
	if err != nil {
		return err
	}
	peer, err := FreePort()
	if err != nil {
		return err
	}
	c.etcdURL = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(client))
	peerURL := "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(peer))
	_, err = c.StartProcess("etcd", exec.Command(filepath.Join(c.Bin, "etcd"),
		"--name=etcd",
		"--data-dir="+filepath.Join(c.Dir, "etcd"),
		"--listen-client-urls="+c.etcdURL,
		"--advertise-client-urls="+c.etcdURL,
		"--listen-peer-urls="+peerURL,
		"--initial-advertise-peer-urls="+peerURL,
		"--initial-cluster=etcd="+peerURL,
		"--client-cert-auth",
		"--trusted-ca-file="+c.pki("etcd/ca.crt"),
		"--cert-file="+c.pki("etcd/server.crt"),
		"--key-file="+c.pki("etcd/server.key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file="+c.pki("etcd/ca.crt"),
		"--peer-cert-file="+c.pki("etcd/peer.crt"),
		"--peer-key-file="+c.pki("etcd/peer.key"),
		"--unsafe-no-fsync", // no fsync: Close removes the data anyway
		"--logger=zap", "--log-level=warn",
	))
	return err
}

// anonymousOff allows anonymous requests only to the three paths that load balancers and kubeadm's static pods use for
// health checks.
const anonymousOff = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
`

func (c *Cluster) launchAPIServer() error {
	_, port, err := net.SplitHostPort(c.Address)
	if err != nil {
		return err
	}
	args := []string{
		"--bind-address=127.0.0.1",
		"--secure-port=" + port,
		"--advertise-address=" + advertiseAddress,
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--etcd-servers=" + c.etcdURL,
		"--etcd-cafile=" + c.pki("etcd/ca.crt"),
		"--etcd-certfile=" + c.pki("apiserver-etcd-client.crt"),
		"--etcd-keyfile=" + c.pki("apiserver-etcd-client.key"),
		"--tls-cert-file=" + c.pki("apiserver.crt"),
		"--tls-private-key-file=" + c.pki("apiserver.key"),
		"--client-ca-file=" + c.pki("ca.crt"),
		"--requestheader-client-ca-file=" + c.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.pki("front-proxy-client.key"),
		"--kubelet-client-certificate=" + c.pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + c.pki("apiserver-kubelet-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pki("sa.pub"),
		"--service-account-signing-key-file=" + c.pki("sa.key"),
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth",
	}
	if c.options.AnonymousOff {
		file := filepath.Join(c.Dir, "authentication.yaml")
		if err := os.WriteFile(file, []byte(anonymousOff), 0o600); err != nil {
			return err
		}
		args = append(args, "--authentication-config="+file)
	}
	// kube-apiserver refuses both flags together.
	if !slices.ContainsFunc(c.options.APIServerFlags, func(f string) bool { return strings.HasPrefix(f, "--authorization-config=") }) {
		args = append(args, "--authorization-mode=Node,RBAC")
	}
	args = append(args, c.options.APIServerFlags...)
	p, err := c.StartProcess("kube-apiserver", exec.Command(filepath.Join(c.Bin, "kube-apiserver"), args...))
	if err != nil {
		return err
	}
	c.apiserver = p
	return nil
}

func (c *Cluster) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %v", startTimeout))
	defer cancel()
	return c.apiserver.WaitFor(ctx, func(ctx context.Context) error {
		return c.clientset.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// StopAPIServer kills kube-apiserver.
func (c *Cluster) StopAPIServer() {
	c.apiserver.Stop(0)
}

// StartAPIServer restarts kube-apiserver with the same port and data, and waits until it is ready. The flags
// come after all others, at this and at every later start.
func (c *Cluster) StartAPIServer(ctx context.Context, flags ...string) error {
	select {
	case <-c.apiserver.Done():
	default:
		return errors.New("kube-apiserver runs already")
	}
	c.options.APIServerFlags = append(slices.Clone(c.options.APIServerFlags), flags...)
	if err := c.launchAPIServer(); err != nil {
		return err
	}
	return c.waitReady(ctx)
}
