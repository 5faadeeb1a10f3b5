package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Boot starts a machine that runs a command when it comes up, as what installs machines does, and
// waits for nothing; [Node.WaitJoined] waits for the end of the command. It needs root.
//
// What the machine has in its PATH is kubeadm, the real one with settings for this harness, and a
// kubelet that starts as with [Cluster.StartNode]; or, without kubeadm, the kubelet alone, which is
// configured and starts over and over until it finds its /etc/kubernetes/bootstrap-kubelet.conf.
func (c *Cluster) Boot(name string, withKubeadm bool, command ...string) (*Node, error) {
	dir, err := c.nodeDir(name)
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return nil, err
	}
	if !withKubeadm {
		flags := fmt.Sprintf("KUBELET_KUBEADM_ARGS=\"--hostname-override=%s --container-runtime-endpoint=unix://%s\"\n", name, filepath.Join(dir, "cri.sock"))
		if err := errors.Join(
			c.writeKubeletConfig(dir),
			os.WriteFile(filepath.Join(dir, "kubelet.flags"), []byte(flags), 0o600),
			os.Symlink(filepath.Join(c.Bin, "kubelet"), filepath.Join(bin, "kubelet")),
		); err != nil {
			return nil, err
		}
		return c.startNode(name, dir, "boot", slices.Clone(command))
	}
	// What kubeadm is told is noted, and what the harness has to add is added: to the
	// configuration, or to the flags, which do not go together.
	kubeadm := fmt.Sprintf(`#!/bin/sh
printf '%%s\n' "$*" >>'%[1]s/kubeadm.args'
more='--cri-socket=unix://%[1]s/cri.sock --patches=%[1]s/patches'
before=
for word; do
	if [ "$before" = --config ]; then
		more=
		printf 'nodeRegistration:\n  criSocket: unix://%[1]s/cri.sock\npatches:\n  directory: %[1]s/patches\n' >>"$word"
	fi
	before=$word
done
PATH='%[2]s' exec '%[2]s/kubeadm' "$@" --node-name='%[3]s' --ignore-preflight-errors=all $more
`, dir, c.Bin, name)
	if err := errors.Join(
		c.writeKubeletPatch(dir),
		os.WriteFile(filepath.Join(bin, "kubeadm"), []byte(kubeadm), 0o700),
	); err != nil {
		return nil, err
	}
	return c.startNode(name, dir, "boot", slices.Clone(command))
}

// KubeadmArgs are the command lines with which kubeadm has run on a machine that [Cluster.Boot]
// started.
func (n *Node) KubeadmArgs() (string, error) {
	data, err := os.ReadFile(filepath.Join(n.dir, "kubeadm.args"))
	return string(data), err
}
