package secretstore

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestDecodeLimits(t *testing.T) {
	const names = "want parts of [a-z0-9-] separated by dots"
	many := strings.TrimSuffix(strings.Repeat("worker-0.example,", 4000), ",")
	tenThousand := strings.TrimSuffix(strings.Repeat("a=b,", 10_000), ",")
	for _, test := range []struct {
		annotations string // lines of name=value
		want        tokens.Limits
		nodes       []string
		problems    []string
	}{
		{annotations: ""},
		{annotations: "max-nodes=1", want: tokens.Limits{MaxNodes: 1}},
		{annotations: "max-nodes=", problems: []string{`kubejoin.io/max-nodes: "" given, want 1 to 1000`}},
		{annotations: "max-nodes=0", problems: []string{`"0" given, want 1 to 1000`}},
		{annotations: "max-nodes=1001", problems: []string{`"1001" given`}},
		{annotations: "max-nodes=+1", problems: []string{`"+1" given`}},
		{annotations: "max-nodes=01", problems: []string{`"01" given`}},
		{annotations: "max-nodes= 1", problems: []string{`" 1" given`}},
		{annotations: "max-nodes=1.0", problems: []string{`"1.0" given`}},
		{annotations: "max-nodes=one", problems: []string{`"one" given`}},
		{annotations: "max-nodes=" + strings.Repeat("9", 5000), problems: []string{`kubejoin.io/max-nodes: "999`}},

		{annotations: "node-names=worker-7", want: tokens.Limits{NodeNames: []string{"worker-7"}}},
		{annotations: "node-names=b,*.a,*", want: tokens.Limits{NodeNames: []string{"b", "*.a", "*"}}},
		{annotations: "node-names=", problems: []string{`kubejoin.io/node-names: node name "", ` + names}},
		{annotations: "node-names=a,", problems: []string{`node name "", ` + names}},
		{annotations: "node-names=a, b", problems: []string{`node name " b", ` + names}},
		{annotations: "node-names=a,b,a", problems: []string{`kubejoin.io/node-names: "a" is given twice`}},
		{annotations: "node-names=" + many, problems: []string{`"worker-0.example" is given twice`}},

		{annotations: "certificate-duration=8h0m0s", want: tokens.Limits{CertificateDuration: 8 * time.Hour}},
		{annotations: "certificate-duration=1.5h", want: tokens.Limits{CertificateDuration: 90 * time.Minute}},
		{annotations: "certificate-duration=", problems: []string{`kubejoin.io/certificate-duration: "" given, want whole seconds from 10m to 876000h, such as 8h`}},
		{annotations: "certificate-duration=9m59s", problems: []string{`"9m59s" given`}},
		{annotations: "certificate-duration=8", problems: []string{`"8" given`}},
		{annotations: "certificate-duration=1d", problems: []string{`"1d" given`}},

		{annotations: "node-labels=a=b\nmax-nodes=x", want: tokens.Limits{Node: tokens.NodeProperties{Labels: "a=b"}}, problems: []string{`kubejoin.io/max-nodes: "x" given`}},
		{annotations: "node-labels=8w4usg.qwertzuiopasdfgh", problems: []string{`kubejoin.io/node-labels: "8w4usg.<redacted>" given, want KEY=VALUE`}},
		{annotations: "node-taints=" + many, problems: []string{"kubejoin.io/node-taints: 4000 given, 16 allowed"}},
		{annotations: "node-ready-after=8w4usg.qwertzuiopasdfgh\nmax-nodes=x", problems: []string{`kubejoin.io/max-nodes: "x" given`}},

		{annotations: "replaces-node=worker-1/u-1", want: tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-1", UID: "u-1"}}},
		{annotations: "replaces-node=worker-1/u-1\nmax-nodes=1\nnode-names=worker-*", want: tokens.Limits{
			MaxNodes: 1, NodeNames: []string{"worker-*"}, Replaces: tokens.NodeRef{Name: "worker-1", UID: "u-1"},
		}},
		{annotations: "replaces-node=", problems: []string{`kubejoin.io/replaces-node: "" given, want NAME/UID of a Node`}},
		{annotations: "replaces-node=worker-1", problems: []string{`"worker-1" given`}},
		{annotations: "replaces-node=worker-1/u/1", problems: []string{`"worker-1/u/1" given`}},
		{annotations: "replaces-node=*/u-1", problems: []string{`"*/u-1" given`}},
		{annotations: "replaces-node=worker-1/u-1\nmax-nodes=2", want: tokens.Limits{
			MaxNodes: 2, Replaces: tokens.NodeRef{Name: "worker-1", UID: "u-1"},
		}, problems: []string{"kubejoin.io/max-nodes: 2 given, want at most 1 with replaces-node"}},
		{annotations: "replaces-node=worker-1/u-1\nnode-names=worker-2", want: tokens.Limits{
			NodeNames: []string{"worker-2"}, Replaces: tokens.NodeRef{Name: "worker-1", UID: "u-1"},
		}, problems: []string{`kubejoin.io/node-names: worker-2 given, want names that allow worker-1`}},

		{annotations: "rejoin=deny", want: tokens.Limits{Rejoin: "deny"}},
		{annotations: "rejoin=never", problems: []string{`kubejoin.io/rejoin: "never" given, want allow or deny`}},
		{annotations: "role=control-plane", want: tokens.Limits{Role: "control-plane"}},
		{annotations: "role=", problems: []string{`kubejoin.io/role: "" given, want control-plane, or remove the annotation`}},
		{annotations: "role=worker", problems: []string{`"worker" given`}},

		{annotations: "node-labels=a=,b=c\nnode-taints=d:NoExecute\nnode-ready-after=labels", want: tokens.Limits{
			Node: tokens.NodeProperties{Labels: "a=,b=c", Taints: "d:NoExecute", ReadyAfter: "labels"},
		}},
		{annotations: "node-labels=a=b\x00", problems: []string{`kubejoin.io/node-labels: value "b\x00"`}},
		{annotations: "node-labels=kubernetes.io/hostname=a", problems: []string{"kubejoin.io/node-labels: key kubernetes.io/hostname"}},
		{annotations: "node-labels=" + tenThousand, problems: []string{"kubejoin.io/node-labels: 10000 given, 16 allowed"}},
		{annotations: "node-taints=kubejoin.io/joining:NoSchedule", problems: []string{"kubejoin.io/node-taints: key kubejoin.io/joining"}},
		{annotations: "node-labels=", problems: []string{`kubejoin.io/node-labels: "" given, want a value`}},
		{annotations: "node-ready-after=never", problems: []string{`kubejoin.io/node-ready-after: "never" given`}},
		{annotations: "node-ready-after=serving-certificate\nrole=control-plane", want: tokens.Limits{Role: "control-plane"}, problems: []string{"the taint is for workers"}},

		{annotations: "nodes=+worker-2,-worker-1,!worker-3", nodes: []string{"worker-2", "worker-1", "worker-3"}},
		{annotations: "nodes=", problems: []string{`kubejoin.io/nodes: "" given, want a node name after +, - or !`}},
		{annotations: "nodes=a", problems: []string{`kubejoin.io/nodes: "a" given, want a node name after +, - or !`}},
		{annotations: "nodes=+", problems: []string{`kubejoin.io/nodes: node name "", ` + names}},
		{annotations: "nodes=+a,+b,", nodes: []string{"a", "b"}, problems: []string{`kubejoin.io/nodes: "" given, want a node name`}},
		{annotations: "nodes=+a,-a", nodes: []string{"a"}, problems: []string{`kubejoin.io/nodes: "a" is given twice`}},
		{annotations: "nodes=+worker-*", problems: []string{`node name "worker-*", ` + names}},
		{annotations: "left=a", problems: []string{"kubejoin.io/left: unknown annotation"}},

		{annotations: "max-node=1", problems: []string{"kubejoin.io/max-node: unknown annotation, want kubejoin.io/nodes, max-nodes, node-names"}},
		{annotations: "token-uid=1", problems: []string{"kubejoin.io/token-uid: unknown annotation"}}, // only allowed on a claim
		{annotations: "=1", problems: []string{"kubejoin.io/: unknown annotation"}},
		{
			annotations: "max-nodes=x\nrole=x\nnodes=+X\nb=1\na=1\ncertificate-duration=8h", want: tokens.Limits{CertificateDuration: 8 * time.Hour},
			problems: []string{`max-nodes: "x" given`, `role: "x" given`, `nodes: node name "X"`, "kubejoin.io/a, kubejoin.io/b: unknown annotation"},
		},
	} {
		t.Run(test.annotations[:min(len(test.annotations), 40)], func(t *testing.T) {
			secret := encode(tokens.Record{Token: tokens.Generate(), Signing: true, Authentication: true})
			secret.Annotations = map[string]string{"kubejoin.ioo/max-nodes": "x", "x.kubejoin.io/max-nodes": "x", "max-nodes": "x"}
			for line := range strings.SplitSeq(test.annotations, "\n") {
				if name, value, given := strings.Cut(line, "="); given {
					secret.Annotations["kubejoin.io/"+name] = value
				}
			}
			r, err := decode(secret)
			if err != nil || r.Problem != nil || !r.Signs(time.Now()) || !r.Authentication {
				t.Fatalf("decode = %+v, %v, want a token that signs and authenticates", r, err)
			}
			if got := r.Limits; (got.Problem == nil) != (len(test.problems) == 0) {
				t.Errorf("problem %v, want %q", got.Problem, test.problems)
			}
			if err := r.Check(); (err == nil) != (len(test.problems) == 0) {
				t.Errorf("Check = %v, want %q", err, test.problems)
			}
			for _, want := range test.problems {
				switch p := r.Limits.Problem; {
				case p == nil:
				case !strings.Contains(p.Error(), want):
					t.Errorf("problem %q, want %q in it", p, want)
				case len(p.Error()) > 2000:
					t.Errorf("got a problem of %d bytes, want a short one", len(p.Error()))
				}
			}
			got := r.Limits
			got.Problem = nil
			if !got.Equal(test.want) || !slices.Equal(r.Nodes, test.nodes) {
				t.Errorf("decode gives %+v and nodes %q, want %+v and %q", got, r.Nodes, test.want, test.nodes)
			}
		})
	}
}

func TestDecodeRefusesTooManyNames(t *testing.T) {
	secret := encode(tokens.Record{Token: tokens.Generate()})
	var names []string
	for i := range 10_000 {
		names = append(names, "worker-"+strconv.Itoa(i))
	}
	annotate(secret, "node-names", strings.Join(names, ","))
	r, err := decode(secret)
	if err != nil || r.Limits.Problem == nil || !strings.Contains(r.Limits.Problem.Error(), "bytes given, 65536 allowed") {
		t.Errorf("got problem %v, %v, want the number of allowed bytes", r.Limits.Problem, err)
	}
}

// Clearing the Problem must rewrite all valid limits, remove the malformed ones and keep annotations of others.
func TestClearedProblemRewritesLimits(t *testing.T) {
	secret := encode(tokens.Record{Token: tokens.Generate(), Limits: tokens.Limits{Role: tokens.RoleControlPlane}})
	annotate(secret, "max-nodes", "many")
	annotate(secret, "certificate-duration", "480m")
	annotate(secret, "zone", "eu")
	annotate(secret, "nodes", "+a,+a")
	secret.Annotations["example.com/zone"] = "eu"
	before, err := decode(secret)
	if err != nil || before.Limits.Problem == nil {
		t.Fatalf("decode = %+v, %v, want a problem", before, err)
	}
	after := before.Clone()
	after.Limits.Problem = nil
	apply(secret, before, after)
	if r, err := decode(secret); err != nil || r.Limits.Problem != nil {
		t.Fatalf("decode = %+v, %v", r, err)
	}
	if len(secret.Annotations) != 4 || secret.Annotations["kubejoin.io/certificate-duration"] != "8h0m0s" || secret.Annotations["kubejoin.io/nodes"] != "+a" ||
		secret.Annotations["kubejoin.io/role"] != "control-plane" || secret.Annotations["example.com/zone"] != "eu" {
		t.Errorf("got annotations %v, want all valid limits and the annotation of others", secret.Annotations)
	}
}
