package cleaner_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// openClaims returns a store that contains only these claims.
func openClaims(t *testing.T, all ...tokens.Claim) *rowstore.Store {
	t.Helper()
	store := memdb.Open()
	for _, claim := range all {
		must.Value(storetest.CreateClaim(t.Context(), store.Claims(), claim))(t)
	}
	return store
}

// cleanClaims runs c in a synctest bubble until it is idle. It returns the node names of the remaining claims.
func cleanClaims(t *testing.T, c cleaner.Claims) []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	synctest.Wait()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	claims := must.Value(c.Store.List(t.Context()))(t)
	var left []string
	for _, claim := range claims {
		left = append(left, claim.Node)
	}
	return left
}

// Without access to Nodes, the cleaner must delete only released claims whose Past has ended.
func TestClaimsWithoutNodesDeletesOnlyEndedPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		store := openClaims(t,
			tokens.Claim{Node: "gone", TokenID: "gone00", NodeUID: tokens.ByCertificate},
			tokens.Claim{Node: "quiet", TokenID: "gone00"},
			tokens.Claim{Node: "over", Past: tokens.ReleasedClaim{Until: now.Add(-time.Second)}},
			tokens.Claim{Node: "later", Past: tokens.ReleasedClaim{Until: now.Add(time.Hour)}},
		)
		c := cleaner.Claims{Store: store.Claims(), Tokens: store}
		if left, want := cleanClaims(t, c), []string{"gone", "later", "quiet"}; !slices.Equal(left, want) {
			t.Errorf("got claims %q, want %q", left, want)
		}
		time.Sleep(time.Hour)
		if left, want := cleanClaims(t, c), []string{"gone", "quiet"}; !slices.Equal(left, want) {
			t.Errorf("an hour later: got claims %q, want %q", left, want)
		}
	})
}

// Lists may lag. So the cleaner must read the Node or the token live before it releases a claim.
func TestClaimsReadsLiveBeforeRelease(t *testing.T) {
	for name, test := range map[string]struct {
		registered bool
		gone       bool // the Node was deleted, or if no Node has registered, the token was deleted
	}{
		"Node is there":  {registered: true},
		"Node is gone":   {registered: true, gone: true},
		"token is there": {},
		"token is gone":  {gone: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := tokens.Claim{Node: "worker-1", TokenID: "abc123"}
				if test.registered {
					claim.NodeUID = "uid"
				}
				store := openClaims(t, claim)
				if test.registered || !test.gone {
					r := tokens.NewRecord(newToken(t, "abc123"), time.Hour, time.Now())
					must.Value(store.Create(t.Context(), r))(t)
				}
				left := cleanClaims(t, cleaner.Claims{
					Store: store.Claims(), Tokens: emptyCache.Store(store),
					Node: func(context.Context, string) (string, error) {
						if test.registered && !test.gone {
							return "uid", nil
						}
						return "", tokens.ErrNotFound
					},
					Nodes: func(context.Context) (map[string]string, error) { return nil, nil },
				})
				if stays := len(left) == 1; stays == test.gone {
					t.Errorf("claim stays: got %t, want %t", stays, !test.gone)
				}
			})
		})
	}
}

// emptyCache makes List return nothing.
var emptyCache = storetest.Faulty(func(c *storetest.Call, do func() error) error {
	if c.Method == "Store.List" {
		return nil
	}
	return do()
})

func TestClaimsNeedsStores(t *testing.T) {
	for _, c := range []cleaner.Claims{{Store: memdb.Open().Claims()}, {Tokens: memdb.Open()}} {
		if err := c.Run(t.Context()); err == nil {
			t.Errorf("Run of %+v does not fail", c)
		}
	}
}

// An Identity must end when its Node is deleted, when the rejoin window ends, or an hour after its creation if no Node
// registers. Then the cleaner must delete the claim of a node without limits, and not before.
func TestClaimsEndsIdentities(t *testing.T) {
	const window = 24 * time.Hour
	synctest.Test(t, func(t *testing.T) {
		in := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
		nodes := map[string]string{"joining": "uid-1", "there": "uid-2", "again": "uid-4"}
		store := openClaims(t,
			tokens.Claim{Node: "joining", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NotAfter: in}},
			tokens.Claim{Node: "there", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "uid-2", NotAfter: in}},
			tokens.Claim{Node: "again", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "uid-3", NotAfter: in}},
			tokens.Claim{Node: "gone", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "uid-5", NotAfter: in}},
			tokens.Claim{Node: "gone-past", Past: tokens.ReleasedClaim{Until: in}, Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "uid-6", NotAfter: in}},
			tokens.Claim{Node: "never", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NotAfter: in}},
		)
		c := cleaner.Claims{
			Store: store.Claims(), Tokens: store, RejoinWindow: window,
			Node: func(_ context.Context, name string) (string, error) {
				if uid := nodes[name]; uid != "" {
					return uid, nil
				}
				return "", tokens.ErrNotFound
			},
			Nodes: func(context.Context) (map[string]string, error) { return nodes, nil },
		}
		if left, want := cleanClaims(t, c), []string{"again", "gone-past", "joining", "never", "there"}; !slices.Equal(left, want) {
			t.Errorf("got claims %q, want %q", left, want)
		}
		for node, uid := range map[string]string{"joining": "uid-1", "there": "uid-2", "again": "uid-3", "gone-past": "", "never": ""} {
			claim, err := store.Claims().Get(t.Context(), node, tokens.Live)
			if err != nil || claim.Identity.NodeUID != uid || claim.Identity.IsZero() != (node == "gone-past") {
				t.Errorf("%s: got identity %+v, %v, want Node %q", node, claim.Identity, err, uid)
			}
		}
		time.Sleep(time.Hour)
		if left, want := cleanClaims(t, c), []string{"again", "joining", "there"}; !slices.Equal(left, want) {
			t.Errorf("an hour later: got claims %q, want %q", left, want)
		}
		time.Sleep(window)
		if left := cleanClaims(t, c); len(left) > 0 {
			t.Errorf("after the window: got claims %q, want none", left)
		}
	})
}

// Without a rejoin window, the cleaner must end the identities of released claims from an earlier run, but not of held claims.
func TestClaimsEndsIdentitiesWhenOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		identity := tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "uid", NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}
		store := openClaims(t, tokens.Claim{Node: "free", Identity: identity}, tokens.Claim{Node: "held", TokenID: "abc123", Identity: identity})
		if left := cleanClaims(t, cleaner.Claims{Store: store.Claims(), Tokens: store}); !slices.Equal(left, []string{"held"}) {
			t.Errorf("got claims %q, want held", left)
		}
	})
}

// When the Node of a held claim registers, the cleaner must store its UID in the claim and in the Identity with one write.
func TestClaimsIdentifiesRegisteredNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openClaims(t, tokens.Claim{Node: "worker-1", TokenID: "abc123", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}}})
		cleanClaims(t, cleaner.Claims{Store: store.Claims(), Tokens: store, RejoinWindow: time.Hour, Node: func(context.Context, string) (string, error) { return "uid", nil }})
		if c, err := store.Claims().Get(t.Context(), "worker-1", tokens.Live); err != nil || c.NodeUID != "uid" || c.Identity.NodeUID != "uid" || c.Version != "2" {
			t.Errorf("got %+v, %v, want the UID twice after one write", c, err)
		}
	})
}

// A held claim must keep its Identity as long as the claim is held: here its token still admits the machine.
func TestClaimsKeepsIdentityOfHeldClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openClaims(t, tokens.Claim{Node: "worker-1", TokenID: "abc123", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "uid", NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}})
		must.Value(store.Create(t.Context(), tokens.NewRecord(newToken(t, "abc123"), time.Hour, time.Now())))(t)
		left := cleanClaims(t, cleaner.Claims{
			Store: store.Claims(), Tokens: store, RejoinWindow: time.Hour,
			Node:  func(context.Context, string) (string, error) { return "", tokens.ErrNotFound },
			Nodes: func(context.Context) (map[string]string, error) { return nil, nil },
		})
		if len(left) != 1 {
			t.Error("the claim was released")
		}
	})
}

// If the cleaner cannot clean up an Identity, the Identity must stay, and the log must say why.
func TestClaimsReportsIdentitiesNotCleaned(t *testing.T) {
	for name, test := range map[string]struct{ node, deletion error }{
		"Node not read":     {node: errBroken},
		"claim not deleted": {node: tokens.ErrNotFound, deletion: errBroken},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := openClaims(t, tokens.Claim{Node: "worker-1", Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "k"}}, NodeUID: "uid", NotAfter: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}})
			var log bytes.Buffer
			left := cleanClaims(t, cleaner.Claims{
				Store:  storetest.Before(func() error { return test.deletion }, "Claims.Delete").Claims(store.Claims()),
				Tokens: store, RejoinWindow: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Node: func(context.Context, string) (string, error) { return "", test.node },
			})
			if len(left) != 1 || !strings.Contains(log.String(), errBroken.Error()) || !strings.Contains(log.String(), "worker-1") {
				t.Errorf("%s: got claims %q and log %s", name, left, &log)
			}
		})
	}
}
