package operations_test

import (
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/revocation"
)

func TestRevocation(t *testing.T) {
	now := time.Now()
	node := operations.Revocation(revocation.Entry{Node: "worker-3", Malformed: errors.New("until: x"), Allowed: map[revocation.Fingerprint]time.Time{
		"sha256:1": now.Add(time.Hour), "sha256:2": now.Add(-time.Hour),
	}}, true)
	if node.Node != "worker-3" || node.Fingerprint != "" || node.Allowed != 1 || node.Problem != "until: x" || !node.DryRun {
		t.Errorf("got %+v, want one allowed certificate and the problem", node)
	}
	fingerprint := must.Value(revocation.ParseFingerprint("00" + "112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"))(t)
	if one := operations.Revocation(revocation.Entry{Fingerprint: fingerprint}, false); one.Fingerprint != fingerprint.String() || one.Problem != "" {
		t.Errorf("got %+v, want fingerprint %s", one, fingerprint)
	}
}
