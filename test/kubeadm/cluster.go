// Package kubeadm makes whole clusters on this machine, with the real kubeadm, kubelet, containerd and runc, and with
// images that are built from the programs of test/kube. It needs root.
//
// Each machine of a cluster is a set of Linux namespaces. They end with the process that started them, even if it is
// killed, so no process, mount or network interface can remain. Several clusters can run at the same time.
package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

const (
	// network is the prefix of the machines' addresses in each cluster (RFC 5737). No other machine sees this network.
	network = "192.0.2"
	// prefix begins the names of the folders and cgroups of clusters.
	prefix = "kubejoin-whole-"
	// startTimeout is how long a component may take to be ready on a busy machine.
	startTimeout = 3 * time.Minute
)

// A Cluster is a network of machines. [Cluster.Delete] removes all of it.
type Cluster struct {
	// Version is the Kubernetes version, for example "v1.37.2".
	Version string

	name, dir, kube, containers string
	unlock                      func()
	progress                    io.Writer
	outside                     *Machine // has the bridge, but no containerd
	machines                    []*Machine
	images                      []string // images of the control plane
	pauseImage, proxyImage      string
	endpoint                    string // address of the API servers; empty means the address of the first machine
	more                        string // more lines of kubeadm's ClusterConfiguration, in YAML
}

// New makes a cluster without machines. It writes lines of progress to progress. It first removes the files and cgroups of
// clusters whose process has died.
func New(ctx context.Context, progress io.Writer) (*Cluster, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("a whole cluster needs root, for namespaces and containers")
	}
	if err := checkPrograms(); err != nil {
		return nil, err
	}
	c := &Cluster{progress: progress}
	var err error
	if c.kube, err = cluster.Build(ctx, progress); err != nil {
		return nil, err
	}
	if c.containers, err = cluster.BuildContainers(ctx, progress); err != nil {
		return nil, err
	}
	if err := sweep(); err != nil {
		return nil, err
	}
	if err := c.makeDir(); err != nil {
		return nil, err
	}
	if err := c.makeNetwork(ctx); err != nil {
		return nil, errors.Join(err, c.Delete())
	}
	return c, nil
}

// programs are the programs that a cluster needs and that no Go module provides.
var programs = []string{"runc", "iptables", "ip", "conntrack", "nsenter"}

func checkPrograms() error {
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("a whole cluster needs runc, iptables, iproute2, conntrack and util-linux: %w", err)
		}
	}
	return nil
}

// makeDir makes the folder of the cluster, and holds the lock in it as long as this process lives.
func (c *Cluster) makeDir() error {
	dir, err := os.MkdirTemp("", "new-"+prefix)
	if err != nil {
		return err
	}
	if c.unlock, err = cluster.Flock(filepath.Join(dir, "lock"), syscall.LOCK_EX); err != nil {
		return err
	}
	// Give the folder its final name only now: sweep looks only at such names, and must find the lock.
	c.dir = filepath.Join(filepath.Dir(dir), strings.TrimPrefix(filepath.Base(dir), "new-"))
	c.name = filepath.Base(c.dir)
	return os.Rename(dir, c.dir)
}

func (c *Cluster) makeNetwork(ctx context.Context) error {
	version, err := run(ctx, exec.CommandContext(ctx, filepath.Join(c.kube, "kubeadm"), "version", "--output=short"))
	if err != nil {
		return err
	}
	c.Version = strings.TrimSpace(version)
	images, err := run(ctx, exec.CommandContext(ctx, filepath.Join(c.kube, "kubeadm"), "config", "images", "list", "--kubernetes-version="+c.Version))
	if err != nil {
		return err
	}
	for image := range strings.FieldsSeq(images) {
		switch {
		case strings.Contains(image, "/kube-proxy:"): // only some tests run it
			c.proxyImage = image
			continue
		case strings.Contains(image, "/pause:"):
			c.pauseImage = image
		}
		c.images = append(c.images, image)
	}
	c.outside = &Machine{Name: "outside", Address: network + ".1", cluster: c, dir: filepath.Join(c.dir, "outside")}
	if err := os.Mkdir(c.outside.dir, 0o700); err != nil {
		return err
	}
	ready := filepath.Join(c.outside.dir, "ready")
	if c.outside.init, err = c.start("outside", exec.Command("sh", "-euc", `
		mount --make-rprivate /
		mount -t proc proc /proc
		ip link set lo up
		# Without an address of its own, the bridge takes the lowest of its machines, and changes it when one joins.
		ip link add br0 address 02:00:00:00:00:01 type bridge
		ip address add "$1/24" dev br0
		ip link set br0 up
		touch "$2"
		while :; do wait; sleep 3600; done`, "outside", c.outside.Address, ready)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return c.outside.init.WaitFor(ctx, func(context.Context) error {
		_, err := os.Stat(ready)
		return err
	})
}

// start starts the first process of a machine.
func (c *Cluster) start(name string, cmd *exec.Cmd) (*cluster.Process, error) {
	cmd.SysProcAttr = cluster.MachineNamespaces()
	return cluster.StartProcess("machine "+name, filepath.Join(c.dir, name, "machine.log"), cmd)
}

// Outside returns a machine in the same network that is not part of the cluster, such as an operator's machine. It has no
// containerd.
func (c *Cluster) Outside() *Machine { return c.outside }

// step runs a slow part of the setup, and writes how long it took.
func (c *Cluster) step(what string, part func() error) error {
	fmt.Fprintf(c.progress, "%s … ", what)
	start := time.Now()
	err := part()
	result := fmt.Sprintf("%.1f s", time.Since(start).Seconds())
	if err != nil {
		result = "failed after " + result
		err = fmt.Errorf("%s: %w", what, err)
	}
	fmt.Fprintln(c.progress, result)
	return err
}

// Logs returns the end of each log of machines, containerd, kubelets and containers.
func (c *Cluster) Logs() string {
	var text strings.Builder
	_ = filepath.WalkDir(c.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Ext(path) != ".log" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil || len(content) == 0 {
			return nil
		}
		lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
		shown, _ := filepath.Rel(c.dir, path)
		fmt.Fprintf(&text, "== %s\n  %s\n", shown, strings.Join(lines[max(0, len(lines)-10):], "\n  "))
		return nil
	})
	return text.String()
}

// KeepLogs moves the logs of the machines to a folder, which it replaces.
func (c *Cluster) KeepLogs(folder string) error {
	err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755))
	for _, m := range c.machines {
		err = errors.Join(err, os.Rename(filepath.Join(m.dir, "log"), filepath.Join(folder, m.Name)))
	}
	return err
}

// Delete stops all machines and removes their files and cgroups.
func (c *Cluster) Delete() error {
	machines := c.machines
	if c.outside != nil {
		machines = append(machines, c.outside)
	}
	for _, m := range machines {
		m.Stop()
	}
	c.machines, c.outside = nil, nil
	defer c.unlock()
	return remove(c.dir)
}

// sweep removes the files and cgroups of clusters whose process has died.
func sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		unlock, err := cluster.Flock(filepath.Join(dir, "lock"), syscall.LOCK_EX|syscall.LOCK_NB)
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
			continue // its process lives, or another process has just removed it
		}
		if err != nil {
			return err
		}
		err = remove(dir)
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes the folder of a cluster without processes, and its cgroups, which have the same name.
func remove(dir string) error {
	cgroups, err := filepath.Glob(filepath.Join("/sys/fs/cgroup", "*", filepath.Base(dir)))
	if err != nil {
		return err
	}
	cgroups = append(cgroups, filepath.Join("/sys/fs/cgroup", filepath.Base(dir))) // the path with only cgroup v2
	for _, cgroup := range cgroups {
		if err := removeCgroup(cgroup); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// removeCgroup removes a cgroup and its children. The kernel refuses as long as a dying process is in one of them.
func removeCgroup(cgroup string) error {
	entries, err := os.ReadDir(cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(cgroup, entry.Name())))
		}
	}
	for range 100 {
		if err = syscall.Rmdir(cgroup); !errors.Is(err, syscall.EBUSY) {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return fmt.Errorf("removing cgroup %s: %w", cgroup, err)
	}
	return nil
}
