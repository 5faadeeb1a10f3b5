package admission_test

import (
	"context"
	"crypto/elliptic"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/tokens"
)

// hookBeforeCount does something when claims are made and the count of their token is about to be written.
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

// cancelBeforeCount asks for a node's certificate and gives up before the token has counted the name.
func cancelBeforeCount(t *testing.T, c *cluster, token tokens.Token, node string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n := c.admission()
	n.Tokens = hookBeforeCount{store{cluster: c}, func() {
		cancel()
		time.Sleep(10 * time.Millisecond) // until the call has noticed
	}}
	if a, err := n.Admit(ctx, firstRequest(t, bootstrapUser(token), node, csrtest.ECDSA(elliptic.P256()))); a != nil || err == nil {
		t.Fatalf("%s left and was admitted: %v", node, err)
	}
	for range 100 { // the call may end after Admit
		c.mu.Lock()
		claim := c.claims[node]
		c.mu.Unlock()
		if claim.Pending {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("there is no pending claim of %s", node)
}

// A client that leaves at the right moment would keep any number of names from other machines, with a
// token for one node.
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
			_, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(other), "worker-1", nil))
			wantRefused(t, "while the count may be under way", err, "NodeNameClaimed")
			later := time.Now().Add(5 * time.Minute)
			n.Now = func() time.Time { return later }
			if _, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(other), "worker-1", nil)); err != nil {
				t.Errorf("a claim that was never counted keeps the name: %v", err)
			}
			// One that was counted does, confirmed or not.
			c.editToken(squats.ID(), func(r *tokens.Record) { r.Nodes = []string{"worker-2"} })
			_, err = n.Admit(t.Context(), firstRequest(t, bootstrapUser(c.createToken(limits)), "worker-2", nil))
			wantRefused(t, "counted", err, "NodeNameClaimed")
		})
	}
}

// Nothing was issued on a pending claim: keys of tries that came to nothing do not lock a machine out.
func TestReplacesKeysOfPendingClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	for range tokens.MaxKeys {
		cancelBeforeCount(t, c, token, "worker-1")
	}
	n := c.admission()
	for i := range tokens.MaxKeys + 1 {
		_, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
		switch {
		case i == 0 && err != nil:
			t.Errorf("the first key that anything is issued on: %v", err)
		case i == tokens.MaxKeys && err == nil:
			t.Errorf("%d keys were admitted", i+1)
		}
	}
	if keys := len(c.claims["worker-1"].Keys); keys != tokens.MaxKeys {
		t.Errorf("the claim has %d keys", keys)
	}
}

// Where Nodes that exist are handed out the claim cleaner notes the Node at once, also between the
// claim and its confirmation.
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
	if _, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Error(err)
	}
	if claim := c.claims["worker-1"]; claim.Pending || claim.NodeUID != uid {
		t.Errorf("claim %+v", claim)
	}
}

// Where there are no Nodes a machine that renews is not the one of a pending claim, on which nothing was
// issued: it does not end what the claim's token is good for.
func TestStandaloneRenewalDoesNotConfirmPendingClaim(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	n := c.admission()
	n.Node, n.Ready = nil, nil
	renews := firstRequest(t, "system:node:worker-1", "worker-1", nil)
	renews.Groups = []string{"system:nodes"}
	n.Tokens = hookBeforeCount{store{cluster: c}, func() {
		c.mu.Lock()
		c.history = nil // where there are no Nodes no cache lags
		c.mu.Unlock()
		if _, err := n.Admit(t.Context(), renews); err != nil {
			t.Error(err)
		}
	}}
	if _, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Error(err)
	}
}

// A try that was stopped for longer than claims may be pending finds that another token has its name.
func TestDelayedAttemptDoesNotConfirmOtherClaim(t *testing.T) {
	c := newCluster()
	stopped, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})
	n := c.admission()
	once := sync.OnceFunc(func() {
		c.refreshCaches()
		later := time.Now().Add(5 * time.Minute)
		next := c.admission()
		next.Now = func() time.Time { return later }
		if _, err := next.Admit(t.Context(), firstRequest(t, bootstrapUser(other), "worker-1", nil)); err != nil {
			t.Error(err)
		}
	})
	n.Tokens = hookBeforeCount{store{cluster: c}, once}
	_, err := n.Admit(t.Context(), firstRequest(t, bootstrapUser(stopped), "worker-1", nil))
	wantRefused(t, "stopped", err, "NodeNameClaimed")
	if claim := c.claims["worker-1"]; claim.TokenID != other.ID() || claim.Pending {
		t.Errorf("claim %+v", claim)
	}
}
