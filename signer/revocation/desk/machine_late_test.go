package desk_test

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// Catches a machine that joins with its last token while it is revoked, and whose certificate then stays valid.
func TestRevokesMachineThatJoinsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		old := s.join(t, s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}}), "worker-1")
		t1 := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", t1)
		time.Sleep(5 * time.Second)
		var late *x509.Certificate
		works := s.Claims
		s.Claims = storetest.Before(func() error {
			if late == nil {
				late = s.join(t, t1, "worker-1")
			}
			return nil
		}, "Claims.Update").Claims(works)
		r, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"})
		if err != nil || late == nil {
			t.Fatalf("got %+v, %v, joined meanwhile: %t", r, err, late != nil)
		}
		s.wantRevoked(t, old, true)
		s.wantBarred(t, "worker-1", true)
		s.wantRevoked(t, late, true)
	})
}

// Catches a key that stays allowed because its machine has got another token since.
func TestRevokeEarlierTokenBarsMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		t1 := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", t1)
		s.join(t, t1, "worker-1")
		t2 := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", t2) // proved again, has not joined again
		must.Value(s.Revoke(t.Context(), desk.Order{TokenID: t1.ID()}))(t)
		s.wantBarred(t, "worker-1", true)
	})
}

// Catches a certificate of a machine's token that a replica delivers late, on what it had read before the key was barred.
func TestRevokesLateCertificateOfBarredMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", token)
		time.Sleep(5 * time.Second)
		bar := func(revoked bool) {
			must.Value(storetest.UpdateClaim(t.Context(), s.db.Claims(), "worker-1", func(c *tokens.Claim) error { c.Machine.Revoked = revoked; return nil }))(t)
		}
		var late *x509.Certificate
		time.AfterFunc(3*time.Second, func() {
			s.wantBarred(t, "worker-1", true)
			bar(false) // for this replica
			late = s.join(t, token, "worker-1")
			bar(true)
		})
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
		if late == nil {
			t.Fatal("the revocation ended before the replica had delivered the certificate")
		}
		s.wantRevoked(t, late, true)
	})
}

// Catches a certificate that stays valid because the first try barred the key, and only the second one reported success.
func TestRepeatedRevokeFindsLateCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", token)
		time.Sleep(5 * time.Second)
		bar := func(revoked bool) {
			must.Value(storetest.UpdateClaim(t.Context(), s.db.Claims(), "worker-1", func(c *tokens.Claim) error { c.Machine.Revoked = revoked; return nil }))(t)
		}
		var late *x509.Certificate
		time.AfterFunc(3*time.Second, func() {
			s.wantBarred(t, "worker-1", true)
			bar(false) // for this replica
			late = s.join(t, token, "worker-1")
			bar(true)
		})
		works := s.Claims
		lost := false
		s.Claims = storetest.Faulty(func(c *storetest.Call, do func() error) error {
			err := do()
			if c.Method == "Claims.Update" && !lost {
				lost = true
				return errors.New("lost response")
			}
			return err
		}).Claims(works)
		if _, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"}); err == nil || !lost {
			t.Fatalf("got %v, want an error for the lost response", err)
		}
		s.Claims = works
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
		if late == nil {
			t.Fatal("the other replica has issued nothing")
		}
		s.wantRevoked(t, late, true)
	})
}

// full is a full list of revocations.
type full struct{ revocation.Store }

func (full) Update(context.Context, revocation.Key, func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	return nil, revocation.ErrFull
}

// Catches a key that stays barred although its node is not revoked.
func TestUndoAllowsKeyAfterFailedRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", token)
		works := s.Guard.Store
		s.Guard.Store = full{works}
		if _, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"}); err == nil {
			t.Error("revoked in a full list")
		}
		s.Guard.Store = works
		key := must.Value(revocation.NodeKey("worker-1"))(t)
		must.Value(s.Undo(t.Context(), key, false))(t)
		s.wantBarred(t, "worker-1", false)
		if _, err := s.Undo(t.Context(), key, false); err == nil {
			t.Error("undone twice")
		}
	})
}
