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
		Node: "worker-1", TokenID: "abc123", Keys: []string{"sha256:1"}, Pending: true, ReadyBefore: "1", ReadyAgain: true,
		Limits: tokens.Limits{MaxNodes: 1, CertificateDuration: time.Hour},
	}
	lease := encodeLease("ns", before)
	kept := map[string]string{}
	for _, key := range []string{pendingAnnotation, readyBeforeAnnotation, readyAgainAnnotation} {
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
	if err != nil || claim.Pending || claim.ReadyBefore != "" || claim.ReadyAgain {
		t.Errorf("got next claim %+v, %v", claim, err)
	}
}
