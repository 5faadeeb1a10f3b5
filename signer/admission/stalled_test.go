package admission_test

import (
	"crypto/elliptic"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// stalled returns an admission that calls before when it has counted a name and claims it, and after when it has.
func (c *cluster) stalled(before, after func()) *admission.Nodes {
	before, after = sync.OnceFunc(before), sync.OnceFunc(after)
	return c.admissionWith(func(call *storetest.Call, do func() error) error {
		if call.Method != "Claims.Create" {
			return do()
		}
		before()
		err := do()
		after()
		return err
	})
}

func nothing() {}

func eraseCount(r *tokens.Record) { r.Nodes, r.Marks = nil, nil }

// If the count is lost before a request has read it again, the machine must compete for its slot again.
func TestLostCountIsNoticedBeforeAdmission(t *testing.T) {
	for name, test := range map[string]struct {
		stalled func(c *cluster, do func()) *admission.Nodes
		reason  string // of the second machine
	}{
		// Nothing shows that the first machine was counted, so the second one gets the slot.
		"before its claim": {func(c *cluster, do func()) *admission.Nodes { return c.stalled(do, nothing) }, ""},
		"after its claim":  {func(c *cluster, do func()) *admission.Nodes { return c.stalled(nothing, do) }, "TokenSpent"},
	} {
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		n := test.stalled(c, func() {
			c.editToken(token.ID(), eraseCount)
			_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
			if test.reason != "" {
				wantRefused(t, name+", second machine", err, test.reason)
			} else if err != nil {
				t.Errorf("%s, second machine: %v", name, err)
			}
		})
		_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		if test.reason == "" {
			wantRefused(t, name, err, "TokenSpent", "worker-2 has joined with it")
		} else if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The count is lost twice, and a claim is made for a count of the time before. It is not known which of the two claims
// was counted, so the token must admit no other machine.
func TestTokenWithMoreClaimsThanSlotsAdmitsNobody(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	second := firstRequest(t, bootstrapUser(token), "worker-2", nil)
	n := c.stalled(func() {
		c.editToken(token.ID(), eraseCount)
		if _, err := admit(t.Context(), c.admission(), second); err != nil {
			t.Error(err)
		}
	}, func() {
		c.editToken(token.ID(), eraseCount)
		c.refreshCaches()
		_, err := admit(t.Context(), c.admission(), second)
		wantRefused(t, "second machine", err, "TokenSpent", "allows 1 nodes and counts 2")
	})
	_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
	wantRefused(t, "first machine", err, "TokenSpent", "allows 1 nodes and counts 2")
}

// A replica counts a name and stalls. Meanwhile a machine joins under it through another replica, and its Node is
// deleted. The name stays counted, so the stalled request must not take it.
func TestStalledRequestDoesNotTakeNameThatHasLeft(t *testing.T) {
	for name, limits := range map[string]tokens.Limits{"deleted": {MaxNodes: 1}, "released": {MaxNodes: 1, CertificateDuration: time.Hour}} {
		c := newCluster()
		token, other := c.createToken(limits), c.createToken(tokens.Limits{})
		n := c.stalled(func() {
			c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
			c.registerNode("worker-1")
			c.deleteNode("worker-1")
			c.mustAdmit(t, firstRequest(t, bootstrapUser(other), "worker-1", nil)) // releases the claim
			c.refreshCaches()
		}, nothing)
		late := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
		for range 2 {
			_, err := admit(t.Context(), n, late)
			wantRefused(t, name, err, "TokenSpent", "has already joined")
		}
	}
}

// A request counts a name, and another token is faster to claim it. The slot is free again then, also if the other machine
// has registered already.
func TestLoserOfANameGetsItsSlotBack(t *testing.T) {
	for reason, happen := range map[string]func(c *cluster){
		"NodeNameClaimed": func(*cluster) {},
		"NodeExists":      func(c *cluster) { c.registerNode("worker-1") },
	} {
		c := newCluster()
		token, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})
		n := c.stalled(func() {
			c.mustAdmit(t, firstRequest(t, bootstrapUser(other), "worker-1", nil))
			happen(c)
		}, nothing)
		_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		wantRefused(t, "slower", err, reason)
		if r := c.records[token.ID()]; len(r.Nodes) > 0 {
			t.Errorf("%s: the token counts %q, want none", reason, r.Nodes)
		}
		c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-2", nil))
	}
}

// Another replica admits the machine while its slot is given back; in one case the machine also joins and leaves. Catches a
// slot that is free although the machine has it, or has used it.
func TestSlotIsNotGivenBackIfItsNameIsClaimed(t *testing.T) {
	for name, leaves := range map[string]bool{"claimed": false, "joined and left": true} {
		c := newCluster()
		token, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})
		r := firstRequest(t, bootstrapUser(token), "worker-1", nil)
		n := c.stalled(func() { c.mustAdmit(t, firstRequest(t, bootstrapUser(other), "worker-1", nil)) }, nothing)
		updates := 0
		c.hookBeforeCount(n, func() {
			if updates++; updates != 2 { // the name is about to be among the lost ones
				return
			}
			c.mu.Lock()
			delete(c.claims, "worker-1")
			c.mu.Unlock()
			c.mustAdmit(t, r)
			if !leaves {
				return
			}
			c.registerNode("worker-1")
			c.deleteNode("worker-1")
			all := c.admission().Claims
			claim, err := all.Get(t.Context(), "worker-1", tokens.Live)
			if err == nil {
				err = tokens.Release(t.Context(), all, claim, claim.PastAfterRelease(time.Now(), 0))
			}
			if err != nil {
				t.Error(err)
			}
		})
		if _, err := admit(t.Context(), n, r); updates < 2 || leaves && approval.Refused(err) == nil || !leaves && err != nil {
			t.Errorf("%s: got %v after %d updates of the token", name, err, updates)
		}
		if got := c.records[token.ID()].Nodes; len(got) != 1 {
			t.Errorf("%s: the token counts %q, want worker-1", name, got)
		}
		_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
		wantRefused(t, name+": another name", err, "TokenSpent")
	}
}

// A refusal is final, so there must be none before the slot was given back.
func TestFailedGivingBackIsNoRefusal(t *testing.T) {
	for at, done := 1, false; !done; at++ {
		c := newCluster()
		token, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})
		n := c.stalled(func() {
			c.mustAdmit(t, firstRequest(t, bootstrapUser(other), "worker-1", nil))
			c.calls, c.failAt = 0, at
		}, nothing)
		c.refreshCaches()
		r := firstRequest(t, bootstrapUser(token), "worker-1", nil)
		_, err := admit(t.Context(), n, r)
		if done = c.calls < at; !done {
			if err == nil || approval.Refused(err) != nil {
				t.Errorf("call %d fails: %v; want a temporary error", at, err)
			}
			_, err = admit(t.Context(), c.admission(), r)
		}
		wantRefused(t, "nothing fails any more", err, "NodeNameClaimed")
		if r := c.records[token.ID()]; len(r.Nodes) > 0 || done && at < 8 {
			t.Errorf("call %d failed: the token counts %q, want none", at, r.Nodes)
		}
	}
}
