package configmap

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

func TestNeedsNoSignature(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name    string
		counted string
		since   map[string]time.Duration // before now; negative: not registered
		ended   string
		want    bool
	}{
		{"registered for 10 minutes", "a b", map[string]time.Duration{"a": 10 * time.Minute, "b": time.Hour}, "", true},
		{"one for less", "a b", map[string]time.Duration{"a": 10*time.Minute - time.Second, "b": time.Hour}, "", false},
		{"one not registered", "a b", map[string]time.Duration{"a": time.Hour, "b": -1}, "", false},
		{"one has left", "a b", map[string]time.Duration{"a": time.Hour}, "b", true},
		{"all have left", "a b", nil, "a b", true},
		{"a claim is missing", "a b", map[string]time.Duration{"a": time.Hour}, "", false},
		{"a claim that is not counted", "a", map[string]time.Duration{"a": time.Hour, "b": -1}, "", false},
	} {
		since := map[string]time.Time{}
		for name, before := range test.since {
			if since[name] = now.Add(-before); before < 0 {
				since[name] = time.Time{}
			}
		}
		ended := func(name string) bool { return slices.Contains(strings.Fields(test.ended), name) }
		if got := needsNone(strings.Fields(test.counted), since, ended, now); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
	}
}

// held is a Claims with the claims of one token.
type held struct {
	tokens.Claims
	claims []tokens.Claim
	live   []tokens.Claim // if the cache is old
	err    error
	reads  int
}

func (h *held) HeldBy(_ context.Context, _ string, read tokens.Read) ([]tokens.Claim, error) {
	h.reads++
	if read == tokens.Live && h.live != nil {
		return h.live, h.err
	}
	return h.claims, h.err
}

func (h *held) Ended(tokens.Record, tokens.Claim) bool { return false }

func TestFindsSpentTokens(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	noNodes := errors.New("no Nodes")
	for _, test := range []struct {
		name   string
		change func(*tokens.Record, *tokens.Claim)
		want   bool
		err    error
	}{
		{name: "spent", want: true},
		{name: "slot is free", change: func(r *tokens.Record, _ *tokens.Claim) { r.Limits.MaxNodes = 2 }},
		{name: "no limit", change: func(r *tokens.Record, _ *tokens.Claim) { r.Limits.MaxNodes = 0 }},
		{name: "malformed limits", change: func(r *tokens.Record, _ *tokens.Claim) { r.Limits.Problem = errors.New("malformed") }},
		{name: "replaces a Node", change: func(r *tokens.Record, _ *tokens.Claim) {
			r.Limits.Replaces = tokens.NodeRef{Name: "worker-1", UID: "u1"}
		}},
		{name: "does not sign", change: func(r *tokens.Record, _ *tokens.Claim) { r.Signing = false }},
		{name: "not registered", change: func(_ *tokens.Record, c *tokens.Claim) { c.NodeUID = "" }},
		{name: "joins again beside its Node", change: func(_ *tokens.Record, c *tokens.Claim) { c.Created = now.Add(1 - retireAfter) }},
		{name: "joined again beside its Node", change: func(_ *tokens.Record, c *tokens.Claim) { c.Created = now.Add(-retireAfter) }, want: true},
		{name: "another Node", change: func(_ *tokens.Record, c *tokens.Claim) { c.NodeUID = "u0" }},
		{name: "no answer about the Node", change: func(_ *tokens.Record, c *tokens.Claim) { c.NodeUID = "unread" }, err: noNodes},
	} {
		r := tokens.Record{Token: tokens.Generate(), Signing: true, Limits: tokens.Limits{MaxNodes: 1}, Nodes: []string{"worker-1"}}
		c := tokens.Claim{Node: "worker-1", NodeUID: "u1"}
		if test.change != nil {
			test.change(&r, &c)
		}
		s := Spent{Claims: &held{claims: []tokens.Claim{c}}, Registered: func(_ context.Context, name, uid string) (time.Time, error) {
			switch uid {
			case "u1":
				return now.Add(-time.Hour), nil
			case "":
				t.Errorf("%s: looked up a Node without UID", test.name)
			case "unread":
				return time.Time{}, noNodes
			}
			return time.Time{}, nil
		}}
		if got, err := s.find(t.Context(), &r, tokens.Cached, now); got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: got %t, %v, want %t, %v", test.name, got, err, test.want, test.err)
		}
	}
	s := Spent{Claims: &held{err: noNodes}}
	if got, err := s.find(t.Context(), &tokens.Record{Token: tokens.Generate(), Signing: true, Limits: tokens.Limits{MaxNodes: 1}, Nodes: []string{"worker-1"}}, tokens.Cached, now); got || !errors.Is(err, noNodes) {
		t.Errorf("got %t, %v, want the error of the claims", got, err)
	}
}

// The signer must not sign again because it cannot look, and must sign at once if the token has changed.
func TestRetires(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	claims := &held{claims: []tokens.Claim{{Node: "worker-1", NodeUID: "u1"}}}
	s := &signing{Signer: Signer{Now: func() time.Time { return now }, Spent: &Spent{claims, func(context.Context, string, string) (time.Time, error) { return now.Add(-time.Hour), nil }}}}
	r := tokens.Record{Token: tokens.Generate(), Signing: true, Limits: tokens.Limits{MaxNodes: 1}, Nodes: []string{"worker-1"}, UID: "1", Version: "1"}
	want := func(what string, r tokens.Record, signing, secret bool) {
		t.Helper()
		if got := s.signer(r); got.Signing != signing || got.Token.HasSecret() != secret || got.Token.ID() != r.Token.ID() {
			t.Errorf("%s: got usage signing %t, secret %t, want %t, %t", what, got.Signing, got.Token.HasSecret(), signing, secret)
		}
	}
	look := func(after time.Duration, fails error) {
		t.Helper()
		now, claims.err = now.Add(after), fails
		s.done = settled{version: "1"}
		reads, due := claims.reads, s.judged.IsZero() || now.Sub(s.judged) >= retireEvery
		if err := s.retire(t.Context(), []*tokens.Record{&r}); !errors.Is(err, fails) {
			t.Errorf("got %v, want %v", err, fails)
		}
		if looked := claims.reads > reads; looked != due || (s.done.version == "") != due {
			t.Errorf("%s later: looked %t, and the next step is a whole one: %t, want %t", after, looked, s.done.version == "", due)
		}
	}
	want("before the first look", r, true, false)
	joining := r
	joining.Nodes = nil
	want("not spent, before the first look", joining, true, true)
	claims.live = []tokens.Claim{{Node: "worker-1"}}
	look(0, nil)
	want("spent according to an old cache", r, true, true)
	claims.live = nil
	look(retireEvery, nil)
	want("spent", r, false, true)
	s.retired[r.Token.ID()].removed = true
	want("removed", r, true, false)
	look(retireEvery, nil)
	want("removed before this look", r, true, false)
	look(retireEvery, errors.New("no response"))
	want("after an error", r, true, false)
	look(retireEvery-time.Second, nil)
	claims.claims = nil
	look(time.Second, nil)
	want("claim is gone", r, true, true)

	claims.claims = []tokens.Claim{{Node: "worker-1", NodeUID: "u1"}}
	for _, change := range []func(*tokens.Record){func(r *tokens.Record) { r.UID = "2" }, func(r *tokens.Record) { r.Version = "2" }} {
		look(retireEvery, nil)
		s.retired[r.Token.ID()].removed = true
		changed := r
		change(&changed)
		want("changed", changed, true, true)
		want("changed, and another step", changed, true, true)
		r = changed
	}
	look(retireEvery, nil)
	want("spent again", r, false, true)
	s.retired[r.Token.ID()].removed = true
	r.UID = "3"
	look(retireEvery, nil)
	want("another token with the same ID", r, false, true)
}
