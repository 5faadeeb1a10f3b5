package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Boot starts a machine that runs a command at boot, for example the script of an installer. Boot does not
// wait; [Node.WaitJoined] waits until the command has ended. It needs root.
//
// With kubeadm, the PATH of the machine has a wrapper of the real kubeadm with settings for this harness. The
// kubelet then starts as with [Cluster.StartNode]. Without kubeadm, the machine has a configured kubelet, which
// restarts until it finds /etc/kubernetes/bootstrap-kubelet.conf.
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
			c.writeKubeletConfig(dir, true),
			os.WriteFile(filepath.Join(dir, "kubelet.flags"), []byte(flags), 0o600),
			os.Symlink(filepath.Join(c.Bin, "kubelet"), filepath.Join(bin, "kubelet")),
		); err != nil {
			return nil, err
		}
		return c.startNode(name, dir, "boot", slices.Clone(command))
	}
	// The wrapper logs the arguments of kubeadm and adds flags of the harness. With --config, it adds the settings to the
	// file instead, because kubeadm does not accept these flags with --config.
	kubeadm := fmt.Sprintf(`#!/bin/sh
printf '%%s\n' "$*" >>'%[1]s/kubeadm.args'
more='--cri-socket=unix://%[1]s/cri.sock --patches=%[1]s/patches'
before=
for word; do
	if [ "$before" = --config ]; then
		more=
		grep -q '^nodeRegistration:' "$word" || echo nodeRegistration: >>"$word"
		sed -i 's|^nodeRegistration: {|&criSocket: "unix://%[1]s/cri.sock", |; s|^nodeRegistration:$|&\n  criSocket: unix://%[1]s/cri.sock|' "$word"
		printf 'patches:\n  directory: %[1]s/patches\n' >>"$word"
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

// KubeadmArgs returns the arguments of each run of kubeadm on a machine that [Cluster.Boot] started, one run per
// line.
func (n *Node) KubeadmArgs() (string, error) {
	data, err := os.ReadFile(filepath.Join(n.dir, "kubeadm.args"))
	return string(data), err
}
