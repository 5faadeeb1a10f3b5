package secretstore

import (
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// During a rolling upgrade, an earlier version may release a claim and keep annotations that it does not know. They
// must not keep the name taken, and must not affect the next claim.
func TestReadsClaimReleasedByEarlierVersion(t *testing.T) {
	past := tokens.ReleasedClaim{Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second), CertificateDuration: time.Hour}
	before := tokens.Claim{
		Node: "worker-1", TokenID: "abc123", Keys: []string{"sha256:1"}, ReadyBefore: "1", ReadyAgain: true,
		Limits: tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour},
	}
	lease := encodeLease("ns", before)
	kept := map[string]string{}
	for _, key := range []string{readyBeforeAnnotation, readyAgainAnnotation} {
		if kept[key] = lease.Annotations[key]; kept[key] == "" {
			t.Fatalf("the claim has no annotation %s", key)
		}
	}
	applyClaim(lease, before, tokens.Claim{Node: "worker-1", Past: past})
	for key, value := range kept {
		lease.Annotations[key] = value
	}
	released, err := decodeLease(lease)
	if err != nil {
		t.Fatal(err)
	}
	next := tokens.Claim{Node: "worker-1", TokenID: "def456", Keys: []string{"sha256:2"}, Past: past}
	applyClaim(lease, released, next)
	claim, err := decodeLease(lease)
	if err != nil || claim.ReadyBefore != "" || claim.ReadyAgain {
		t.Errorf("got next claim %+v, %v", claim, err)
	}
}

// A claim with a malformed identity must be an error: without the identity, the next certificate would start a new one.
func TestRefusesMalformedIdentity(t *testing.T) {
	for _, value := range []string{"", "{", "[]", `{"keys":["a","b","c"]}`, `{"key":"a"}`, "{} {}", `{"notAfter":"tomorrow"}`} {
		lease := encodeLease("ns", tokens.Claim{Node: "worker-1", TokenID: "abc123"})
		annotateKey(lease, identityAnnotation, "x")
		lease.Annotations[identityAnnotation] = value
		if c, err := decodeLease(lease); err == nil {
			t.Errorf("identity %s: got %+v, want an error", value, c)
		}
	}
}

// Update starts from the newer of the Lease that it has written and the one in the cache.
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
