package cluster

import (
	"context"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

//go:embed node.sh
var nodeScript string

// A Node is a joining machine: kubeadm, and a kubelet with a fake container runtime, in their own mount and PID
// namespaces. [Cluster.Close] stops it.
type Node struct {
	Name string
	// KubeadmLog and KubeletLog are the paths of the logs of kubeadm and the kubelet.
	KubeadmLog, KubeletLog string

	bin, dir string
	machine  *Process
}

// JoinArgs returns the arguments after kubeadm join in a join command of kubeadm or kubejoin.
func JoinArgs(line string) ([]string, error) {
	words := strings.Fields(line)
	if len(words) < 3 || words[0] != "kubeadm" || words[1] != "join" {
		// The error does not repeat the line: it may contain a token.
		return nil, fmt.Errorf("invalid join command of %d words: want 'kubeadm join HOST:PORT …'", len(words))
	}
	return words[2:], nil
}

// Join runs 'kubeadm join' with args, and a kubelet. It returns when kubeadm has succeeded and the kubelet has registered
// its Node, after about two seconds. It needs root.
//
// If Join fails, it stops the machine, and the error contains the end of both logs. Use [Cluster.StartNode]
// for a join that is expected to fail or to wait.
func (c *Cluster) Join(ctx context.Context, name string, args []string) (*Node, error) {
	n, err := c.StartNode(name, args)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(n.WaitJoined(ctx), n.WaitRegistered(ctx)); err != nil {
		n.Stop()
		return nil, err
	}
	return n, nil
}

// StartNode starts the machine like [Cluster.Join], but does not wait. Several machines may use the same name.
func (c *Cluster) StartNode(name string, args []string) (*Node, error) {
	return c.StartNodeWith(name, nil, args)
}

// StartNodeWith is [Cluster.StartNode] for a machine that has /etc/kubernetes/kubelet.conf before it joins. kubeadm calls
// this custom kubelet credentials. If kubeletConf is nil, the kubelet uses TLS bootstrap.
func (c *Cluster) StartNodeWith(name string, kubeletConf []byte, args []string) (*Node, error) {
	dir, err := c.nodeDir(name)
	if err != nil {
		return nil, err
	}
	if err := c.writeKubeletPatch(dir); err != nil {
		return nil, err
	}
	if kubeletConf != nil {
		if err := os.WriteFile(filepath.Join(dir, "kubelet.conf"), kubeletConf, 0o600); err != nil {
			return nil, err
		}
	}
	return c.startNode(name, dir, "1", append([]string{"join"}, append(slices.Clone(args), "--node-name", name)...))
}

// StartKubelet starts a machine with a kubelet and a bootstrap kubeconfig but no kubeadm, like an installation
// from binaries. It does not wait, and needs root.
//
// A kubelet before Kubernetes 1.38 makes only keys on P-256. With keyPEM, the kubelet uses this key for its client
// certificate, and does not renew the certificate. The given flags follow the usual ones of the kubelet.
func (c *Cluster) StartKubelet(name, bootstrapKubeconfig string, keyPEM []byte, flags ...string) (*Node, error) {
	dir, err := c.nodeDir(name)
	if err != nil {
		return nil, err
	}
	bootstrap, err := os.ReadFile(bootstrapKubeconfig)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "bootstrap.conf"), bootstrap, 0o600),
		os.WriteFile(filepath.Join(dir, "client.key"), keyPEM, 0o600),
		c.writeKubeletConfig(dir, keyPEM == nil),
	); err != nil {
		return nil, err
	}
	return c.startNode(name, dir, "alone", append([]string{
		"--hostname-override=" + name, "--container-runtime-endpoint=unix://" + filepath.Join(dir, "cri.sock"),
	}, flags...))
}

// writeKubeletConfig writes the configuration of a kubelet without kubeadm.
func (c *Cluster) writeKubeletConfig(dir string, rotate bool) error {
	settings, err := c.kubeletSettings()
	if err != nil {
		return err
	}
	config := fmt.Sprintf("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nrotateCertificates: %t\n%s", rotate, settings)
	return os.WriteFile(filepath.Join(dir, "kubelet.yaml"), []byte(config), 0o600)
}

func (c *Cluster) nodeDir(name string) (string, error) {
	parent := filepath.Join(c.Dir, "nodes")
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", err
	}
	return os.MkdirTemp(parent, name+"-")
}

func (c *Cluster) startNode(name, dir, kubelet string, args []string) (*Node, error) {
	cmd, err := machineCommand(c.Bin, dir, args)
	if err != nil {
		return nil, err
	}
	cmd.Env = append(os.Environ(), "KUBEJOIN_KUBELET="+kubelet)
	if c.options.TrustedHosts {
		cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+c.CAFile(), "SSL_CERT_DIR=/nonexistent")
	}
	machine, err := StartProcess("node "+name, filepath.Join(dir, "machine.log"), cmd)
	if err != nil {
		return nil, err
	}
	n := &Node{
		Name: name, bin: c.Bin, dir: dir, machine: machine,
		KubeadmLog: filepath.Join(dir, "kubeadm.log"),
		KubeletLog: filepath.Join(dir, "kubelet.log"),
	}
	c.processes.add(machine)
	return n, nil
}

// machineCommand returns the command that runs node.sh in its own namespaces.
func machineCommand(bin, dir string, args []string) (*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a node of its own needs root, for mount and PID namespaces")
	}
	cmd := exec.Command("sh", append([]string{"-c", nodeScript, "node", bin, dir}, args...)...)
	cmd.SysProcAttr = ownNamespaces()
	return cmd, nil
}

// writeKubeletPatch writes a patch that lets several kubelets run on the host without changing it. kubeadm applies it to
// the kubelet configuration from the cluster, with --patches.
func (c *Cluster) writeKubeletPatch(dir string) error {
	patch, err := c.kubeletSettings()
	if err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, "patches"), 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "patches", "kubeletconfiguration+merge.yaml"), []byte(patch), 0o600)
}

func (c *Cluster) kubeletSettings() (string, error) {
	address := c.options.KubeletAddress
	if address == "" {
		address = "127.0.0.1"
	}
	port, err := FreePort()
	if err != nil {
		return "", err
	}
	healthz, err := FreePort()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`address: %s
port: %d
healthzBindAddress: 127.0.0.1
healthzPort: %d
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: [none]
failSwapOn: false
failCgroupV1: false
makeIPTablesUtilChains: false
localStorageCapacityIsolation: false
`, address, port, healthz), nil
}

// WaitJoined waits until kubeadm has ended. If kubeadm failed, the error says why.
func (n *Node) WaitJoined(ctx context.Context) error {
	var code string
	err := n.machine.WaitFor(ctx, func(context.Context) error {
		data, err := os.ReadFile(filepath.Join(n.dir, "kubeadm.exit"))
		code = strings.TrimSpace(string(data))
		return err
	})
	if err == nil && code != "0" {
		err = fmt.Errorf("exit status %s", code)
	}
	if err != nil {
		return fmt.Errorf("kubeadm join of %s: %w\n%s\nkubelet:\n%s", n.Name, err, tail(n.KubeadmLog, 30), tail(n.KubeletLog, 15))
	}
	return nil
}

// WaitRegistered waits until the kubelet logs that it has registered its Node.
func (n *Node) WaitRegistered(ctx context.Context) error {
	return n.WaitKubelet(ctx, "Successfully registered node")
}

// WaitKubelet waits until the kubelet's log contains text.
func (n *Node) WaitKubelet(ctx context.Context, text string) error {
	err := n.machine.WaitFor(ctx, func(context.Context) error {
		data, err := os.ReadFile(n.KubeletLog)
		if err == nil && !strings.Contains(string(data), text) {
			err = fmt.Errorf("its log lacks %q", text)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("kubelet of %s: %w\n%s", n.Name, err, tail(n.KubeletLog, 30))
	}
	return nil
}

// Output returns the output of kubeadm so far.
func (n *Node) Output() string {
	data, err := os.ReadFile(n.KubeadmLog)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// ReadFile reads a file of the node. path is the absolute path on the node.
func (n *Node) ReadFile(path string) ([]byte, error) {
	root := fmt.Sprintf("/proc/%d/root", n.machine.PID())
	for range 10 {
		// Resolve links here: the kernel would resolve an absolute link in the root of the host.
		target, err := os.Readlink(root + path)
		if errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return nil, err
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	return os.ReadFile(root + path)
}

// ClientCertificate returns the chain of the kubelet's current client certificate, leaf first.
func (n *Node) ClientCertificate() ([]*x509.Certificate, error) {
	return n.certificates("kubelet-client-current.pem")
}

// ServingCertificate returns the chain of the kubelet's current serving certificate, leaf first. It needs
// [Options].ServerTLSBootstrap.
func (n *Node) ServingCertificate() ([]*x509.Certificate, error) {
	return n.certificates("kubelet-server-current.pem")
}

func (n *Node) certificates(file string) ([]*x509.Certificate, error) {
	data, err := n.ReadFile("/var/lib/kubelet/pki/" + file)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%s has no certificate", file)
	}
	return certs, nil
}

// Stop kills all processes of the machine. Its logs remain until [Cluster.Close].
func (n *Node) Stop() { n.machine.Stop(0) }

// RunKubeadm runs kubeadm without a kubelet, in its own namespaces, and returns its output. It kills kubeadm
// when ctx ends. It needs root.
func RunKubeadm(ctx context.Context, args ...string) (output string, err error) {
	bin, err := Build(ctx, nil)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "kubejoin-kubeadm-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	cmd, err := machineCommand(bin, dir, args)
	if err != nil {
		return "", err
	}
	p, err := StartProcess("kubeadm", filepath.Join(dir, "kubeadm.log"), cmd)
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Stop(0)
		return p.Log(), fmt.Errorf("kubeadm: %w", context.Cause(ctx))
	}
	if err := p.Err(); err != nil {
		return p.Log(), fmt.Errorf("kubeadm: %w\n%s", err, tail(p.LogFile, 15))
	}
	return p.Log(), nil
}
