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
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// A module is a nested module that pins programs which the tests run. They are built into its folder bin.
type module struct {
	name     string                             // below test
	programs []program                          // in the order of their builds
	sources  []string                           // files of its own programs
	flags    func(dir string) ([]string, error) // of go build
}

type program struct{ name, pkg string }

// kube has the components of Kubernetes. kubeadm comes first, because it compiles the code that most of the others
// share.
var kube = module{
	name: "kube",
	programs: []program{
		{"kubeadm", "k8s.io/kubernetes/cmd/kubeadm"},
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
		{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
		{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
		{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
		{"kubelet", "k8s.io/kubernetes/cmd/kubelet"},
		{"etcd", "go.etcd.io/etcd/server/v3"},
		{"fakecri", "./fakecri"},
		{"specs", "./specs"},
	},
	sources: []string{"fakecri/main.go", "specs/main.go"},
	flags:   kubeFlags,
}

// containers has the container runtime of whole clusters.
var containers = module{
	name: "containers",
	programs: []program{
		{"containerd", "github.com/containerd/containerd/v2/cmd/containerd"},
		{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
		{"ctr", "github.com/containerd/containerd/v2/cmd/ctr"},
		{"pause", "./pause"},
	},
	sources: []string{"pause/main.go"},
	flags: func(string) ([]string, error) {
		return []string{"-trimpath", "-tags", "no_btrfs,no_devmapper,no_zfs", "-ldflags", "-s -w"}, nil
	},
}

// Build builds the programs that test/kube pins into test/kube/bin, and returns that folder. The first
// build takes minutes; later calls return at once. If another process is building, Build waits for it.
// It writes lines of progress to progress, which may be nil.
//
// Build looks for the module in the working directory and its parents.
func Build(ctx context.Context, progress io.Writer) (dir string, err error) {
	return kube.build(ctx, progress)
}

// BuildContainers is [Build] of containerd and the other programs in test/containers.
func BuildContainers(ctx context.Context, progress io.Writer) (dir string, err error) {
	return containers.build(ctx, progress)
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
	flags, stamp, err := m.recipe(source)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(source, "bin")
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
	if m.built(dir, stamp) { // by the process that held the lock
		return dir, nil
	}
	for i, p := range m.programs {
		fmt.Fprintf(progress, "building %s (%d of %d) … ", p.name, i+1, len(m.programs))
		start := time.Now()
		args := append([]string{"build", "-o", filepath.Join(dir, p.name)}, flags...)
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

// recipe returns the flags of go build, and a stamp that changes whenever a rebuild is needed.
func (m module) recipe(dir string) (flags []string, stamp string, err error) {
	flags, err = m.flags(dir)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.New()
	for _, name := range append([]string{"go.mod", "go.sum"}, m.sources...) {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, "", err
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(data), data)
	}
	stamp = fmt.Sprintf("%s %s/%s\n%q\nsha256:%x\n", m.name, runtime.GOOS, runtime.GOARCH, flags, sum.Sum(nil))
	return flags, stamp, nil
}

// kubeFlags sets the version of Kubernetes, without which kubeadm does not work.
func kubeFlags(dir string) ([]string, error) {
	version, err := kubeVersion(dir)
	if err != nil {
		return nil, err
	}
	const x = "-X k8s.io/component-base/version."
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	return []string{"-trimpath", "-ldflags", "-s -w " + x + "gitVersion=" + version + " " + x + "gitMajor=" + major + " " + x + "gitMinor=" + minor}, nil
}

var kubeRequirement = regexp.MustCompile(`(?m)^\s*k8s\.io/kubernetes (v\d+\.\d+\.\d+\S*)`)

// kubeVersion returns the Kubernetes version that test/kube requires, for example "v1.36.3".
func kubeVersion(module string) (string, error) {
	data, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", err
	}
	m := kubeRequirement.FindSubmatch(data)
	if m == nil {
		return "", fmt.Errorf("%s does not require k8s.io/kubernetes", filepath.Join(module, "go.mod"))
	}
	return string(m[1]), nil
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

// pause waits for d. It returns the cause if ctx ends before.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
