package admission_test

import (
	"crypto/elliptic"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
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
			claim, err := all.Get(t.Context(), "worker-1")
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

// Between the count and the claim of a name, kubejoin stops. The machine may continue with any key.
func TestCountedNameIsClaimedByTheNextAttempt(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	c.editToken(token.ID(), func(r *tokens.Record) { r.Nodes = []string{"worker-1"} })
	c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
	_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
	wantRefused(t, "another name", err, "TokenSpent")
}

// A request claims its name while another one gives the slot of that name back. It is admitted only if it takes the slot
// again.
func TestNameThatIsGivenBackIsCountedAgain(t *testing.T) {
	c := newCluster()
	token, other := c.createToken(tokens.Limits{MaxNodes: 1}), c.createToken(tokens.Limits{MaxNodes: 1})
	marked, leave := make(chan struct{}), make(chan struct{})
	loser := c.admission()
	updates := 0
	c.hookBeforeCount(loser, func() {
		if updates++; updates == 2 { // the name is among the lost ones, and about to be removed
			close(marked)
			<-leave
		}
	})
	var losing sync.WaitGroup
	n := c.stalled(func() {
		c.mustAdmit(t, firstRequest(t, bootstrapUser(other), "worker-1", nil))
		c.refreshCaches()
		losing.Go(func() {
			// The claim of the other token disappears, so the loser is decided again, too.
			if _, err := admit(t.Context(), loser, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
				t.Errorf("loser: %v", err)
			}
		})
		<-marked
		c.mu.Lock()
		delete(c.claims, "worker-1")
		c.mu.Unlock()
	}, nothing)
	if _, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", nil)); err != nil {
		t.Error(err)
	}
	close(leave)
	losing.Wait()
	if r := c.records[token.ID()]; len(r.Nodes) != 1 || len(r.Marks) > 0 {
		t.Errorf("the token counts %q with marks %q, want worker-1 and none", r.Nodes, r.Marks)
	}
}

// Only a request that has lost its name to another token gives the slot back.
func TestSlotOfAMachineIsNotGivenBack(t *testing.T) {
	for name, test := range map[string]struct {
		happen func(c *cluster)
		allow  bool // existing Nodes
		reason string
	}{
		"it is there, and its Lease was deleted":      {func(c *cluster) { c.registerNode("worker-1"); delete(c.claims, "worker-1") }, false, "NodeExists"},
		"it is there, and existing Nodes are allowed": {func(c *cluster) { c.registerNode("worker-1") }, true, "NodeNameClaimed"},
		"it has left, and another one has its name": {func(c *cluster) {
			c.registerNode("worker-1")
			c.deleteNode("worker-1")
			c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
		}, false, "NodeNameClaimed"},
	} {
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
		test.happen(c)
		c.refreshCaches()
		n := c.admission()
		n.AllowExisting = test.allow
		_, err := admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
		wantRefused(t, name, err, test.reason)
		_, err = admit(t.Context(), n, firstRequest(t, bootstrapUser(token), "worker-2", nil))
		wantRefused(t, name+", another machine", err, "TokenSpent")
		if r := c.records[token.ID()]; r.Marks["worker-1"] == lost {
			t.Errorf("%s: the token has lost worker-1", name)
		}
	}
}

// The cache lacks a token, or its limit. What it has must neither refuse nor admit.
func TestStaleTokenDecidesNothing(t *testing.T) {
	for name, limits := range map[string]tokens.Limits{"no token": {MaxNodes: 1}, "no limit": {}} {
		c := newCluster()
		var token tokens.Token
		if name == "no token" {
			c.freezeCaches()
		}
		if token = c.createToken(limits); name != "no token" {
			c.freezeCaches()
		}
		c.editToken(token.ID(), func(r *tokens.Record) { r.Limits.MaxNodes = 1 })
		c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-2", nil))
		wantRefused(t, name, err, "TokenSpent")
	}
}

// The claim cleaner releases the claim of a deleted Node, or of an expired token. The token gets no other claim on that
// name, even if it is renewed.
func TestCleanerLeavesNameToOtherTokens(t *testing.T) {
	for name, happen := range map[string]func(c *cluster, id string){
		"Node deleted": func(c *cluster, _ string) { c.registerNode("worker-1"); c.deleteNode("worker-1") },
		"token expired": func(c *cluster, id string) {
			c.editToken(id, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster()
				token := c.createToken(tokens.Limits{MaxNodes: 2})
				c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256())))
				happen(c, token.ID())
				c.runClaimCleaner(t, c.Node)
				c.editToken(token.ID(), func(r *tokens.Record) { r.Expires = time.Time{} })
				c.refreshCaches()
				_, err := admit(t.Context(), c.admission(), firstRequest(t, bootstrapUser(token), "worker-1", nil))
				wantRefused(t, name, err, "TokenSpent", "has already joined")
				c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
			})
		})
	}
}

// A release is interrupted before the claim is released. Catches a machine that is admitted with that claim, and a slot that
// stays used when the release is repeated.
func TestInterruptedReleaseAdmitsNobody(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	r := firstRequest(t, bootstrapUser(token), "worker-1", csrtest.ECDSA(elliptic.P256()))
	c.mustAdmit(t, r)
	stops := tokens.Releaser{Tokens: store{cluster: c}, Claims: c.admissionWith(storetest.Fail(errors.New("connection reset"), "Claims.Delete")).Claims}
	if _, _, err := stops.Release(t.Context(), "worker-1", false); err == nil {
		t.Fatal("the claim was released")
	}
	_, err := admit(t.Context(), c.admission(), r)
	wantRefused(t, "release interrupted", err, "TokenSpent", "has already joined")
	releaseClaim(t.Context(), store{cluster: c}, c.admission().Claims, "worker-1")
	c.mustAdmit(t, r)
}

// Catches a name that a claim blocks permanently although nobody can join with it.
func TestCleanerReleasesClaimOfNameThatHasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster()
		token := c.createToken(tokens.Limits{MaxNodes: 1})
		c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-1", nil))
		c.runClaimCleaner(t, c.Node)
		if _, exists := c.claims["worker-1"]; !exists {
			t.Fatal("the claim of a joining machine is released")
		}
		c.editToken(token.ID(), func(r *tokens.Record) { r.Marks = map[string]string{"worker-1": left} })
		c.runClaimCleaner(t, c.Node)
		c.mustAdmit(t, firstRequest(t, bootstrapUser(c.createToken(tokens.Limits{MaxNodes: 1})), "worker-1", nil))
	})
}

// Giving a slot back was interrupted, and the machine never asks again. An operator can free the slot.
func TestLostNameIsReleased(t *testing.T) {
	c := newCluster()
	token := c.createToken(tokens.Limits{MaxNodes: 1})
	c.editToken(token.ID(), func(r *tokens.Record) { r.Nodes, r.Marks = []string{"worker-1"}, map[string]string{"worker-1": lost} })
	releaseClaim(t.Context(), store{cluster: c}, c.admission().Claims, "worker-1")
	c.mustAdmit(t, firstRequest(t, bootstrapUser(token), "worker-2", nil))
}
