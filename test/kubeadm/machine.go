package kubeadm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

//go:embed machine.sh
var machineScript string

// A Machine has its own processes, mounts, network interface and host name, and its own containerd. Its kubelet starts once
// kubeadm has configured it. It has its own /etc, /var, /opt and /run, and shares all other folders with the host.
type Machine struct {
	Name, Address string

	cluster *Cluster
	dir     string
	init    *cluster.Process
}

// AddMachine starts a machine, and returns when its containerd is ready.
func (c *Cluster) AddMachine(ctx context.Context, name string) (m *Machine, err error) {
	number := len(c.machines) + 1
	m = &Machine{Name: name, Address: fmt.Sprintf("%s.%d", network, 10+number), cluster: c, dir: filepath.Join(c.dir, name)}
	c.machines = append(c.machines, m)
	err = c.step("starting machine "+name, func() error {
		if err := os.MkdirAll(filepath.Join(m.dir, "fs"), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(m.dir, "containerd.toml"), []byte(c.containerdConfig()), 0o600); err != nil {
			return err
		}
		cmd := exec.Command("sh", "-c", machineScript, "machine", m.dir, m.Name, m.Address, c.kube, c.containers, c.name+"/"+m.Name)
		if m.init, err = c.start(name, cmd); err != nil {
			return err
		}
		// Enter only the network namespace of the bridge: the process ID that names the machine is valid only outside its
		// PID namespace.
		if _, err := run(ctx, exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(c.outside.init.PID()), "--net", "--", "sh", "-euc", `
			ip link add "$1" type veth peer name eth0 netns "$2"
			ip link set "$1" master br0 up`, "connect", fmt.Sprintf("machine%d", number), strconv.Itoa(m.init.PID()))); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not ready after %v", startTimeout))
		defer cancel()
		return m.init.WaitFor(ctx, func(ctx context.Context) error {
			_, err := m.Run(ctx, "ctr", "version")
			return err
		})
	})
	return m, err
}

// containerdConfig leaves the OOM score unchanged, because root may lack the permission to lower it.
func (c *Cluster) containerdConfig() string {
	return fmt.Sprintf(`version = 3
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %q
`, c.pauseImage)
}

// Command returns a command that runs on the machine as root, with the programs of Kubernetes and the administrator's
// kubeconfig. It begins in the folder "/".
func (m *Machine) Command(ctx context.Context, args ...string) *exec.Cmd {
	inside := []string{"--target", strconv.Itoa(m.init.PID()), "--mount", "--pid", "--net", "--uts", "--ipc", "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(inside, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+m.cluster.kube+":"+m.cluster.containers+":"+os.Getenv("PATH"),
		"HOME="+m.dir, "KUBECONFIG=/etc/kubernetes/admin.conf")
	cmd.WaitDelay = time.Second
	return cmd
}

// Run runs a command on the machine and returns its standard output. The error contains all output of the command.
func (m *Machine) Run(ctx context.Context, args ...string) (string, error) {
	return run(ctx, m.Command(ctx, args...))
}

// ReadFile reads a file of the machine.
func (m *Machine) ReadFile(ctx context.Context, path string) ([]byte, error) {
	content, err := m.Run(ctx, "cat", path)
	return []byte(content), err
}

// Import imports an image archive into the machine's containerd.
func (m *Machine) Import(ctx context.Context, archive io.Reader) error {
	cmd := m.Command(ctx, "ctr", "--namespace=k8s.io", "images", "import", "--no-unpack=false", "-")
	cmd.Stdin = archive
	_, err := run(ctx, cmd)
	return err
}

// ImportProgram imports an image with one static program.
func (m *Machine) ImportProgram(ctx context.Context, image, program string) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(WriteImage(w, image, program)) }()
	err := m.Import(ctx, r)
	r.CloseWithError(errors.New("the import has ended"))
	return err
}

// StopKubelet stops the kubelet. Its containers continue to run.
func (m *Machine) StopKubelet(ctx context.Context) error {
	_, err := m.Run(ctx, "sh", "-euc", "touch /run/kubelet.off; kill -KILL $(cat /run/kubelet.pid)")
	return err
}

// StartKubelet starts the kubelet again.
func (m *Machine) StartKubelet(ctx context.Context) error {
	_, err := m.Run(ctx, "rm", "/run/kubelet.off")
	return err
}

// Stop switches the machine off: all its processes end at once.
func (m *Machine) Stop() { m.init.Stop(0) }

// run runs a command and returns its standard output. The error contains all output of the command, but not its arguments,
// which may contain a token.
func run(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		program := cmd.Args[slices.Index(cmd.Args, "--")+1]
		return stdout.String(), fmt.Errorf("%s: %w: %s", program, err, strings.TrimSpace(stderr.String()+stdout.String()))
	}
	return stdout.String(), nil
}
