package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
)

// A module is a nested module that pins programs which the tests run. [Build] and similar functions build them into its
// folder bin.
type module struct {
	name     string    // below test
	modfile  string    // go.mod, or another module file with the same imports
	bin      string    // folder of the programs, relative to the module
	programs []program // in build order
	sources  []string  // source files of the module's own programs
	flags    []string  // flags for go build
}

type program struct{ name, pkg string }

// kube has the components of one version of Kubernetes. kubeadm comes first, because its build compiles the code that most
// other programs share.
func kube(p pin) module {
	// kubeadm does not work without a version.
	const x = " -X k8s.io/component-base/version."
	v := version.MustParseGeneric(p.version)
	m := module{
		name:    "kube",
		modfile: p.modfile,
		bin:     "bin",
		programs: []program{
			{"kubeadm", "k8s.io/kubernetes/cmd/kubeadm"},
			{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
			{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
			{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
			{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"},
			{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
			{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
			{"etcd", "go.etcd.io/etcd/server/v3"},
			{"fakecri", "./fakecri"},
		},
		sources: []string{"fakecri/main.go"},
		flags: []string{"-trimpath", "-ldflags", fmt.Sprintf("-s -w%[1]sgitVersion=v%[2]s%[1]sgitMajor=%[3]d%[1]sgitMinor=%[4]d",
			x, p.version, v.Major(), v.Minor())},
	}
	if p.modfile != "go.mod" {
		m.bin = filepath.Join("bin", p.version)
	}
	return m
}

// containers has the container runtime for the clusters of package kubeadm.
var containers = module{
	name:    "containers",
	modfile: "go.mod",
	bin:     "bin",
	programs: []program{
		{"containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
		{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
		{"ctr", "github.com/containerd/containerd/v2/cmd/ctr"},
		{"pause", "./pause"},
	},
	sources: []string{"pause/main.go"},
	flags:   []string{"-trimpath", "-tags", "no_btrfs,no_devmapper,no_zfs", "-ldflags", "-s -w"},
}

// specs has Kubernetes' own specs of bootstrap tokens and certificate requests. The tests use the specs of 1.36, the last
// version that has all of them, with each version of Kubernetes.
var specs = module{
	name:     "specs",
	modfile:  "go.mod",
	bin:      "bin",
	programs: []program{{"specs", "."}},
	sources:  []string{"main.go"},
	flags:    []string{"-trimpath", "-ldflags", "-s -w"},
}

// etcdctl is the command line of etcd, for the commands of the docs.
var etcdctl = module{
	name:     "etcdctl",
	modfile:  "go.mod",
	bin:      "bin",
	programs: []program{{"etcdctl", "go.etcd.io/etcd/etcdctl/v3"}},
	flags:    []string{"-trimpath", "-ldflags", "-s -w"},
}

// Build builds the programs that test/kube pins, of the version that [VersionVariable] chooses. It returns their folder:
// test/kube/bin, or bin/VERSION there if the version is not the newest. The first build takes minutes; later calls return
// at once. If another process is building, Build waits for it. It writes lines of progress to progress, which may be nil.
//
// Build looks for the module in the working directory and its parents.
func Build(ctx context.Context, progress io.Writer) (dir string, err error) {
	p, err := choose(os.Getenv(VersionVariable))
	if err != nil {
		return "", err
	}
	return kube(p).build(ctx, progress)
}

// BuildEtcd is like [Build], but builds only etcd, and returns the path of the program. If Build has already built etcd, it
// returns that program.
func BuildEtcd(ctx context.Context, progress io.Writer) (file string, err error) {
	p, err := choose(os.Getenv(VersionVariable))
	if err != nil {
		return "", err
	}
	root, err := Repository()
	if err != nil {
		return "", err
	}
	m := kube(p)
	source := filepath.Join(root, "test", m.name)
	stamp, err := m.recipe(source)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(source, m.bin)
	if !m.built(dir, stamp) {
		m.programs = slices.DeleteFunc(m.programs, func(other program) bool { return other.name != "etcd" })
		m.bin = filepath.Join(m.bin, "only-etcd")
		dir, err = m.build(ctx, progress)
	}
	return filepath.Join(dir, "etcd"), err
}

// BuildContainers is [Build] for containerd and the other programs in test/containers.
func BuildContainers(ctx context.Context, progress io.Writer) (dir string, err error) {
	return containers.build(ctx, progress)
}

// BuildSpecs is [Build] for Kubernetes' own specs.
func BuildSpecs(ctx context.Context, progress io.Writer) (dir string, err error) {
	return specs.build(ctx, progress)
}

// BuildEtcdctl is [Build] for etcdctl.
func BuildEtcdctl(ctx context.Context, progress io.Writer) (dir string, err error) {
	return etcdctl.build(ctx, progress)
}

func (m module) build(ctx context.Context, progress io.Writer) (dir string, err error) {
	if progress == nil {
		progress = io.Discard
	}
	root, err := Repository()
	if err != nil {
		return "", err
	}
	source := filepath.Join(root, "test", m.name)
	stamp, err := m.recipe(source)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(source, m.bin)
	if m.built(dir, stamp) {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lock(ctx, filepath.Join(dir, ".lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if m.built(dir, stamp) { // the process that held the lock before has built the programs
		return dir, nil
	}
	for i, p := range m.programs {
		fmt.Fprintf(progress, "building %s (%d of %d) … ", p.name, i+1, len(m.programs))
		start := time.Now()
		args := append([]string{"build", "-modfile", m.modfile, "-o", filepath.Join(dir, p.name)}, m.flags...)
		cmd := exec.CommandContext(ctx, "go", append(args, p.pkg)...)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintln(progress, "failed")
			return "", fmt.Errorf("building %s in %s: %w\n%s", p.name, source, err, out)
		}
		fmt.Fprintf(progress, "%d s\n", int(time.Since(start).Round(time.Second).Seconds()))
	}
	return dir, os.WriteFile(filepath.Join(dir, stampName), []byte(stamp), 0o644)
}

const stampName = ".stamp"

// Repository returns the root folder of the kubejoin repository. It looks in the working directory and its parents.
func Repository() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "kube", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no test/kube/go.mod in %s or above it: run inside the kubejoin repository", start)
		}
	}
}

// recipe returns a stamp that changes whenever a rebuild is needed.
func (m module) recipe(dir string) (stamp string, err error) {
	sum := sha256.New()
	for _, name := range append([]string{m.modfile, strings.TrimSuffix(m.modfile, "mod") + "sum"}, m.sources...) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(data), data)
	}
	return fmt.Sprintf("%s %s/%s\n%q\nsha256:%x\n", m.name, runtime.GOOS, runtime.GOARCH, m.flags, sum.Sum(nil)), nil
}

func (m module) built(dir, stamp string) bool {
	if data, err := os.ReadFile(filepath.Join(dir, stampName)); err != nil || string(data) != stamp {
		return false
	}
	for _, p := range m.programs {
		if _, err := os.Stat(filepath.Join(dir, p.name)); err != nil {
			return false
		}
	}
	return true
}

// lock takes an exclusive [Flock]. It writes a line to progress if it has to wait.
func lock(ctx context.Context, path string, progress io.Writer) (unlock func(), err error) {
	for told := false; ; told = true {
		unlock, err := Flock(path, syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return unlock, err
		}
		if !told {
			fmt.Fprintln(progress, "waiting for another process that builds the programs …")
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return nil, fmt.Errorf("waiting for %s: %w", path, err)
		}
	}
}

// pause waits for d. If ctx ends before, it returns the cause.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
