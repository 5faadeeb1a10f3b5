package server_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// A client that lost the response repeats its request with its own token. Catches a repeated request that changes the
// token, and differences that are reported to a caller without the token secret.
func TestRepeatedCreateReturnsSameToken(t *testing.T) {
	s := newSite(t)
	s.start(t)
	const spec = `"description":"rack 7","groups":["system:bootstrappers:a","system:bootstrappers:b"],"maxNodes":3,"nodeNames":["a","b-*"],"certificateDuration":"48h"`
	body := func(t tokens.Token, rest string) string {
		return `{"token":"` + t.Reveal() + `"` + strings.TrimSuffix(","+rest, ",") + `}`
	}
	spend := func(r *tokens.Record) { r.Nodes, r.Expires = []string{"a"}, time.Now().Add(time.Hour) }
	for _, test := range []struct {
		name         string
		first, again string // bodies without the token
		secret       bool   // the repeated request has another secret
		status       int
		differs      string
		change       func(*tokens.Record) // applied between the requests
	}{
		{name: "the same", status: 200},
		{name: "the same of everything", first: spec + `,"ttl":"2h"`, again: spec + `,"ttl":"2h"`, status: 200},
		{name: "in another order", first: spec, again: `"nodeNames":["b-*","a"],"description":"rack 7","certificateDuration":"2880m","groups":["system:bootstrappers:b","system:bootstrappers:a"],"maxNodes":3`, status: 200},
		{name: "what is usual, spelled out", again: `"ttl":"24h","usages":["authentication","signing"],"groups":["` + tokens.DefaultGroup + `"]`, status: 200},
		{name: "with another wait", first: `"wait":"1s"`, again: `"wait":"2s"`, status: 200},
		{name: "with no wait", again: `"wait":"0"`, status: 200},
		{name: "another secret", secret: true, status: 409},
		{name: "another secret of everything", first: spec, again: spec, secret: true, status: 409},
		{name: "another ttl", first: `"ttl":"2h"`, again: `"ttl":"3h"`, status: 409, differs: "ttl"},
		{name: "for ever", again: `"ttl":"0"`, status: 409, differs: "ttl"},
		{name: "not for ever", first: `"ttl":"0"`, status: 409, differs: "ttl"},
		{name: "for ever again", first: `"ttl":"0"`, again: `"ttl":"0"`, status: 200},
		{name: "the same end", first: `"expires":"2031-01-02T03:04:05Z"`, again: `"expires":"2031-01-02T04:04:05+01:00"`, status: 200},
		{name: "another end", first: `"expires":"2031-01-02T03:04:05Z"`, again: `"expires":"2031-01-02T03:04:06Z"`, status: 409, differs: "expires"},
		{name: "another description", first: spec, again: strings.Replace(spec, "rack 7", "rack 8", 1), status: 409, differs: "description"},
		{name: "fewer groups", first: spec, again: strings.Replace(spec, `,"system:bootstrappers:b"`, "", 1), status: 409, differs: "groups"},
		{name: "another secret and another description", first: spec, again: strings.Replace(spec, "rack 7", "rack 8", 1), secret: true, status: 409},
		{name: "another role, another duration and another name", first: spec, again: strings.NewReplacer("48h", "49h", "b-*", "c", `"maxNodes"`, `"role":"control-plane","maxNodes"`).Replace(spec), status: 409, differs: "nodeNames, certificateDuration, role"},
		{name: "more nodes", first: spec, again: strings.Replace(spec, `"maxNodes":3`, `"maxNodes":4`, 1), status: 409, differs: "maxNodes"},
		{name: "no limits", first: spec, again: strings.Split(spec, `,"maxNodes"`)[0], status: 409, differs: "maxNodes, nodeNames, certificateDuration"},
		{name: "another usage", first: `"groups":[]`, again: `"groups":[],"usages":["authentication"]`, status: 409, differs: "usages"},
		{name: "renewed", status: 409, differs: "ttl", change: func(r *tokens.Record) { r.Expires = r.Expires.Add(time.Hour) }},
		{name: "expired", status: 409, differs: "ttl, status", change: func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Second) }},
		{name: "used", first: spec, again: spec, status: 200, change: func(r *tokens.Record) { r.Nodes = []string{"a"} }},
		// A token expires earlier once its last slot is used.
		{name: "spent", first: `"maxNodes":1`, again: `"maxNodes":1`, status: 200, change: spend},
		{name: "spent, for ever", first: `"maxNodes":1,"ttl":"0"`, again: `"maxNodes":1,"ttl":"0"`, status: 200, change: spend},
		{name: "spent, of an end", first: `"maxNodes":1,"expires":"2031-01-02T03:04:05Z"`, again: `"maxNodes":1,"expires":"2031-01-02T03:04:05Z"`, status: 200, change: spend},
		{name: "spent, and ends later than is asked for", first: `"maxNodes":1`, again: `"maxNodes":1,"ttl":"30m"`, status: 409, differs: "ttl", change: spend},
		{name: "spent, and ends later than the end", first: `"maxNodes":1,"ttl":"0"`, again: `"maxNodes":1,"expires":"` + time.Now().Add(30*time.Minute).UTC().Format(time.RFC3339) + `"`, status: 409, differs: "expires", change: spend},
		{name: "spent, and never ends", first: `"maxNodes":1,"ttl":"0"`, again: `"maxNodes":1`, status: 409, differs: "ttl", change: func(r *tokens.Record) { r.Nodes = []string{"a"} }},
		{name: "not spent, and ends early", first: `"maxNodes":2`, again: `"maxNodes":2`, status: 409, differs: "ttl", change: spend},
	} {
		t.Run(test.name, func(t *testing.T) {
			own := tokens.Generate()
			first, _, got := askFor[api.Token](t, s, "POST", tokenPath, body(own, test.first))
			if got.status != 201 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			before, status := s.record(t, own.ID()), api.StatusActive
			if test.change != nil {
				var err error
				if before, err = s.store.Update(t.Context(), own.ID(), func(r *tokens.Record) error { test.change(r); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			if before.Spent() {
				status = api.StatusSpent
			}
			again := own
			if test.secret {
				var err error
				if again, err = tokens.New(own.ID(), tokens.Generate().RevealSecret()); err != nil {
					t.Fatal(err)
				}
			}
			for _, query := range []string{"", "?dryRun=true"} {
				second, p, got := askFor[api.Token](t, s, "POST", tokenPath+query, body(again, test.again))
				if got.status != test.status {
					t.Fatalf("%s: %d %s, want %d", query, got.status, got.body, test.status)
				}
				if test.status == 409 {
					differs := ""
					if test.differs != "" {
						differs = "; it differs in " + test.differs
					}
					same := fmt.Sprintf("token %s already exists and does not match the request%s. Choose another token, or delete the existing one with: kubejoin token delete %s", own.ID(), differs, own.ID())
					if !p.Named(api.ProblemExists) || p.Detail != same || p.TokenID != "" || p.Field != "" || strings.Contains(got.body, again.RevealSecret()) {
						t.Errorf("%s: %s", query, got.body)
					}
					continue
				}
				if second.Token.Reveal() != own.Reveal() || second.JoinCommand != first.JoinCommand || !second.Expires.Equal(before.Expires) || second.Status != status ||
					!slices.Equal(second.Nodes, before.Nodes) || got.header.Get("Location") != "" || got.header.Get("Cache-Control") != "no-store" {
					t.Errorf("%s: %s, first %+v", query, got.body, first)
				}
			}
			if after := s.record(t, own.ID()); after.Version != before.Version || after.Token != own {
				t.Error("the repeated request changed the token")
			}
		})
	}
}

// aged is a store that returns records as if they were created earlier by that time.
type aged struct {
	tokens.Store
	by time.Duration
}

func (s aged) Get(ctx context.Context, id string) (tokens.Record, error) {
	r, err := s.Store.Get(ctx, id)
	r.Created, r.Expires = r.Created.Add(-s.by), r.Expires.Add(-s.by)
	return r, err
}

// The ttl of a repeated request counts from the creation of the token. Catches a token that is extended, or that seems
// to differ because time has passed.
func TestRepeatedCreateCountsTTLFromCreation(t *testing.T) {
	s := newSite(t)
	s.Tokens = aged{s.store, 10 * time.Hour}
	s.start(t)
	own := tokens.Generate()
	for body, status := range map[string]int{`{"token":"` + own.Reveal() + `","ttl":"24h"}`: 200, `{"token":"` + own.Reveal() + `","ttl":"14h"}`: 409} {
		s.do(t, "POST", tokenPath, adminBearer, "application/json", `{"token":"`+own.Reveal()+`","ttl":"24h"}`)
		again, _, got := askFor[api.Token](t, s, "POST", tokenPath, body)
		if left := time.Until(again.Expires); got.status != status || status == 200 && (left > 14*time.Hour+time.Second || left < 13*time.Hour) {
			t.Errorf("got %d and expiry in %s, want %d and 14h", got.status, left, status)
		}
	}
}

// skewed is a store whose clock is ahead by that time.
type skewed struct {
	tokens.Store
	by time.Duration
}

func (s skewed) Get(ctx context.Context, id string) (tokens.Record, error) {
	r, err := s.Store.Get(ctx, id)
	r.Created = r.Created.Add(s.by)
	return r, err
}

// kube-apiserver sets the creation time, and kubejoin the expiry. Catches a repeated request that is refused because
// their clocks differ a little.
func TestRepeatedCreateToleratesClockSkew(t *testing.T) {
	for _, test := range []struct {
		ttl    string
		by     time.Duration
		status int
	}{
		{"24h", 20 * time.Second, 200},
		{"24h", -20 * time.Second, 200},
		{"24h", 4 * time.Minute, 200},
		{"24h", -4 * time.Minute, 200},
		{"24h", 6 * time.Minute, 409},
		{"24h", -6 * time.Minute, 409},
		{"20m", time.Minute, 200},
		{"20m", 4 * time.Minute, 409},
		{"1m", 5 * time.Second, 200}, // 15 s are tolerated, of which storing the token may take 10
		{"1m", 25 * time.Second, 409},
	} {
		s := newSite(t)
		s.Tokens = skewed{s.store, test.by}
		s.start(t)
		body := `{"token":"` + tokens.Generate().Reveal() + `","ttl":"` + test.ttl + `"}`
		for _, want := range []int{201, test.status} {
			if _, _, got := askFor[api.Token](t, s, "POST", tokenPath, body); got.status != want {
				t.Errorf("%s, %s ahead: %d %s, want %d", test.ttl, test.by, got.status, got.body, want)
			}
		}
	}
}

// Catches a repeated request that succeeds with an expired token.
func TestRepeatedCreateRefusesExpiredToken(t *testing.T) {
	s := newSite(t)
	s.Tokens = aged{s.store, 2 * time.Hour}
	s.start(t)
	body := `{"token":"` + tokens.Generate().Reveal() + `","ttl":"1h"}`
	for _, want := range []int{201, 409} {
		if got := s.do(t, "POST", tokenPath, adminBearer, "application/json", body); got.status != want {
			t.Errorf("%d %s, want %d", got.status, got.body, want)
		}
	}
}

// Catches concurrent identical requests that make two tokens, or that fail because another one was first.
func TestConcurrentCreatesMakeOneToken(t *testing.T) {
	s := newSite(t)
	s.start(t)
	own := tokens.Generate()
	var all sync.WaitGroup
	statuses := make([]int, 20)
	for i := range statuses {
		all.Go(func() {
			got := s.do(t, "POST", tokenPath, adminBearer, "application/json", `{"token":"`+own.Reveal()+`","ttl":"1h"}`)
			statuses[i] = got.status
			if !strings.Contains(got.body, own.Reveal()) {
				t.Errorf("%d %s", got.status, got.body)
			}
		})
	}
	all.Wait()
	slices.Sort(statuses)
	if statuses[18] != 200 || statuses[19] != 201 || statuses[0] != 200 {
		t.Errorf("got statuses %v, want one 201 and else 200", statuses)
	}
}

// Catches a repeated request that is refused because cluster-info is full, although its token is already in it.
func TestRepeatedCreateNeedsNoSpaceInClusterInfo(t *testing.T) {
	s := newSite(t)
	info := &limitedClusterInfo{ClusterInfo: s.ClusterInfo, capacity: 1, signed: map[string]bool{}}
	s.ClusterInfo = info
	s.start(t)
	own := tokens.Generate()
	body := `{"token":"` + own.Reveal() + `","wait":"0"}`
	for i, want := range []int{201, 200} {
		if _, _, got := askFor[api.Token](t, s, "POST", tokenPath+"?dryRun", body); got.status != 200 {
			t.Errorf("%d, a dry run: %d %s", i, got.status, got.body)
		}
		if _, _, got := askFor[api.Token](t, s, "POST", tokenPath, body); got.status != want {
			t.Errorf("%d: %d %s, want %d", i, got.status, got.body, want)
		}
		info.mu.Lock()
		info.signed[own.ID()] = true
		info.mu.Unlock()
	}
	other := `{"token":"` + tokens.Generate().Reveal() + `","wait":"0"}`
	for _, query := range []string{"", "?dryRun"} {
		if _, p, got := askFor[api.Token](t, s, "POST", tokenPath+query, other); got.status != 507 || !p.Named(api.ProblemFull) {
			t.Errorf("%s: %d %s", query, got.status, got.body)
		}
	}
}

var _ server.ClusterInfo = (*limitedClusterInfo)(nil)

// A dry run reads the token twice. Catches an internal error if the token is deleted or the store fails in between.
func TestDryRunOfDeletedTokenIsConflict(t *testing.T) {
	for err, want := range map[error]int{fmt.Errorf("x: %w", tokens.ErrNotFound): 409, errStore: 503} {
		s := newSite(t)
		own := s.token(t, nil)
		s.Tokens = &failing{Store: s.store, at: 2, err: err}
		s.start(t)
		if _, _, got := askFor[api.Token](t, s, "POST", tokenPath, `{"token":"`+own+`","dryRun":true}`); got.status != want {
			t.Errorf("%v: %d %s, want %d", err, got.status, got.body, want)
		}
	}
}
