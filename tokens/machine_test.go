package tokens_test

import (
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// Catches a token that grants its machine more than a person has allowed, or that outlives the machine.
func TestTokenHasLimitsOfMachine(t *testing.T) {
	spec := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	spec.Limits = tokens.Limits{CertificateDuration: time.Hour, Rejoin: tokens.RejoinDeny, Role: "control-plane", Node: tokens.NodeProperties{Labels: "a=b", Taints: "c:NoSchedule", ReadyAfter: "1h"}}
	m := tokens.MachineOf("lusab-babad-gutih-tugad", "ada", spec, time.Now())
	for left, ttl := range map[time.Duration]time.Duration{time.Hour: tokens.MachineTTL, time.Minute: time.Minute} {
		want := spec.Limits
		want.MaxNodes, want.NodeNames = 1, []string{"w"}
		if r := m.Record("w", tokens.NodeRef{}, m.Expires.Add(-left)); !r.Limits.Equal(want) || !r.Expires.Equal(m.Expires.Add(ttl-left)) {
			t.Errorf("%s left: got %+v until %s, want %+v for %s", left, r.Limits, r.Expires, want, ttl)
		}
	}
}
