package cluster

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Setup selects which of the objects that 'kubeadm init' creates exist in the cluster.
type Setup int

const (
	// Kubeadm is everything that a join needs: kubeadm-config, kubelet-config, the RBAC for
	// bootstrap tokens and an unsigned cluster-info. There is no token yet.
	Kubeadm Setup = iota
	// WithoutClusterInfo is like Kubeadm, but without cluster-info and the RBAC that makes it public.
	WithoutClusterInfo
)

// Options are the options of a control plane. With zero Options, it is set up as kubeadm would.
type Options struct {
	// Setup selects the objects in the cluster.
	Setup Setup
	// AnonymousOff limits anonymous requests to /livez, /readyz and /healthz.
	AnonymousOff bool
	// ServerTLSBootstrap makes kubelets request serving certificates. kubeadm's default is false.
	ServerTLSBootstrap bool
	// KubeletAddress is the address on which kubelets listen. Empty means 127.0.0.1. kube-apiserver cannot reach kubelets
	// there, because it connects to the address that a Node reports.
	KubeletAddress string
	// TrustedHosts makes machines trust the cluster CA for all HTTPS, as if an operator had installed it in
	// /etc/ssl.
	TrustedHosts bool
	// APIServerFlags come after the default flags of kube-apiserver.
	APIServerFlags []string
	// Progress receives lines of progress; nil discards them.
	Progress io.Writer
}

// A Cluster is a running control plane. [Cluster.Close] stops it and removes its files.
type Cluster struct {
	// Dir is the folder of the cluster: pki, kubeconfigs, logs, etcd's data.
	Dir string
	// Bin is the folder of the programs, see [Build].
	Bin string
	// Version is the Kubernetes version, for example "v1.37.2".
	Version string
	// Address is the address of kube-apiserver: "127.0.0.1:PORT".
	Address string

	options    Options
	admin      *rest.Config
	clientset  *kubernetes.Clientset
	etcdURL    string
	apiserver  *Process
	setupToken tokens.Token
	processes  running
}

// Start starts an empty etcd and kube-apiserver on free loopback ports, and returns when the cluster is
// set up and ready. That takes about three seconds. It does not need root.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	bin, err := Build(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	pin, err := choose(os.Getenv(VersionVariable))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kubejoin-cluster-")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, Bin: bin, Version: "v" + pin.version, options: o, setupToken: tokens.Generate()}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(c.Dir, "logs"), 0o700); err != nil {
		return err
	}
	port, err := FreePort()
	if err != nil {
		return err
	}
	c.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	c.progress("making certificates")
	if err := c.writeConfigs(); err != nil {
		return err
	}
	if err := c.kubeadmInit(ctx, "certs", "all"); err != nil {
		return err
	}
	c.progress("starting etcd and kube-apiserver")
	if err := c.startEtcd(); err != nil {
		return err
	}
	// kube-apiserver waits for etcd by itself, and starts while kubeadm writes the kubeconfigs.
	if err := c.launchAPIServer(); err != nil {
		return err
	}
	for _, name := range []string{"super-admin", "admin", "controller-manager"} {
		if err := c.kubeadmInit(ctx, "kubeconfig", name, "--kubeconfig-dir", c.Dir); err != nil {
			return err
		}
	}
	c.admin, err = c.Config("super-admin.conf")
	if err != nil {
		return err
	}
	if c.clientset, err = kubernetes.NewForConfig(c.admin); err != nil {
		return err
	}
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	c.progress("setting up the cluster")
	return c.setUp(ctx)
}

func (c *Cluster) progress(text string) {
	if c.options.Progress != nil {
		fmt.Fprintln(c.options.Progress, text)
	}
}

// Server returns the URL of kube-apiserver.
func (c *Cluster) Server() string { return "https://" + c.Address }

// CAFile returns the path of the cluster CA's certificate.
func (c *Cluster) CAFile() string { return filepath.Join(c.Dir, "pki", "ca.crt") }

// CAPool returns a pool with only the cluster CA.
func (c *Cluster) CAPool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(c.admin.CAData)
	return pool
}

// CAKeyFile returns the path of the cluster CA's key.
func (c *Cluster) CAKeyFile() string { return filepath.Join(c.Dir, "pki", "ca.key") }

// Kubeconfig returns the path of an administrator's kubeconfig (group kubeadm:cluster-admins).
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "admin.conf") }

// Config returns the client configuration in a kubeconfig, without a rate limit. kubeconfig is an
// absolute path, or the name of a file in [Cluster.Dir].
func (c *Cluster) Config(kubeconfig string) (*rest.Config, error) {
	if !filepath.IsAbs(kubeconfig) {
		kubeconfig = filepath.Join(c.Dir, kubeconfig)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// AdminConfig returns a client configuration in group system:masters, without a rate limit.
func (c *Cluster) AdminConfig() *rest.Config { return rest.CopyConfig(c.admin) }

// Client returns a client in group system:masters, without a rate limit.
func (c *Cluster) Client() kubernetes.Interface { return c.clientset }

// Kubectl runs kubectl as administrator and returns its standard output. The error contains its standard error.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	env := append(os.Environ(), "KUBECONFIG="+c.Kubeconfig(), "HOME="+c.Dir)
	return run(ctx, env, filepath.Join(c.Bin, "kubectl"), args...)
}

// StartProcess starts a program that [Cluster.Close] kills. Its log is in the same folder as the logs of the components,
// and has the given name.
func (c *Cluster) StartProcess(name string, cmd *exec.Cmd) (*Process, error) {
	p, err := StartProcess(name, c.logFile(name), cmd)
	if err != nil {
		return nil, err
	}
	c.processes.add(p)
	return p, nil
}

func (c *Cluster) logFile(name string) string {
	return filepath.Join(c.Dir, "logs", name+".log")
}

// Close kills all processes of the cluster, including nodes, and removes its files.
func (c *Cluster) Close() error {
	c.processes.killAll()
	return os.RemoveAll(c.Dir)
}

// Logs returns the end of the log of each component and node.
func (c *Cluster) Logs() string {
	var out strings.Builder
	for _, pattern := range []string{"logs/*.log", "nodes/*/*.log"} {
		files, err := filepath.Glob(filepath.Join(c.Dir, pattern))
		if err != nil {
			return err.Error()
		}
		for _, f := range files {
			name, err := filepath.Rel(c.Dir, f)
			if err != nil {
				return err.Error()
			}
			fmt.Fprintf(&out, "--- %s\n%s\n", name, tail(f, 40))
		}
	}
	return out.String()
}
