package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/kubejoin/kubejoin/test/kubeadm"
)

// demoCluster creates a whole cluster with kubeadm init, joins a worker through kubejoin, shows the log of a pod on the
// worker, and removes everything.
func demoCluster(ctx context.Context, kubejoin string, out io.Writer) (err error) {
	s := &session{out: out}
	s.say("Make a cluster with kubeadm init, containerd and runc. kube-controller-manager does not sign")
	patches, err := kubeadm.AllSignersOff()
	if err != nil {
		return err
	}
	c, err := kubeadm.New(ctx, out)
	if err != nil {
		return err
	}
	defer func() {
		s.say("Remove the cluster")
		if deleting := c.Delete(); err == nil {
			err = deleting
		}
	}()
	control, err := c.AddMachine(ctx, "control-1")
	if err != nil {
		return err
	}
	if err := c.Init(ctx, patches); err != nil {
		return err
	}

	s.say("Run kubejoin as a DaemonSet on the control plane")
	const image = "ghcr.io/kubejoin/kubejoin:demo"
	if err := control.ImportProgram(ctx, image, kubejoin); err != nil {
		return err
	}
	if err := c.Install(ctx, image); err != nil {
		return err
	}

	s.say("Get the join command with curl, and join a worker that has its own containerd")
	line, err := c.JoinCommand(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, strings.TrimSpace(line))
	worker, err := c.AddMachine(ctx, "worker-1")
	if err != nil {
		return err
	}
	if err := worker.Join(ctx, line); err != nil {
		return err
	}

	s.say("Show the log of a pod on the worker. kube-apiserver verifies the serving certificate that kubejoin issued.\n== The nodes are NotReady because the cluster has no pod network")
	if err := c.RunPod(ctx, worker, "hello", "Hello from worker-1"); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"get", "nodes,csr"},
		{"logs", "hello"},
	} {
		s.command(append([]string{"kubectl"}, args...)...)
		text, err := c.Kubectl(ctx, args...)
		if fmt.Fprint(out, text); err != nil {
			return err
		}
	}
	return nil
}
