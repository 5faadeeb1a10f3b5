package tokens_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

var errReset = errors.New("connection reset")

// names is a Releaser, and a token for three nodes. Two nodes have joined.
type names struct {
	tokens.Releaser
	store  tokens.Store  // not wrapped
	claims tokens.Claims // not wrapped
	record tokens.Record
}

func twoJoined(t *testing.T) *names {
	t.Helper()
	db := memdb.Open()
	n := &names{store: db, claims: db.Claims()}
	n.faulty(func(_ *storetest.Call, do func() error) error { return do() })
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits.MaxNodes, r.Nodes = 3, []string{"worker-1", "worker-2"}

	n.record = must.Value(db.Create(t.Context(), r))(t)
	for _, node := range r.Nodes {
		n.claim(t, node)
	}
	return n
}

// faulty injects faults into calls of the stores. In secretstore each step can fail, because Secrets and Leases share no
// transaction.
func (n *names) faulty(f storetest.Faulty) {
	n.Tokens = f.Store(n.store)
	n.Claims = secretstore.Steps{Claims: f.Claims(n.claims), Tokens: n.Tokens}
}

func (n *names) claim(t *testing.T, node string) {
	t.Helper()
	c := tokens.Claim{Node: node, TokenID: n.record.Token.ID(), TokenUID: n.record.UID, Limits: n.record.Limits, Keys: []string{"sha256:" + strings.Repeat("0", 64)}}
	must.Value(storetest.CreateClaim(t.Context(), n.claims, c))(t)
}

// failingOnce makes the first call of a method fail.
func (n *names) failingOnce(method string) {
	failed := false
	n.faulty(storetest.Before(func() error {
		if failed {
			return nil
		}
		failed = true
		return errReset
	}, method))
}

// unclaim deletes the claim on worker-1. The token still counts the name.
func (n *names) unclaim(t *testing.T) {
	t.Helper()
	c := must.Value(n.claims.Get(t.Context(), "worker-1", tokens.Live))(t)
	must.OK(t, storetest.DeleteClaim(t.Context(), n.claims, c))
}

// release releases worker-1.
func (n *names) release(t *testing.T) (tokens.Claim, string, error) {
	t.Helper()
	c, warnings, err := n.Release(t.Context(), "worker-1", false)
	return c, strings.Join(warnings, "; "), err
}

// want fails the test unless exactly the nodes in claimed have claims, and the token counts exactly the nodes in counted.
func (n *names) want(t *testing.T, claimed, counted string) {
	t.Helper()
	held := must.Value(n.claims.HeldBy(t.Context(), n.record.Token.ID(), tokens.Live))(t)
	var holds []string
	for _, c := range held {
		holds = append(holds, c.Node)
	}
	now, err := n.store.Get(t.Context(), n.record.Token.ID(), tokens.Live)
	if err != nil && !errors.Is(err, tokens.ErrNotFound) {
		t.Fatal(err)
	}
	if !slices.Equal(holds, strings.Fields(claimed)) || !slices.Equal(now.Nodes, strings.Fields(counted)) {
		t.Errorf("got claims %v and nodes %v, want claims %s and nodes %s", holds, now.Nodes, claimed, counted)
	}
}

func TestReleaseFreesNameAndSlot(t *testing.T) {
	n := twoJoined(t)
	c, warnings, err := n.Release(t.Context(), "worker-1", true)
	if err != nil || c.Node != "worker-1" || len(warnings) > 0 {
		t.Errorf("dry run: got %+v, %q, %v", c, warnings, err)
	}
	n.want(t, "worker-1 worker-2", "worker-1 worker-2")
	c, warning, err := n.release(t)
	if err != nil || c.Node != "worker-1" || c.TokenID != n.record.Token.ID() || len(c.Keys) != 1 || !strings.Contains(warning, "has a free slot again and expires at") {
		t.Errorf("got %+v, %q, %v", c, warning, err)
	}
	n.want(t, "worker-2", "worker-2")
	if _, _, err := n.release(t); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("again: got %v, want ErrNotFound", err)
	}
	if _, _, err := n.Release(t.Context(), "Worker/1", false); !errors.As(err, new(*tokens.FieldError)) {
		t.Errorf("invalid name: got %v, want a FieldError", err)
	}
}

// Catches a slot that stays taken without a claim, because kubejoin stopped before it wrote the claim, or somebody deleted it.
func TestReleaseFreesSlotWithoutClaim(t *testing.T) {
	n := twoJoined(t)
	n.unclaim(t)
	if c, _, err := n.Release(t.Context(), "worker-1", true); err != nil || c.TokenID != n.record.Token.ID() {
		t.Errorf("dry run: got %+v, %v", c, err)
	}
	n.want(t, "worker-2", "worker-1 worker-2")
	if c, warning, err := n.release(t); err != nil || c.Node != "worker-1" || c.TokenID != n.record.Token.ID() || !strings.Contains(warning, "has a free slot again") {
		t.Errorf("got %+v, %q, %v", c, warning, err)
	}
	n.want(t, "worker-2", "worker-2")
	if _, _, err := n.Release(t.Context(), "worker-1", true); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("dry run again: got %v, want ErrNotFound", err)
	}
}

// Catches a Past that ends before the certificates of the claim expire, and a second release of a released claim.
func TestReleaseLeavesPast(t *testing.T) {
	for name, test := range map[string]struct {
		duration, longest, lasts time.Duration
	}{
		"no lifetime to wait for":  {},
		"short certificates":       {duration: time.Hour, lasts: time.Hour},
		"no Nodes":                 {longest: 24 * time.Hour, lasts: 24 * time.Hour},
		"no Nodes, short":          {duration: time.Hour, longest: 24 * time.Hour, lasts: 24 * time.Hour},
		"longer than the signer's": {duration: 48 * time.Hour, longest: 24 * time.Hour, lasts: 48 * time.Hour},
	} {
		n := twoJoined(t)
		n.MaxRemainingLifetime = func() time.Duration { return test.longest }
		must.Value(storetest.UpdateClaim(t.Context(), n.claims, "worker-1", func(c *tokens.Claim) error { c.Limits.CertificateDuration = test.duration; return nil }))(t)
		if _, _, err := n.release(t); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n.want(t, "worker-2", "worker-2")
		c, err := n.claims.Get(t.Context(), "worker-1", tokens.Live)
		if kept := err == nil; kept != (test.lasts > 0) {
			t.Fatalf("%s: %+v, %v", name, c, err)
		}
		if least := time.Now().Add(test.lasts); test.lasts > 0 && (!c.Released() || c.Past.CertificateDuration != test.duration || c.Past.Until.Before(least) || c.Past.Until.After(least.Add(72*time.Hour))) {
			t.Errorf("%s: got claim %+v, want it kept until shortly after %s", name, c, least)
		}
		if _, _, err := n.release(t); !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("%s: again: got %v, want ErrNotFound", name, err)
		}
	}
}

// A node whose claim is released can rejoin with its Identity. Catches a release that keeps the Identity, or loses the Past.
func TestReleaseEndsIdentity(t *testing.T) {
	n := twoJoined(t)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	alone := tokens.Claim{Node: "worker-3", Past: tokens.ReleasedClaim{Until: until}, Identity: tokens.Identity{Credentials: []tokens.Credential{{Key: "sha256:" + strings.Repeat("1", 64), Fingerprint: strings.Repeat("a", 64)}}, NotAfter: until}}
	must.Value(storetest.CreateClaim(t.Context(), n.claims, alone))(t)
	if c, warnings, err := n.Release(t.Context(), "worker-3", false); err != nil || c.Node != "worker-3" || len(warnings) > 0 {
		t.Errorf("got %+v, %q, %v", c, warnings, err)
	}
	if c, err := n.claims.Get(t.Context(), "worker-3", tokens.Live); err != nil || !c.Identity.IsZero() || !c.Past.Until.Equal(until) {
		t.Errorf("got %+v, %v, want only the past until %s", c, err, until)
	}
}

// Catches a claim that cannot be released because its token was deleted. Also catches a release that does not free the slot
// on a new token with the same ID.
func TestReleasesClaimOfDeletedOrReplacedToken(t *testing.T) {
	n := twoJoined(t)
	must.OK(t, n.store.Delete(t.Context(), n.record))
	if _, _, err := n.release(t); err != nil {
		t.Error(err)
	}
	n.want(t, "worker-2", "")
	must.Value(n.store.Create(t.Context(), n.record))(t)
	if _, _, err := n.Release(t.Context(), "worker-2", false); err != nil {
		t.Error(err)
	}
	n.want(t, "", "worker-1")
}

// Nobody can join with a token that has malformed limits. Catches a release that changes the names that such a token counts.
func TestReleaseLeavesCountOfMalformedToken(t *testing.T) {
	n := twoJoined(t)
	n.faulty(storetest.Alter(func(r *tokens.Record) { r.Limits.Problem = errors.New("max-nodes:\nmany") }))
	if _, warning, err := n.release(t); err != nil || !strings.Contains(warning, "still counts the name: max-nodes:; many") {
		t.Errorf("got %q, %v", warning, err)
	}
	held, err := n.claims.HeldBy(t.Context(), n.record.Token.ID(), tokens.Live)
	if now, getErr := n.store.Get(t.Context(), n.record.Token.ID(), tokens.Live); err != nil || getErr != nil || len(held) != 1 || len(now.Nodes) != 2 {
		t.Errorf("got %d claims and nodes %v, %v, %v, want one claim and both nodes", len(held), now.Nodes, err, getErr)
	}
}

// deleting calls before for each deletion of a claim. If before returns an error, the deletion fails.
func (n *names) deleting(before func(ctx context.Context, call int, c tokens.Claim) error) {
	calls := 0
	n.faulty(func(c *storetest.Call, do func() error) error {
		if c.Method == "Claims.Delete" {
			calls++
			if err := before(c.Context, calls, c.Claims[0]); err != nil {
				return err
			}
		}
		return do()
	})
}

// Catches a slot that is freed before its claim is released: a machine with the claim could take the slot again, and the
// token would count a name without a claim.
func TestReleaseGivesSlotBackLast(t *testing.T) {
	n := twoJoined(t)
	n.deleting(func(context.Context, int, tokens.Claim) error {
		n.want(t, "worker-1 worker-2", "worker-1 worker-2")
		return nil
	})
	if _, _, err := n.release(t); err != nil {
		t.Error(err)
	}
	n.want(t, "worker-2", "worker-2")
}

// Catches a release that cannot be repeated after a failure.
func TestFailedReleaseIsRepeated(t *testing.T) {
	for name, fail := range map[string]func(*names){
		"claim is not released": func(n *names) {
			n.deleting(func(_ context.Context, call int, _ tokens.Claim) error {
				if call == 1 {
					return errReset
				}
				return nil
			})
		},
		"claim is not read":    func(n *names) { n.failingOnce("Claims.Get") },
		"token is not read":    func(n *names) { n.failingOnce("Store.Get") },
		"token is not written": func(n *names) { n.failingOnce("Store.Update") },
		"without a claim, tokens are not listed": func(n *names) {
			n.unclaim(t)
			n.failingOnce("Store.List")
		},
		"without a claim, token is not written": func(n *names) {
			n.unclaim(t)
			n.failingOnce("Store.Update")
		},
	} {
		n := twoJoined(t)
		fail(n)
		if _, _, err := n.release(t); !errors.Is(err, errReset) {
			t.Errorf("%s: got %v, want %v", name, err, errReset)
		}
		for _, dryRun := range []bool{true, false} {
			if c, _, err := n.Release(t.Context(), "worker-1", dryRun); err != nil || c.TokenID != n.record.Token.ID() {
				t.Errorf("%s: dry run %t: got %+v, %v", name, dryRun, c, err)
			}
		}
		n.want(t, "worker-2", "worker-2")
		if _, _, err := n.release(t); !errors.Is(err, tokens.ErrNotFound) || err.Error() != "there is no claim on node name worker-1" {
			t.Errorf("%s: the third time: got %v, want ErrNotFound", name, err)
		}
	}
}

// While the claim is being released, this test admits a machine with another key. Catches a release that does not re-read
// the changed claim.
func TestReleaseRereadsChangedClaim(t *testing.T) {
	n := twoJoined(t)
	n.deleting(func(ctx context.Context, call int, c tokens.Claim) error {
		if call > 1 {
			return nil
		}
		_, err := storetest.UpdateClaim(ctx, n.claims, c.Node, func(c *tokens.Claim) error { c.Keys = append(c.Keys, "sha256:"+strings.Repeat("1", 64)); return nil })
		return err
	})
	if c, _, err := n.release(t); err != nil || len(c.Keys) != 2 {
		t.Errorf("got %+v, %v", c, err)
	}
	n.want(t, "worker-2", "worker-2")
}

// Another token takes over the name during its release. Catches a slot that is freed although the release has failed.
func TestFailedReleaseFreesNoSlot(t *testing.T) {
	n := twoJoined(t)
	n.deleting(func(ctx context.Context, _ int, c tokens.Claim) error {
		_, err := storetest.UpdateClaim(ctx, n.claims, c.Node, func(c *tokens.Claim) error { c.TokenID = "other1"; return nil })
		return err
	})
	if _, _, err := n.release(t); !errors.Is(err, tokens.ErrReplaced) {
		t.Errorf("got %v, want %v", err, tokens.ErrReplaced)
	}
	n.want(t, "worker-2", "worker-1 worker-2")
}

// Catches an endless loop while others change the claim all the time.
func TestReleaseGivesUpOnChangingClaim(t *testing.T) {
	n := twoJoined(t)
	n.deleting(func(context.Context, int, tokens.Claim) error { return tokens.ErrConflict })
	if _, _, err := n.release(t); err == nil || !strings.Contains(err.Error(), "changed during each of 20 attempts to release it") {
		t.Errorf("got %v", err)
	}
}

// Catches a release that deletes a claim which was created again meanwhile, or that succeeds although the name has a claim.
func TestReleaseKeepsReplacedClaim(t *testing.T) {
	n := twoJoined(t)
	n.deleting(func(ctx context.Context, call int, c tokens.Claim) error {
		err := storetest.DeleteClaim(ctx, n.claims, c)
		n.claim(t, c.Node)
		return err
	})
	if _, _, err := n.release(t); !errors.Is(err, tokens.ErrReplaced) || !strings.Contains(err.Error(), "claim on node name worker-1 was released and created again") {
		t.Errorf("got %v, want ErrReplaced", err)
	}
	n.want(t, "worker-1 worker-2", "worker-1 worker-2")
}

// Catches a release that succeeds although a slow request has claimed the name again.
func TestReleaseReportsNewClaimOfToken(t *testing.T) {
	n := twoJoined(t)
	n.faulty(storetest.After(func() error { n.claim(t, "worker-1"); return nil }, "Claims.Delete"))
	if _, _, err := n.release(t); !errors.Is(err, tokens.ErrReplaced) {
		t.Errorf("got %v, want ErrReplaced", err)
	}
	n.want(t, "worker-1 worker-2", "worker-1 worker-2")
}

// Catches a release that fails because somebody else has just released the same name.
func TestReleasesWhatOthersDelete(t *testing.T) {
	n := twoJoined(t)
	n.deleting(func(ctx context.Context, _ int, c tokens.Claim) error { return storetest.DeleteClaim(ctx, n.claims, c) })
	if _, _, err := n.release(t); err != nil {
		t.Errorf("the claim was deleted: %v", err)
	}
	n.want(t, "worker-2", "worker-2")
	n = twoJoined(t)
	n.faulty(storetest.Before(func() error {
		if r, err := n.store.Get(t.Context(), n.record.Token.ID(), tokens.Live); err == nil {
			return n.store.Delete(t.Context(), r)
		}
		return nil
	}, "Store.Update"))
	if _, _, err := n.release(t); err != nil {
		t.Errorf("the token was deleted: %v", err)
	}
	n.want(t, "worker-2", "")
}

// List may still show a slot that somebody else has freed. Catches a release that reports such a slot as freed.
func TestReleaseOfFreedSlotFindsNothing(t *testing.T) {
	for name, free := range map[string]func(n *names) error{
		"token is deleted": func(n *names) error { return n.store.Delete(t.Context(), n.record) },
		"slot is free": func(n *names) error {
			_, err := n.store.Update(t.Context(), n.record.Token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"worker-2"}; return nil })
			return err
		},
	} {
		n := twoJoined(t)
		n.unclaim(t)
		n.faulty(storetest.After(func() error { return free(n) }, "Store.List"))
		if c, _, err := n.release(t); !errors.Is(err, tokens.ErrNotFound) || err.Error() != "there is no claim on node name worker-1" {
			t.Errorf("%s: got %+v, %v, want ErrNotFound", name, c, err)
		}
	}
}
