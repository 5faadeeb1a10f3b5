package clusterinfo

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
		since   map[string]time.Duration // how long before now; negative: not registered
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
		if got := allJoined(strings.Fields(test.counted), since, ended, now); got != test.want {
			t.Errorf("%s: got %t, want %t", test.name, got, test.want)
		}
	}
}

// held is a Claims with the claims of one token.
type held struct {
	tokens.Claims
	claims []tokens.Claim
	recent []tokens.Claim // result of a recent read, if the cache is old
	err    error
	fails  string // ID of the token whose read returns err; empty: every read returns err
}

func (h *held) HeldBy(_ context.Context, id string, read tokens.Read) ([]tokens.Claim, error) {
	if h.fails != "" && h.fails != id {
		return h.claims, nil
	}
	if read == tokens.Recent && h.recent != nil {
		return h.recent, h.err
	}
	return h.claims, h.err
}

func (h *held) Ended(tokens.Record, tokens.Claim) bool { return false }

// spentBy returns a token that one node has used up, and its claim.
func spentBy(node string) (tokens.Record, tokens.Claim) {
	return tokens.Record{Token: tokens.Generate(), Signing: true, Limits: tokens.Limits{MaxNodes: 1}, Nodes: []string{node}, UID: "1", Version: "1"},
		tokens.Claim{Node: node, NodeUID: "u1"}
}

func TestFindsSpentTokens(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	noNodes := errors.New("no Nodes")
	for _, test := range []struct {
		name   string
		alone  bool // there are no Nodes
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
		{name: "used its certificate before there were Nodes", change: func(_ *tokens.Record, c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }},
		{name: "no answer about the Node", change: func(_ *tokens.Record, c *tokens.Claim) { c.NodeUID = "unread" }, err: noNodes},
		{name: "no Nodes, has not used its certificate", alone: true, change: func(_ *tokens.Record, c *tokens.Claim) { c.NodeUID = "" }},
		{name: "no Nodes, has used its certificate", alone: true, change: func(_ *tokens.Record, c *tokens.Claim) { c.NodeUID = tokens.ByCertificate }, want: true},
		{name: "no Nodes, claimed its name a moment ago", alone: true, change: func(_ *tokens.Record, c *tokens.Claim) {
			c.NodeUID, c.Created = tokens.ByCertificate, now.Add(1-retireAfter)
		}},
	} {
		r, c := spentBy("worker-1")
		c.Created = now.Add(-time.Hour)
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
		if test.alone {
			s.Registered = nil
		}
		got, err := s.Look(t.Context(), Retired{}, []*tokens.Record{&r}, now)
		if got.Has(&r) != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: got %t, %v, want %t, %v", test.name, got.Has(&r), err, test.want, test.err)
		}
	}
}

// A failed search must neither restore nor remove a signature. A changed token must sign at once.
func TestLooksForSpentTokens(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r, c := spentBy("worker-1")
	other, _ := spentBy("worker-1")
	claims := &held{claims: []tokens.Claim{c}}
	s := &Spent{Claims: claims, Registered: func(context.Context, string, string) (time.Time, error) { return now.Add(-time.Hour), nil }}
	var last Retired
	look := func(fails error, of ...*tokens.Record) {
		t.Helper()
		var err error
		claims.err = fails
		if last, err = s.Look(t.Context(), last, of, now); !errors.Is(err, fails) {
			t.Errorf("got %v, want %v", err, fails)
		}
	}
	want := func(what string, r tokens.Record, want bool) {
		t.Helper()
		if got := last.Has(&r); got != want {
			t.Errorf("%s: got %t, want %t", what, got, want)
		}
	}
	if last.Looked() || !last.Due(now) {
		t.Error("before the first look: got a look, or none due")
	}
	claims.recent = []tokens.Claim{{Node: "worker-1"}}
	look(nil, &r)
	want("spent according to an old cache", r, false)
	if !last.Looked() || last.Due(now.Add(retireEvery-1)) || !last.Due(now.Add(retireEvery)) || !last.Due(now.Add(-retireEvery)) {
		t.Error("the next look is due too early or too late")
	}
	claims.recent = nil
	look(nil, &r)
	want("spent", r, true)
	for _, change := range []func(*tokens.Record){func(r *tokens.Record) { r.UID = "2" }, func(r *tokens.Record) { r.Version = "2" }} {
		changed := r
		change(&changed)
		want("changed", changed, false)
	}
	look(errors.New("no response"), &r, &other)
	want("after an error", r, true)
	want("another token, after an error", other, false)
	claims.claims = nil
	look(nil, &r)
	want("claim is gone", r, false)
	claims.claims, claims.fails = []tokens.Claim{c}, other.Token.ID()
	look(errors.New("no response"), &r, &other)
	want("found before an error", r, true)
}
