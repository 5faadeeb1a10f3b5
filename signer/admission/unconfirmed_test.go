package admission_test

import (
	"context"
	"crypto/elliptic"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// hookBeforeCount calls do when the claim exists and the count of its token is about to be written.
type hookBeforeCount struct {
	store
	do func()
}

func (s hookBeforeCount) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	return s.store.Update(ctx, id, func(r *tokens.Record) error {
		err := change(r)
		s.do()
		if err == nil {
			err = ctx.Err()
		}
		return err
	})
}

// cancelBeforeCount requests a certificate for node and cancels before the token has counted the name.
func cancelBeforeCount(t *testing.T, c *cluster, token tokens.Token, node string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n := c.admission()
	n.Tokens = hookBeforeCount{store{cluster: c}, func() {
		cancel()
		time.Sleep(10 * time.Millisecond) // until the call sees the canceled context
	}}
	if a, err := admit(ctx, n, firstRequest(t, bootstrapUser(token), node, csrtest.ECDSA(elliptic.P256()))); a != nil || err == nil {
		t.Fatalf("%s: got an admission or no error after canceling: %v", node, err)
	}
	for range 100 { // the write may end after Admit returned
		c.mu.Lock()
		claim := c.claims[node]
		c.mu.Unlock()
		if claim.Pending {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("got no pending claim of %s", node)
}

// A client that cancels at the right moment could otherwise block any number of names with a token for one node.
func TestAbandonedPendingClaimFreesItsName(t *testing.T) {
	for name, limits := range map[string]tokens.Limits{"limited": {MaxNodes: 1}, "by name": {NodeNames: []string{"worker-*"}}, "unlimited": {}} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			squats, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(limits)
			for _, node := range []string{"worker-1", "worker-2"} {
				cancelBeforeCount(t, c, squats, node)
			}
			c.refreshCaches()
			n := c.admission()
			_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(other), "worker-1", nil))
			wantRefused(t, "while the count may be under way", err, "NodeNameClaimed")
			later := time.Now().Add(5 * time.Minute)
			n.Now = func() time.Time { return later }
			if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(other), "worker-1", nil)); err != nil {
				t.Errorf("claim that was never counted: got %v, want the name to be free", err)
			}
			// A counted claim keeps its name, confirmed or not.
			c.editToken(squats.ID(), func(r *tokens.Record) { r.Nodes = []string{"worker-2"} })
			_, err = admit(t.Context(), n, firstRequest(t, bootstrapUser(c.createToken(limits)), "worker-2", nil))
			wantRefused(t, "counted", err, "NodeNameClaimed")
		})
	}
}

// Nothing was issued with a pending claim. The keys of failed attempts must not lock out the machine.
func TestReplacesKeysOfPendingClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	for range tokens.MaxKeys {
		cancelBeforeCount(t, c, token, "worker-1")
	}
	n := c.admission()
	for i := range tokens.MaxKeys + 1 {
		_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
		switch {
		case i == 0 && err != nil:
			t.Errorf("first key: got %v, want an admission", err)
		case i == tokens.MaxKeys && err == nil:
			t.Errorf("got %d admitted keys, want fewer", i+1)
		}
	}
	if keys := len(c.claims["worker-1"].Keys); keys != tokens.MaxKeys {
		t.Errorf("got %d keys on the claim, want 3", keys)
	}
}

// With --existing-nodes=allow, the claim cleaner may note the Node before the claim is confirmed.
func TestConfirmsClaimWithExistingNode(t *testing.T) {
	c := newCluster()
	token, uid := c.createToken(tokens.Limits{MaxNodes: 1}), c.node("worker-1")
	n := c.admission()
	n.AllowExisting = true
	n.Tokens = hookBeforeCount{store{cluster: c}, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if claim, ok := c.claims["worker-1"]; ok && claim.NodeUID == "" {
			claim.NodeUID, claim.Version = uid, c.next()
			c.claims["worker-1"] = claim
		}
	}}
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Error(err)
	}
	if claim := c.claims["worker-1"]; claim.Pending || claim.NodeUID != uid {
		t.Errorf("got claim %+v", claim)
	}
}

// Without Nodes (standalone), nothing was issued with a pending claim. A renewal comes from another machine and
// must not close the token of the claim.
func TestStandaloneRenewalDoesNotConfirmPendingClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	n := c.admission()
	n.Node, n.Ready = nil, nil
	r := firstRequest(t, "system:node:worker-1", "worker-1", nil)
	r.Groups = []string{"system:nodes"}
	n.Tokens = hookBeforeCount{store{cluster: c}, func() {
		c.mu.Lock()
		c.history = nil // standalone caches are always current
		c.mu.Unlock()
		if _, err := admit(t.Context(), n, r); err != nil {
			t.Error(err)
		}
	}}
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Error(err)
	}
}

// An attempt that is delayed longer than claims may be pending finds that another token has its name.
func TestDelayedAttemptDoesNotConfirmOtherClaim(t *testing.T) {
	c := newCluster()
	stopped, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})
	n := c.admission()
	once := sync.OnceFunc(func() {
		c.refreshCaches()
		later := time.Now().Add(5 * time.Minute)
		next := c.admission()
		next.Now = func() time.Time { return later }
		if _, err := admit(t.Context(), next, firstRequest(t, bootstrapUser(other), "worker-1", nil)); err != nil {
			t.Error(err)
		}
	})
	n.Tokens = hookBeforeCount{store{cluster: c}, once}
	_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(stopped), "worker-1", nil))
	wantRefused(t, "stopped", err, "NodeNameClaimed")
	if claim := c.claims["worker-1"]; claim.TokenID != other.ID() || claim.Pending {
		t.Errorf("got claim %+v", claim)
	}
}

// Earlier attempts left pending claims, the token has counted nothing, and half of the claim writes fail. The token
// must count a name in the end, so no attempt may restore keys that an earlier one has evicted.
func TestCountsAfterFailedEvictions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		var requests []approval.Request
		for i := range 16 {
			node := fmt.Sprintf("worker-%d", i)
			r := firstRequest(t, bootstrapUser(token), node, nil)
			c.claims[node] = tokens.Claim{
				Node: node, TokenID: token.ID(), UID: "1", Version: "1", Created: time.Now(),
				Limits: tokens.Limits{MaxNodes: 1}, Keys: []string{keyOf(r)}, Pending: true,
			}
			requests = append(requests, r)
		}
		n := c.admission()
		n.Claims = &failsEverySecondUpdate{claims: claims{cluster: c}}
		for round := 0; len(c.records[token.ID()].Nodes) == 0; round++ {
			if round == 20 {
				t.Fatalf("got no counted name after %d rounds", round)
			}
			var all sync.WaitGroup
			for _, r := range requests {
				all.Go(func() { _, _ = admit(t.Context(), n, r) })
			}
			all.Wait()
		}
	})
}

// failsEverySecondUpdate fails every second update of a claim.
type failsEverySecondUpdate struct {
	claims
	writes atomic.Int32
}

func (f *failsEverySecondUpdate) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	if f.writes.Add(1)%2 == 1 {
		return tokens.Claim{}, errInjected
	}
	return f.claims.Update(ctx, node, change)
}
