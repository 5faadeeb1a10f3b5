package kubeadm

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

// TestControlPlaneJoinsByOneCall joins a second control plane with the join command of one curl. It catches an upload that
// the real kubeadm join cannot use, and a control plane that does not work.
func TestControlPlaneJoinsByOneCall(t *testing.T) {
	harness.Parallel(t)
	c := ForTest(t)
	control := addMachine(t, c, "control-1")
	if err := c.Init(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	const image = "ghcr.io/kubejoin/kubejoin:test"
	if err := control.ImportProgram(t.Context(), image, buildStatic(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.Install(t.Context(), image); err != nil {
		t.Fatal(err)
	}
	line, err := c.ControlPlaneJoinCommand(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second := addMachine(t, c, "control-2")
	if err := second.Join(t.Context(), line); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"ca.key", "sa.key", "front-proxy-ca.key", "etcd/ca.key"} {
		a, errA := control.ReadFile(t.Context(), "/etc/kubernetes/pki/"+file)
		b, errB := second.ReadFile(t.Context(), "/etc/kubernetes/pki/"+file)
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Errorf("%s differs: %v, %v", file, errA, errB)
		}
	}
	for _, m := range []*Machine{control, second} {
		harness.Wait(t, "the API server of "+m.Name, func() error {
			ready, err := m.Run(t.Context(), "kubectl", "--server=https://"+net.JoinHostPort(m.Address, "6443"), "get", "--raw=/readyz")
			if err != nil || ready != "ok" {
				return fmt.Errorf("ready: %q, %w", ready, err)
			}
			return nil
		})
		members, learners, err := etcdMembers(t, m)
		if err != nil || members != 2 || learners != 0 {
			t.Errorf("etcd of %s has %d members, %d of them learners, %v, want 2 and none", m.Name, members, learners, err)
		}
	}
	log, err := c.Kubectl(t.Context(), "--namespace=kubejoin-system", "logs", "daemonset/kubejoin", "--tail=-1")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(line)
	if key := words[len(words)-1]; len(key) != 64 || strings.Contains(log, key) {
		t.Error("the log of kubejoin has the certificate key")
	}
	if !strings.Contains(log, "uploaded the certificates of control planes") {
		t.Errorf("the log of kubejoin has no line about the upload:\n%s", log)
	}
}

// etcdMembers asks the etcd of a control plane for the number of its members, and of the learners among them.
func etcdMembers(t *testing.T, m *Machine) (members, learners int, err error) {
	t.Helper()
	const pki = "/etc/kubernetes/pki/etcd/"
	text, err := m.Run(t.Context(), "curl", "--silent", "--show-error", "--fail", "--cacert", pki+"ca.crt", "--cert", pki+"healthcheck-client.crt",
		"--key", pki+"healthcheck-client.key", "--data", "{}", "https://127.0.0.1:2379/v3/cluster/member/list")
	if err != nil {
		return 0, 0, err
	}
	var list struct {
		Members []struct {
			IsLearner bool `json:"isLearner"`
		} `json:"members"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return 0, 0, err
	}
	for _, member := range list.Members {
		if member.IsLearner {
			learners++
		}
	}
	return len(list.Members), learners, nil
}
