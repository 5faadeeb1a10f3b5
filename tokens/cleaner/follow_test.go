package cleaner_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"github.com/prometheus/client_golang/prometheus"
)

func TestClaimsFollowTheirNodes(t *testing.T) {
	const node, gone = "worker-1", "abc999"
	long := time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC) // long ago: the clock of a synctest bubble starts in 2000
	type calls struct{ node, tokens int }
	for name, test := range map[string]struct {
		claim  tokens.Claim
		live   string            // UID of the Node; empty: no Node
		cached map[string]string // UIDs of Nodes; nil: no cache
		ready  string            // period in which the Node is Ready; empty: not Ready
		fails  string            // the call that fails
		err    error             // error of that call; nil: errBroken
		other  bool              // List returns a claim of another token
		alone  bool              // the cleaner has no access to Nodes
		want   func(*tokens.Claim)
		failed bool // the metrics count a failed step
		calls  calls
	}{
		"new Node":                            {live: "u1", want: func(c *tokens.Claim) { c.NodeUID = "u1" }, calls: calls{1, 1}},
		"new Node in the cache":               {live: "u1", cached: map[string]string{node: "u1"}, want: func(c *tokens.Claim) { c.NodeUID = "u1" }, calls: calls{1, 1}},
		"known Node in the cache":             {claim: tokens.Claim{NodeUID: "u1"}, live: "u1", cached: map[string]string{node: "u1"}, calls: calls{0, 1}},
		"known Node without a cache":          {claim: tokens.Claim{NodeUID: "u1"}, live: "u1", calls: calls{1, 1}},
		"Node created again":                  {claim: tokens.Claim{NodeUID: "u1"}, live: "u2", want: func(c *tokens.Claim) { c.NodeUID = "u2" }, calls: calls{1, 1}},
		"Node deleted":                        {claim: tokens.Claim{NodeUID: "u1"}, cached: map[string]string{}, want: func(c *tokens.Claim) { c.Node = "" }, calls: calls{1, 1}},
		"Node missing in the cache alone":     {claim: tokens.Claim{NodeUID: "u1"}, live: "u1", cached: map[string]string{}, calls: calls{1, 1}},
		"not registered yet":                  {cached: map[string]string{}, calls: calls{0, 1}},
		"not registered yet, without a cache": {calls: calls{1, 1}},
		"token deleted":                       {claim: tokens.Claim{TokenID: gone}, cached: map[string]string{}, want: func(c *tokens.Claim) { c.Node = "" }, calls: calls{1, 1}},
		"token expired":                       {claim: tokens.Claim{TokenID: "abc888"}, cached: map[string]string{}, want: func(c *tokens.Claim) { c.Node = "" }, calls: calls{1, 1}},
		"Ready again":                         {claim: tokens.Claim{NodeUID: "u1", ReadyBefore: "r1"}, live: "u1", ready: "r2", want: func(c *tokens.Claim) { c.ReadyAgain = true }, calls: calls{1, 1}},
		"still Ready":                         {claim: tokens.Claim{NodeUID: "u1", ReadyBefore: "r1"}, live: "u1", ready: "r1", calls: calls{1, 1}},
		"not Ready":                           {claim: tokens.Claim{NodeUID: "u1", ReadyBefore: "r1"}, live: "u1", calls: calls{1, 1}},
		"released, not yet due":               {claim: tokens.Claim{TokenID: "-", Past: tokens.ReleasedClaim{Until: time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC)}}},
		"released, due":                       {claim: tokens.Claim{TokenID: "-", Past: tokens.ReleasedClaim{Until: long}}, want: func(c *tokens.Claim) { c.Node = "" }},
		"token deleted, no Nodes":             {claim: tokens.Claim{TokenID: gone}, alone: true},
		"claim of another token by now":       {live: "u1", other: true, calls: calls{1, 1}},

		"claims not listed":      {live: "u1", fails: "Claims.List", failed: true},
		"tokens not listed":      {live: "u1", fails: "Store.List", failed: true},
		"Nodes not listed":       {live: "u1", cached: map[string]string{}, fails: "list nodes", failed: true, calls: calls{0, 1}},
		"Node not read":          {claim: tokens.Claim{NodeUID: "u1"}, fails: "node", failed: true, calls: calls{1, 1}},
		"token not read":         {claim: tokens.Claim{TokenID: gone}, fails: "Store.Get", failed: true, calls: calls{1, 1}},
		"condition not read":     {claim: tokens.Claim{NodeUID: "u1"}, live: "u1", ready: "r1", fails: "ready", failed: true, calls: calls{1, 1}},
		"condition of no Node":   {live: "", ready: "r1", fails: "ready", err: tokens.ErrNotFound, calls: calls{1, 1}},
		"claim not updated":      {live: "u1", fails: "Claims.Update", failed: true, calls: calls{1, 1}},
		"claim gone meanwhile":   {live: "u1", fails: "Claims.Update", err: tokens.ErrNotFound, calls: calls{1, 1}},
		"claim not released":     {claim: tokens.Claim{NodeUID: "u1"}, fails: "Claims.Delete", failed: true, calls: calls{1, 1}},
		"rest not deleted":       {claim: tokens.Claim{TokenID: "-", Past: tokens.ReleasedClaim{Until: long}}, fails: "Claims.Delete", failed: true},
		"rest deleted by others": {claim: tokens.Claim{TokenID: "-", Past: tokens.ReleasedClaim{Until: long}}, fails: "Claims.Delete", err: tokens.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim, err := test.claim, test.err
				claim.Node = node
				switch claim.TokenID {
				case "":
					claim.TokenID = "abc123"
				case "-": // the claim was released
					claim.TokenID = ""
				}
				if test.ready != "" || claim.ReadyBefore != "" {
					claim.Limits.Replaces = tokens.NodeRef{Name: node, UID: "u0"}
				}
				if err == nil {
					err = errBroken
				}
				fail := func(call string) error {
					if call == test.fails {
						return err
					}
					return nil
				}
				var got calls
				store := openClaims(t, claim)
				for id, expires := range map[string]time.Time{"abc123": {}, "abc888": time.Now().Add(-time.Hour)} {
					must.Value(store.Create(t.Context(), tokens.Record{Token: newToken(t, id), Expires: expires}))(t)
				}
				faulty := storetest.Faulty(func(c *storetest.Call, do func() error) error {
					if c.Method == "Store.List" {
						got.tokens++
					}
					if err := fail(c.Method); err != nil {
						return err
					}
					err := do()
					if test.other && c.Method == "Claims.List" {
						c.Claims[0].TokenUID, c.Claims[0].Version = "another", "0"
					}
					return err
				})
				reg := prometheus.NewRegistry()
				claims := secretstore.Steps{Claims: faulty.Claims(store.Claims()), Tokens: faulty.Store(store)}
				cleaner := cleaner.Claims{Store: claims, Tokens: faulty.Store(store), Registerer: reg,
					Node: func(context.Context, string) (string, error) {
						if got.node++; test.live == "" && fail("node") == nil {
							return "", tokens.ErrNotFound
						}
						return test.live, fail("node")
					},
					Ready: func(context.Context, string) (string, error) { return test.ready, fail("ready") },
				}
				if test.cached != nil {
					cleaner.Nodes = func(context.Context) (map[string]string, error) { return test.cached, fail("list nodes") }
				}
				if test.alone {
					cleaner.Node = nil
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- cleaner.Run(ctx) }()
				if failed := steps(t, reg, "error") > 0; failed != test.failed {
					t.Errorf("step failed: %t, want %t", failed, test.failed)
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				want := claim
				if test.want != nil {
					test.want(&want)
				}
				left, getErr := store.Claims().Get(t.Context(), node, tokens.Live)
				want.Created, want.UID, want.Version = left.Created, left.UID, left.Version
				if found := getErr == nil; found != (want.Node != "") || found && !left.Equal(want) {
					t.Errorf("claim found: %t, got %+v\nwant %+v", found, left, want)
				}
				if test.fails == "Store.List" {
					test.calls.tokens = got.tokens
				}
				if got != test.calls {
					t.Errorf("got %+v calls, want %+v", got, test.calls)
				}
			})
		})
	}
}
