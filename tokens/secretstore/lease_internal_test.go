package secretstore

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
)

// patched returns a Lease after an update of its claim.
func patched(t *testing.T, lease *coordinationv1.Lease, before, after tokens.Claim) *coordinationv1.Lease {
	t.Helper()
	before.UID, before.Version = string(lease.UID), lease.ResourceVersion
	patch := must.Value(patchLease(before, after))(t)
	return must.Value(fake.NewClientset(lease).CoordinationV1().Leases(lease.Namespace).Patch(t.Context(), lease.Name, types.MergePatchType, patch, metav1.PatchOptions{}))(t)
}

// A Lease has the format that kubectl, other programs and earlier versions of kubejoin read. A change of the claim keeps all
// other values. Earlier versions ignore a Lease without claim=true, and annotations of another prefix.
func TestFormatOfLease(t *testing.T) {
	lease := encodeLease("ns", tokens.Claim{Node: "worker-1"})
	lease.Labels["l"], lease.Annotations = "1", map[string]string{"example.com/a": "2"}
	for _, step := range []struct {
		name        string
		edit        func(annotations map[string]string) // before kubejoin changes the claim
		change      func(*tokens.Claim)
		labels      map[string]string
		annotations map[string]string
	}{
		{name: "claimed", change: func(c *tokens.Claim) {
			c.TokenID, c.TokenUID, c.Keys, c.Requests = "abc123", "u", []string{"sha256:1", "sha256:2"}, []string{"r1", "r2"}
			c.Limits = tokens.Limits{MaxNodes: 2, NodeNames: []string{"a", "w*"}, CertificateDuration: 8 * time.Hour}
		}, labels: map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "abc123"}, annotations: map[string]string{
			"kubejoin.io/token-uid": "u", "kubejoin.io/keys": "sha256:1,sha256:2", "kubejoin.io/requests": "r1,r2",
			"kubejoin.io/max-nodes": "2", "kubejoin.io/node-names": "a,w*", "kubejoin.io/certificate-duration": "8h0m0s",
		}},
		{name: "another token, and a duration in another format", edit: func(a map[string]string) { a["kubejoin.io/certificate-duration"] = "480m" }, change: func(c *tokens.Claim) {
			c.NodeUID, c.Keys, c.Requests, c.Limits.MaxNodes, c.TokenID = "n", nil, nil, 0, "def456"
		}, labels: map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "def456"}, annotations: map[string]string{
			"kubejoin.io/token-uid": "u", "kubejoin.io/node-uid": "n", "kubejoin.io/node-names": "a,w*", "kubejoin.io/certificate-duration": "480m",
		}},
		{name: "all requests, as earlier versions kept them", edit: func(a map[string]string) { a["kubejoin.io/requests"] = "1,2,3,4,5" }, change: func(c *tokens.Claim) {
			c.ReadyBefore, c.ReadyAgain, c.Limits = "spell", true, tokens.Limits{}
		}, labels: map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "def456"}, annotations: map[string]string{
			"kubejoin.io/token-uid": "u", "kubejoin.io/node-uid": "n", "kubejoin.io/requests": "3,4,5",
			"replaced.kubejoin.io/ready-before": "spell", "replaced.kubejoin.io/ready-again": "true",
		}},
		{name: "rules", change: func(c *tokens.Claim) {
			c.ReadyBefore, c.ReadyAgain = "", false
			c.Limits.Rules = []tokens.Rule{{Name: "a", Limits: tokens.Limits{CertificateDuration: time.Hour}}, {Name: "b", Limits: tokens.Limits{Rejoin: tokens.RejoinDeny}}}
		}, labels: map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "def456"}, annotations: map[string]string{
			"kubejoin.io/token-uid": "u", "kubejoin.io/node-uid": "n", "kubejoin.io/requests": "3,4,5",
			"rules.kubejoin.io/limits": `[{"name":"a","certificateSeconds":3600},{"name":"b","rejoin":"deny"}]`,
		}},
		{name: "released", change: func(c *tokens.Claim) {
			*c = c.AfterRelease(tokens.ReleasedClaim{Until: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC), CertificateDuration: 8 * time.Hour})
		}, labels: map[string]string{"kubejoin.io/claim": "released"}, annotations: map[string]string{
			"released.kubejoin.io/until": "2031-02-03T04:05:06Z", "released.kubejoin.io/certificate-duration": "8h0m0s",
		}},
		{name: "claimed again, with what an earlier version left", edit: func(a map[string]string) { a["rules.kubejoin.io/limits"] = `[{"name":"a","rejoin":"deny"}]` }, change: func(c *tokens.Claim) { c.TokenID, c.TokenUID = "abc123", "v" },
			labels: map[string]string{"kubejoin.io/claim": "true", "kubejoin.io/token-id": "abc123"}, annotations: map[string]string{
				"kubejoin.io/token-uid": "v", "released.kubejoin.io/until": "2031-02-03T04:05:06Z", "released.kubejoin.io/certificate-duration": "8h0m0s",
			}},
	} {
		if step.edit != nil {
			step.edit(lease.Annotations)
		}
		before := tokens.Claim{Node: "worker-1"}
		if lease.Spec.HolderIdentity != nil || lease.Annotations[pastUntilAnnotation] != "" {

			before = must.Value(DecodeClaim(lease))(t)
		}
		long := metav1.NewMicroTime(time.Now().Add(-time.Hour))
		lease.Spec.AcquireTime = &long
		after := before.Clone()
		step.change(&after)
		lease = patched(t, lease, before, after)
		step.labels["l"], step.annotations["example.com/a"] = "1", "2"
		if !maps.Equal(lease.Labels, step.labels) || !maps.Equal(lease.Annotations, step.annotations) {
			t.Errorf("%s: got labels\n%v\nand annotations\n%v\nwant\n%v\n%v", step.name, lease.Labels, lease.Annotations, step.labels, step.annotations)
		}
		c, err := DecodeClaim(lease)
		after.Created = c.Created
		if err != nil || !c.Equal(after) || after.TokenID != before.TokenID && !after.Released() != (time.Since(c.Created) < time.Minute) {
			t.Errorf("%s: the Lease has %+v, %v, want %+v, created now if another token has it", step.name, c, err, after)
		}
	}
}

// A malformed claim, released or not, keeps its name taken: without its Past, for example, certificates would be hidden.
func TestRefusesMalformedPast(t *testing.T) {
	past := tokens.ReleasedClaim{Until: time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC), CertificateDuration: 8 * time.Hour}
	for _, c := range []tokens.Claim{{Node: "worker-1", Past: past}, {Node: "worker-1", TokenID: "abc123", Past: past}} {
		for name, change := range map[string]func(labels, annotations map[string]string){
			"label": func(labels, _ map[string]string) {
				labels[claimLabel] = map[string]string{held: released, released: held}[labels[claimLabel]]
			},
			"until": func(_, annotations map[string]string) { annotations[pastUntilAnnotation] = "tomorrow" },
			"until alone": func(_, annotations map[string]string) {
				annotations[pastUntilAnnotation] = "tomorrow"
				delete(annotations, pastDurationAnnotation)
			},
			"end":      func(_, annotations map[string]string) { delete(annotations, pastUntilAnnotation) },
			"duration": func(_, annotations map[string]string) { annotations[pastDurationAnnotation] = "long" },
			"second":   func(_, annotations map[string]string) { annotations[pastDurationAnnotation] = "1s" },
		} {
			lease := encodeLease("ns", c)
			change(lease.Labels, lease.Annotations)
			if c, err := DecodeClaim(lease); err == nil || errors.Is(err, ErrNoClaim) {
				t.Errorf("%s: got %+v, %v, want an error", name, c, err)
			}
		}
	}
}

// During a rolling upgrade, an earlier version may release a claim and keep annotations that it does not know. They
// must not keep the name taken, and must not affect the next claim.
func TestReadsClaimReleasedByEarlierVersion(t *testing.T) {
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second), CertificateDuration: time.Hour}
	before := tokens.Claim{
		Node: "worker-1", TokenID: "abc123", Keys: []string{"sha256:1"}, ReadyBefore: "1", ReadyAgain: true, Waits: true,
		Limits: tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour},
	}
	lease := encodeLease("ns", before)
	kept := map[string]string{}
	for _, key := range []string{readyBeforeAnnotation, readyAgainAnnotation, nodeWaitsAnnotation} {
		if kept[key] = lease.Annotations[key]; kept[key] == "" {
			t.Fatalf("the claim has no annotation %s", key)
		}
	}
	after := before
	after.Waits = false
	if was, is := must.Value(DecodeClaim(lease))(t), must.Value(DecodeClaim(patched(t, lease, before, after)))(t); !was.Waits || is.Waits {
		t.Errorf("got Waits %t, then %t, want true, then false", was.Waits, is.Waits)
	}
	lease = patched(t, lease, before, tokens.Claim{Node: "worker-1", Past: past})
	for key, value := range kept {
		lease.Annotations[key] = value
	}
	released := must.Value(DecodeClaim(lease))(t)
	next := tokens.Claim{Node: "worker-1", TokenID: "def456", Keys: []string{"sha256:2"}, Past: past}
	lease = patched(t, lease, released, next)
	claim, err := DecodeClaim(lease)
	if err != nil || claim.ReadyBefore != "" || claim.ReadyAgain || claim.Waits {
		t.Errorf("got next claim %+v, %v", claim, err)
	}
}

// A claim with a malformed identity must be an error: without the identity, the next certificate would start a new one.
func TestRefusesMalformedIdentity(t *testing.T) {
	for _, value := range []string{"", "{", "[]", `{"credentials":[{"key":"a"},{"key":"b"},{"key":"c"},{"key":"d"},{"key":"e"}]}`, `{"credentials":[{}]}`, `{"key":"a"}`, "{} {}", `{"notAfter":"tomorrow"}`} {
		lease := encodeLease("ns", tokens.Claim{Node: "worker-1", TokenID: "abc123"})
		annotateKey(lease, identityAnnotation, "x")
		lease.Annotations[identityAnnotation] = value
		if c, err := DecodeClaim(lease); err == nil {
			t.Errorf("identity %s: got %+v, want an error", value, c)
		}
	}
}

// A cache with a newer version than the Lease that was just written is from before etcd was restored.
func TestNewerVersion(t *testing.T) {
	for _, test := range []struct {
		a, b  string
		newer bool
	}{{"10", "9", true}, {"9", "10", false}, {"10", "10", false}, {"11", "10", true}} {
		if newer(test.a, test.b) != test.newer {
			t.Errorf("%s newer than %s: got %t", test.a, test.b, !test.newer)
		}
	}
}
