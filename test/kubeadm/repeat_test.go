package kubeadm

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestControlPlaneRepeatsItsJoin lets kubeadm fail after the Node of a control plane has registered: a firewall blocks its
// etcd member. Then the test runs the same command again. It catches a signature that kubejoin removes as soon as the token
// is spent, and a second claim or key.
func TestControlPlaneRepeatsItsJoin(t *testing.T) {
	harness.Parallel(t)
	c := ForTest(t)
	p := &pair{c, t, addMachine(t, c, "control-1"), addMachine(t, c, "control-2")}
	off := must.Value(os.ReadFile(harness.RepositoryFile(t, "deploy/kubeadm/cluster-configuration.yaml")))(t)
	_, c.more, _ = strings.Cut(string(off), "kind: ClusterConfiguration\n") // otherwise kube-controller-manager would sign as well
	p.must(c.Init(t.Context(), ""))
	p.must(p.first.ImportProgram(t.Context(), image, harness.Kubejoin()))
	p.must(c.Install(t.Context(), image))
	p.must(c.permitControlPlanes(t.Context()))
	line := must.Value(c.RequestJoin(t.Context(), p.first.Address, "controlPlane=true"))(t)
	id, _, _ := strings.Cut(strings.Fields(line)[4], ".")

	firewall := func(change string) {
		t.Helper()
		p.on(p.second, "iptables", change, "INPUT", "--protocol", "tcp", "--destination", p.second.Address, "--dport", "2379", "--jump", "REJECT")
	}
	firewall("--append")
	joined := make(chan error, 1)
	go func() { joined <- p.second.Join(t.Context(), line) }()
	p.waitClaim(id)
	const waits = "Waiting for the new etcd member to join the cluster"
	p.on(p.second, "sh", "-euc", `until grep -q "$1" /var/log/kubeadm.log; do sleep 0.1; done; kill -INT $(pidof kubeadm)`, "stop", waits)
	if err := <-joined; err == nil {
		t.Fatal("kubeadm has joined a machine that does not reach its etcd")
	}
	firewall("--delete")

	p.kubectl("--namespace=kubejoin-system", "rollout", "restart", "daemonset/kubejoin") // at its start, kubejoin looks for spent tokens at once
	p.kubectl("--namespace=kubejoin-system", "rollout", "status", "daemonset/kubejoin", "--timeout=3m")
	must.Value(c.RequestJoin(t.Context(), p.first.Address, "maxNodes=1"))(t) // the removal of spent signatures is in the same write or an earlier one
	if p.kubectl("--namespace=kube-public", "get", "configmap", "cluster-info", "--output=jsonpath={.data."+clusterinfo.SignatureKey(id)+"}") == "" {
		t.Fatal("cluster-info has no signature of the token, so kubeadm would wait for it")
	}
	p.must(p.second.Join(t.Context(), line))
	p.waitClaim(id)
	if got := p.kubectl("get", "nodes", "--selector=node-role.kubernetes.io/control-plane", "--output=name"); got != "node/control-1\nnode/control-2" {
		t.Errorf("got control planes %q", got)
	}
}

// waitClaim waits until the Node of the second machine has registered. It checks that the claim has one key and belongs to
// the token with this ID.
func (p *pair) waitClaim(id string) {
	p.t.Helper()
	harness.Wait(p.t, "claim of control-2", func() error {
		claim, err := p.first.Run(p.t.Context(), harness.Kubejoin(), "claim", "list", "--output=jsonpath={.items[*].node} {.items[*].token} {.items[*].keys} {.items[*].nodeUID}")
		fields := strings.Fields(claim)
		if want := "control-2 " + id + " 1 "; !strings.HasPrefix(claim, want) || len(fields) != 4 {
			return errors.Join(fmt.Errorf("got %q, want %q and a UID", claim, want), err)
		}
		return nil
	})
}
