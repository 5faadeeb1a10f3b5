package tokens_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestNodePropertiesAreLabelsAndTaints(t *testing.T) {
	p := tokens.NodeProperties{
		Labels: tokens.JoinProperties([]string{"x.example/b=c", "a="}),
		Taints: tokens.JoinProperties([]string{"d=e:NoExecute", "d:NoSchedule"}),
	}
	if p.Labels != "a=,x.example/b=c" || !maps.Equal(p.LabelMap(), map[string]string{"a": "", "x.example/b": "c"}) {
		t.Errorf("labels: got %q and %v", p.Labels, p.LabelMap())
	}
	if want := []tokens.Taint{{"d", "", "NoSchedule"}, {"d", "e", "NoExecute"}}; p.Taints != "d:NoSchedule,d=e:NoExecute" || !slices.Equal(p.TaintList(), want) {
		t.Errorf("taints: got %q and %v, want %v", p.Taints, p.TaintList(), want)
	}
	if none := (tokens.NodeProperties{}); len(none.LabelMap()) > 0 || len(none.TaintList()) > 0 {
		t.Errorf("zero: got %v and %v, want none", none.LabelMap(), none.TaintList())
	}
}

// The table is that of the admission plugin NodeRestriction.
func TestKubeletMaySet(t *testing.T) {
	for key, want := range map[string]bool{
		"tenant": true, "example.com/tenant": true, "kubelet.kubernetes.io/a": true, "a.kubelet.kubernetes.io/b": true, "node.kubernetes.io/a": true, "notkubernetes.io/a": true,
		"node-restriction.kubernetes.io/tenant": false, "a.node-restriction.kubernetes.io/b": false, "node-role.kubernetes.io/worker": false, "kubernetes.io/role": false, "k8s.io/a": false, "x.k8s.io/a": false,
	} {
		if got := tokens.KubeletMaySet(key); got != want {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
}

// A token must not set a label or taint that another component owns. Catches a row that is missing.
func TestRefusesKeysOfOtherComponents(t *testing.T) {
	for key, who := range map[string]string{
		"kubernetes.io/hostname": "the kubelet", "kubernetes.io/os": "the kubelet", "kubernetes.io/arch": "the kubelet", "beta.kubernetes.io/arch": "the kubelet",
		"node.kubernetes.io/instance-type": "the kubelet, the cloud", "node.kubernetes.io/not-ready": "the kubelet, the cloud", "node.cloudprovider.kubernetes.io/uninitialized": "the cloud",
		"topology.kubernetes.io/region": "the cloud", "failure-domain.beta.kubernetes.io/zone": "the cloud",
		"cloud.google.com/gke-nodepool": "the cloud", "eks.amazonaws.com/nodegroup": "the cloud", "kubernetes.azure.com/agentpool": "the cloud",
		"kubejoin.io/joining": "kubejoin", "tokens.kubejoin.io/creator": "kubejoin",
	} {
		for _, p := range []tokens.NodeProperties{{Labels: key + "=a"}, {Taints: key + ":NoSchedule"}} {
			if err := (tokens.Limits{Node: p}).Check(); err == nil || !strings.Contains(err.Error(), "key "+key+", want one that "+who) {
				t.Errorf("%+v: got %v, want one that %s does not set", p, err, who)
			}
		}
	}
}

// A kubelet keeps its serving certificate. Catches a Node that registers again and waits for another one for months.
func TestNodeThatRegistersAgainWaitsForNoCertificate(t *testing.T) {
	want := tokens.NodeProperties{Labels: "a=b", ReadyAfter: tokens.ReadyAfterServingCertificate}
	claim := tokens.Claim{Node: "worker-1", TokenID: "abc123", Limits: tokens.Limits{Node: want}}
	if got := claim.Remaining().Node; got != want {
		t.Errorf("before the Node registered: got %+v, want %+v", got, want)
	}
	want.ReadyAfter = ""
	for _, uid := range []string{"", "u1"} {
		claim.NodeUID = uid
		if got := claim.PastAfterRelease(time.Now(), 0).Node; got != want {
			t.Errorf("NodeUID %q: got Past %+v, want %+v", uid, got, want)
		}
	}
	claim.Waits = true
	if got := claim.Remaining().Node.ReadyAfter; got == "" {
		t.Error("while the Node waits: got no ReadyAfter")
	}
	claim.Waits = false
	if got := claim.Remaining().Node; got != want {
		t.Errorf("after the Node registered: got %+v, want %+v", got, want)
	}
}
