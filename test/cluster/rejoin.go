package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// kubelet returns the process ID of the kubelet, in the PID namespace of this program.
func (n *Node) kubelet() (int, error) {
	machine, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", n.machine.PID()))
	if err != nil {
		return 0, err
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		// Skip processes that cannot be read: any process may end at any time.
		dir := filepath.Dir(name)
		comm, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(comm)) != "kubelet" {
			continue
		}
		if ns, err := os.Readlink(filepath.Join(dir, "ns/pid")); err == nil && ns == machine {
			return strconv.Atoi(filepath.Base(dir))
		}
	}
	return 0, errors.New("no kubelet runs")
}

// StopKubelet kills the kubelet. It does not run again before [Node.StartKubelet].
func (n *Node) StopKubelet() error {
	if err := os.WriteFile(filepath.Join(n.dir, "kubelet.off"), nil, 0o600); err != nil {
		return err
	}
	if pid, err := n.kubelet(); err == nil {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// StartKubelet lets the kubelet run again. From then on, the kubelet restarts whenever it ends, as with systemd.
func (n *Node) StartKubelet() error { return os.Remove(filepath.Join(n.dir, "kubelet.off")) }

// Run runs a command on the machine and returns its output and exit code. The machine has the files of the host, except the
// files of Kubernetes.
func (n *Node) Run(ctx context.Context, command ...string) (output string, code int, err error) {
	inside := []string{"--target", strconv.Itoa(n.machine.PID()), "--mount", "--pid"}
	out, err := exec.CommandContext(ctx, "nsenter", slices.Concat(inside, command)...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(out), exit.ExitCode(), nil
	}
	return string(out), 0, err
}

// Reset stops the kubelet, because kubeadm can stop it only through systemd. Then it runs 'kubeadm reset' and returns the
// output. The kubelet restarts when [Node.Rejoin] has written its flags.
func (n *Node) Reset(ctx context.Context) (output string, err error) {
	if err := n.StopKubelet(); err != nil {
		return "", err
	}
	output, err = n.kubeadm(ctx, "reset", "--force", "--cri-socket", "unix://"+filepath.Join(n.dir, "cri.sock"))
	return output, errors.Join(err, n.StartKubelet())
}

// Rejoin runs 'kubeadm join' on a machine that joined before and was reset, and returns the output of kubeadm.
// It kills kubeadm when ctx ends.
func (n *Node) Rejoin(ctx context.Context, args []string) (output string, err error) {
	return n.kubeadm(ctx, append(append([]string{"join"}, args...), "--node-name", n.Name,
		"--cri-socket", "unix://"+filepath.Join(n.dir, "cri.sock"), "--patches", filepath.Join(n.dir, "patches"), "--ignore-preflight-errors=all")...)
}

// kubeadm runs kubeadm on the machine.
func (n *Node) kubeadm(ctx context.Context, args ...string) (output string, err error) {
	log, err := os.CreateTemp(n.dir, "kubeadm-"+args[0]+"-*.log")
	if err != nil {
		return "", err
	}
	defer log.Close()
	inside := []string{"--target", strconv.Itoa(n.machine.PID()), "--mount", "--pid", filepath.Join(n.bin, "kubeadm")}
	cmd := exec.Command("nsenter", slices.Concat(inside, args)...)
	// As in node.sh, PATH contains no systemctl.
	cmd.Env = []string{"PATH=" + n.bin, "HOME=" + n.dir}
	p, err := StartProcess("kubeadm of "+n.Name, log.Name(), cmd)
	if err != nil {
		return "", err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		p.Stop(0)
		return p.Log(), fmt.Errorf("kubeadm of %s: %w", n.Name, context.Cause(ctx))
	}
	if err := p.Err(); err != nil {
		return p.Log(), fmt.Errorf("kubeadm of %s: %w\n%s", n.Name, err, tail(p.LogFile, 15))
	}
	return p.Log(), nil
}
