package configmap

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
)

// held is a Claims with the claim of one token.
type held struct {
	tokens.Claims
	err   error
	reads int
}

func (h *held) HeldBy(context.Context, string, tokens.Read) ([]tokens.Claim, error) {
	h.reads++
	return []tokens.Claim{{Node: "worker-1", NodeUID: "u1"}}, h.err
}

func (h *held) Ended(tokens.Record, tokens.Claim) bool { return false }

// The signer must remove the signature of a spent token once. It must not sign again if a search fails, and must sign
// at once if the token has changed.
func TestRetires(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	claims := &held{}
	s := &signing{Signer: Signer{Now: func() time.Time { return now }, Spent: &clusterinfo.Spent{Claims: claims, Registered: func(context.Context, string, string) (time.Time, error) { return now.Add(-time.Hour), nil }}}}
	r := tokens.Record{Token: tokens.Generate(), Signing: true, Limits: tokens.Limits{MaxNodes: 1}, Nodes: []string{"worker-1"}, UID: "1", Version: "1"}
	// step runs the two halves of a step: which tokens sign, and which state the step keeps after the write.
	step := func(what string, r tokens.Record, signing, secret bool) {
		t.Helper()
		records, retired := s.signers([]*tokens.Record{&r})
		if got := records[0]; got.Signing != signing || got.Token.HasSecret() != secret || got.Token.ID() != r.Token.ID() {
			t.Errorf("%s: got usage signing %t, secret %t, want %t, %t", what, got.Signing, got.Token.HasSecret(), signing, secret)
		}
		s.removed = retired
	}
	look := func(after time.Duration, fails error) {
		t.Helper()
		now, claims.err = now.Add(after), fails
		s.done = settled{version: "1"}
		reads, due := claims.reads, s.retired.Due(now)
		if err := s.retire(t.Context(), []*tokens.Record{&r}); !errors.Is(err, fails) {
			t.Errorf("got %v, want %v", err, fails)
		}
		if looked := claims.reads > reads; looked != due || (s.done.version == "") != due {
			t.Errorf("%s later: looked %t, and the next step is a whole one: %t, want %t", after, looked, s.done.version == "", due)
		}
	}
	step("before the first look", r, true, false)
	joining := r
	joining.Nodes = nil
	step("not spent, before the first look", joining, true, true)
	look(0, nil)
	step("spent", r, false, true)
	step("removed", r, true, false)
	look(time.Minute, nil)
	step("removed before this look", r, true, false)
	look(time.Minute, errors.New("no response"))
	step("after an error", r, true, false)
	look(time.Minute-1, nil)
	for _, change := range []func(*tokens.Record){func(r *tokens.Record) { r.UID = "2" }, func(r *tokens.Record) { r.Version = "2" }} {
		change(&r)
		step("changed", r, true, true)
		look(time.Minute, nil)
		step("spent again", r, false, true)
		step("removed again", r, true, false)
	}
	r.UID = "3"
	look(time.Minute, nil)
	step("another token with the same ID", r, false, true)
}
