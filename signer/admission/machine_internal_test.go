package admission

import (
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

func TestPlanProof(t *testing.T) {
	key, words := "sha256:"+strings.Repeat("a", 64), tokens.Words("sha256:"+strings.Repeat("a", 64))
	twin := "sha256:" + strings.Repeat("a", 63) + "b" // another key with the same words
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	made := tokens.Record{Token: tokens.Generate(), UID: "u"}
	for name, test := range map[string]struct {
		machine  tokens.Machine
		ready    string
		reserved bool
		refused  string
		want     string // the key afterwards
		since    time.Time
	}{
		"key":             {machine: tokens.Machine{Key: key}, want: key},
		"words":           {machine: tokens.Machine{Key: words}, want: key},
		"twin of the key": {machine: tokens.Machine{Key: twin}, refused: ReasonMachineKeyDiffers, want: twin},
		"revoked":         {machine: tokens.Machine{Key: key, Revoked: true}, refused: ReasonMachineRevoked, want: key},
		"expired":         {machine: tokens.Machine{Key: key, Expires: now}, refused: ReasonMachineExpired, want: key},
		"not expired":     {machine: tokens.Machine{Key: key, Expires: now.Add(time.Second)}, want: key},
		"Node Ready":      {machine: tokens.Machine{Key: words}, ready: "r", refused: ReasonNodeIsReady, want: key, since: now},
		"Node Ready, still": {
			machine: tokens.Machine{Key: key, RefusedSince: now.Add(-time.Hour), RefusedLast: now.Add(-4 * time.Minute)}, ready: "r",
			refused: ReasonNodeIsReady, want: key, since: now.Add(-time.Hour),
		},
		"Node Ready, again": {
			machine: tokens.Machine{Key: key, RefusedSince: now.Add(-time.Hour), RefusedLast: now.Add(-25 * time.Hour)}, ready: "r",
			refused: ReasonNodeIsReady, want: key, since: now,
		},
		"reserved name":           {machine: tokens.Machine{Key: key}, reserved: true, refused: ReasonNodeNameReserved, want: key},
		"control plane":           {machine: tokens.Machine{Key: key, Role: tokens.RoleControlPlane}, reserved: true, want: key},
		"Node not Ready any more": {machine: tokens.Machine{Key: key, RefusedSince: now.Add(-time.Minute), RefusedLast: now}, want: key},
	} {
		f := facts{rules: rules{nodes: true, now: now}, claim: tokens.Claim{Node: "w", Machine: test.machine}, ready: test.ready}
		if test.reserved {
			f.reserved = []string{"w"}
		}
		p := planProof(f, key, made)
		got, refused := p.next.Machine, approval.Refused(p.err)
		if (refused == nil) != (test.refused == "") || refused != nil && refused.Reason != test.refused {
			t.Errorf("%s: got %v, want %q", name, p.err, test.refused)
		}
		if got.Key != test.want || !got.RefusedSince.Equal(test.since) || (got.TokenUID == "u") != (test.refused == "") {
			t.Errorf("%s: got %+v, want key %s and since %s", name, got, test.want, test.since)
		}
	}
}

// Catches a token that takes the name of a machine, although the machine has not got this token, or its key is barred.
func TestOnlyLastTokenOfMachineMayTakeItsName(t *testing.T) {
	for about, test := range map[string]struct {
		machine tokens.Machine
		record  string // UID
		want    bool
	}{
		"its token":     {tokens.Machine{TokenUID: "u"}, "u", true},
		"another token": {tokens.Machine{TokenUID: "u"}, "v", false},
		"no token":      {tokens.Machine{}, "", false},
		"barred":        {tokens.Machine{TokenUID: "u", Revoked: true}, "u", false},
	} {
		if got := mayTake(test.machine, tokens.Record{UID: test.record}); got != test.want {
			t.Errorf("%s: got %t, want %t", about, got, test.want)
		}
	}
}
