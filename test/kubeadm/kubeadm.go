package kubeadm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/kube/imagetag"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// config is the configuration for kubeadm init. The settings from cgroupDriver on let the kubelet run without systemd, and
// stop it from deleting images that no registry has.
const config = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint:
  advertiseAddress: %[1]s
%[3]s---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %[2]s
controlPlaneEndpoint: %[4]s:6443
encryptionAlgorithm: ECDSA-P256
apiServer:
  extraArgs:
  - name: kubelet-certificate-authority
    value: /etc/kubernetes/pki/ca.crt
%[5]s---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
serverTLSBootstrap: true
cgroupDriver: cgroupfs
enforceNodeAllocatable: [none]
failSwapOn: false
failCgroupV1: false
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: "0%%"
  nodefs.available: "0%%"
  imagefs.available: "0%%"
`

// Config is the path of kubeadm's configuration on the first control plane.
const Config = "/etc/kubernetes/kubeadm.yaml"

// Init makes the first machine a control plane with kubeadm init. The cluster has no pod network, no kube-proxy and no DNS:
// its pods use the host network. The API server verifies the serving certificates of kubelets, and kubelets request these
// certificates. patches is a folder of patches for kubeadm; empty for none.
func (c *Cluster) Init(ctx context.Context, patches string) error {
	m := c.machines[0]
	if err := c.step("importing the images of Kubernetes", func() error { return m.importImages(ctx, c.images) }); err != nil {
		return err
	}
	if err := c.configure(ctx, patches); err != nil {
		return err
	}
	return c.step("kubeadm init", func() error {
		return m.kubeadm(ctx, "kubeadm init --skip-phases=addon --ignore-preflight-errors=all --config="+Config)
	})
}

// configure writes the configuration for kubeadm, with a folder of patches if one is given.
func (c *Cluster) configure(ctx context.Context, patches string) error {
	if patches != "" {
		patches = fmt.Sprintf("patches:\n  directory: %q\n", patches)
	}
	more := c.more
	if c.olderThan("1.36") {
		more = fastShutdown + more
	}
	return c.machines[0].writeFile(ctx, Config, fmt.Sprintf(config, c.machines[0].Address, c.Version, patches, cmp.Or(c.endpoint, c.machines[0].Address), more))
}

// fastShutdown lets API servers stop within 2 s, because before Kubernetes 1.36 each rotation of the CA restarts them.
// Without it, API servers wait for clients that keep connections open, until the kubelet kills them after 30 s.
const fastShutdown = `  - name: shutdown-send-retry-after
    value: "true"
`

// olderThan reports whether the cluster runs a version of Kubernetes before version.
func (c *Cluster) olderThan(version string) bool { return imagetag.Before(":"+c.Version, version) }

// importImages imports images that kubeadm names, except CoreDNS, which the cluster does not run.
func (m *Machine) importImages(ctx context.Context, images []string) error {
	for _, image := range images {
		name, _, _ := strings.Cut(path.Base(image), ":")
		program := filepath.Join(m.cluster.kube, name)
		if name == "pause" {
			program = filepath.Join(m.cluster.containers, name)
		} else if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := m.ImportProgram(ctx, image, program); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	return nil
}

// Join runs a join command on a machine. Before that, a control plane gets the images of Kubernetes, and a worker gets the
// image of the pause program.
func (m *Machine) Join(ctx context.Context, line string) error {
	args, err := cluster.JoinArgs(line)
	if err != nil {
		return err
	}
	images := []string{m.cluster.pauseImage}
	if slices.Contains(args, "--control-plane") {
		images = m.cluster.images
	}
	return m.cluster.step("kubeadm join of "+m.Name, func() error {
		if err := m.importImages(ctx, images); err != nil {
			return err
		}
		return m.kubeadm(ctx, strings.TrimSpace(line)+" --ignore-preflight-errors=all")
	})
}

// kubeadm runs a line of shell and logs its output.
func (m *Machine) kubeadm(ctx context.Context, line string) error {
	const log = "/var/log/kubeadm.log"
	_, err := m.Run(ctx, "sh", "-c", "{ "+line+"; } >>"+log+" 2>&1 </dev/null || { tail -n 30 "+log+" >&2; exit 1; }")
	return err
}

func (m *Machine) writeFile(ctx context.Context, path, content string) error {
	cmd := m.Command(ctx, "sh", "-euc", `mkdir -p "${1%/*}"; umask 077; cat >"$1"`, "write", path)
	cmd.Stdin = strings.NewReader(content)
	_, err := run(ctx, cmd)
	return err
}

// Kubectl runs kubectl as the administrator on the first control plane, and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.machines[0].Run(ctx, append([]string{"kubectl"}, args...)...)
}

const pod = `apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
spec:
  hostNetwork: true
  nodeSelector:
    kubernetes.io/hostname: %[2]s
  tolerations:
  - operator: Exists
  terminationGracePeriodSeconds: 0
  containers:
  - name: %[1]s
    image: %[3]s
    args: [%[4]q]
`

// RunPod runs a pod that prints text and then waits, on a machine that has joined. It returns when the pod is ready and
// kube-apiserver can read its log, so the kubelet has its serving certificate.
func (c *Cluster) RunPod(ctx context.Context, m *Machine, name, text string) error {
	return c.step("starting a pod on "+m.Name, func() error {
		file := "/etc/kubernetes/" + name + ".yaml"
		if err := c.machines[0].writeFile(ctx, file, fmt.Sprintf(pod, name, m.Name, c.pauseImage, text)); err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, "apply", "--filename", file); err != nil {
			return err
		}
		if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "pod/"+name, "--timeout=3m"); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no log after %v", startTimeout))
		defer cancel()
		return m.init.WaitFor(ctx, func(ctx context.Context) error {
			_, err := c.Kubectl(ctx, "logs", name)
			return err
		})
	})
}
