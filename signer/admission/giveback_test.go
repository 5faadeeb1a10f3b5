package admission_test

import (
	"context"
	"crypto/elliptic"
	"errors"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// kubejoin stops between the count and the claim of a name, or somebody deletes the claim, and the machine never asks
// again. Catches a slot that no release frees.
func TestReleaseFreesSlotWithoutClaim(t *testing.T) {
	for name, happen := range map[string]func(c *cluster, token tokens.Token){
		"kubejoin stopped": func(c *cluster, token tokens.Token) {
			c.editToken(token.ID(), func(r *tokens.Record) { r.Nodes = []string{"worker-1"} })
		},
		"kubejoin stopped while it gave the slot back": func(c *cluster, token tokens.Token) {
			c.editToken(token.ID(), func(r *tokens.Record) { r.Nodes, r.Marks = []string{"worker-1"}, map[string]string{"worker-1": lost} })
		},
		"claim deleted": func(c *cluster, token tokens.Token) {
			c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
			delete(c.claims, "worker-1")
		},
	} {
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		happen(c, token)
		c.refreshCaches()
		second := firstRequest(t, bootstrapUser(token), "worker-2", nil)
		_, err := admit(t.Context(), c.admission(), second)
		wantRefused(t, name, err, "TokenSpent")
		if err := c.giveBack(t.Context(), token, c.admission().Claims); err != nil || len(c.records[token.ID()].Nodes) > 0 {
			t.Errorf("%s: the token counts %q, %v, want none", name, c.records[token.ID()].Nodes, err)
		}
		c.refreshCaches()
		c.mustAdmit(t, second)
	}
}

// giveBack frees the slot of worker-1, which has no claim.
func (c *cluster) giveBack(ctx context.Context, token tokens.Token, claims tokens.Claims) error {
	before := c.records[token.ID()]
	after := before.Clone()
	after.Nodes = slices.DeleteFunc(after.Nodes, func(node string) bool { return node == "worker-1" })
	_, err := claims.Commit(ctx, before, after, nil)
	return err
}

// A request has counted its name when a person releases it. The slot must not be given twice.
func TestSlotOfRequestInProgressIsNotGivenTwice(t *testing.T) {
	for name, test := range map[string]struct {
		at    int  // the read of a claim after which the request continues; 0 is before, -1 after it has returned
		taken bool // another machine takes the slot meanwhile
		gives error
	}{
		"before it is released":              {at: 0, gives: tokens.ErrConflict},
		"before the name is marked":          {at: 1, gives: tokens.ErrConflict},
		"before the name is uncounted":       {at: 2, gives: tokens.ErrConflict},
		"after it is released":               {at: -1},
		"after another machine has the slot": {at: -1, taken: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			token := c.createToken(tokens.Limits{MaxNodes: 1})
			counted, proceed, done := make(chan struct{}), make(chan struct{}), make(chan error)
			n := c.stalled(func() { close(counted); <-proceed }, nothing)
			go func() {
				_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
				done <- err
			}()
			<-counted
			var admitted error
			continues := func(at int) {
				if at == test.at {
					close(proceed)
					admitted = <-done
				}
			}
			continues(0)
			reads := 0
			hooked := c.admissionWith(storetest.After(func() error { reads++; continues(reads); return nil }, "Claims.Get"))
			err := c.giveBack(t.Context(), token, hooked.Claims)
			if !errors.Is(err, test.gives) {
				t.Errorf("got error %v, want %v", err, test.gives)
			}
			c.refreshCaches()
			if test.taken {
				c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-2", nil))
			}
			continues(-1)
			want := "worker-1"
			if test.taken {
				want = "worker-2"
				wantRefused(t, "the request", admitted, "TokenSpent")
			} else if admitted != nil {
				t.Error(admitted)
			}
			if r := c.records[token.ID()]; !slices.Equal(r.Nodes, []string{want}) {
				t.Errorf("the token counts %q, want %s", r.Nodes, want)
			}
			c.refreshCaches()
			_, err = admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-3", nil))
			wantRefused(t, "another machine", err, "TokenSpent")
		})
	}
}
