package cleaner_test

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
)

// openClaims returns a store that contains only these claims.
func openClaims(t *testing.T, all ...tokens.Claim) *boltstore.Store {
	t.Helper()
	store, err := boltstore.Open(filepath.Join(t.TempDir(), "kubejoin.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	for _, claim := range all {
		if _, err := store.Claims().Create(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
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
	claims, err := c.Store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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

// Before it releases a claim, the cleaner must read the Node or the token live, because lists may lag.
func TestClaimsReadsLiveBeforeRelease(t *testing.T) {
	for name, test := range map[string]struct {
		registered bool
		gone       bool // the Node is deleted, or the token if no Node has registered
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
					if _, err := store.Create(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				}
				left := cleanClaims(t, cleaner.Claims{
					Store: store.Claims(), Tokens: listsNothing{store},
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

// listsNothing is a store whose cache is empty.
type listsNothing struct{ tokens.Store }

func (listsNothing) List(context.Context) ([]tokens.Record, error) { return nil, nil }

func TestClaimsNeedsStores(t *testing.T) {
	for _, c := range []cleaner.Claims{{Store: &memoryClaims{}}, {Tokens: &memory{}}} {
		if err := c.Run(t.Context()); err == nil {
			t.Errorf("Run of %+v does not fail", c)
		}
	}
}
