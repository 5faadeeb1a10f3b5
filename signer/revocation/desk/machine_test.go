package desk_test

import (
	"context"
	"crypto/x509"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// machine stores a machine that got a token, in the claim of a node name.
func (s *site) machine(t *testing.T, node string, token tokens.Token) {
	t.Helper()
	m := tokens.Machine{Key: "lusab-babad-gutih-tugad", TokenID: token.ID(), TokenUID: must.Value(s.db.Get(t.Context(), token.ID(), tokens.Live))(t).UID}
	c, err := s.db.Claims().Get(t.Context(), node, tokens.Live)
	if errors.Is(err, tokens.ErrNotFound) {
		c, err = tokens.Claim{Node: node}, nil
	}
	must.OK(t, err)
	after := c.Clone()
	after.Machine = m
	must.Value(tokens.CommitClaim(t.Context(), s.db.Claims(), c, after))(t)
}

// wantBarred fails the test unless the key of a node's machine is barred as wanted.
func (s *site) wantBarred(t *testing.T, node string, want bool) {
	t.Helper()
	if c, err := s.db.Claims().Get(t.Context(), node, tokens.Live); err != nil || c.Machine.IsZero() || c.Machine.Revoked != want {
		t.Errorf("machine of %s: got %+v, %v, want it barred: %t", node, c.Machine, err, want)
	}
}

// Catches a revoked node whose machine gets a new token, and an undo or a dry run that leaves the wrong state.
func TestRevokeNodeBarsKeyOfMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		key := must.Value(revocation.NodeKey("worker-1"))(t)
		s.machine(t, "worker-1", s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}}))
		for _, step := range []struct {
			dryRun, undo, want bool
		}{{true, false, false}, {false, false, true}, {false, false, true}, {true, true, true}, {false, true, false}} {
			var err error
			if step.undo {
				_, err = s.Undo(t.Context(), key, step.dryRun)
			} else {
				_, err = s.Revoke(t.Context(), desk.Order{Node: "worker-1", DryRun: step.dryRun})
			}
			must.OK(t, err)
			s.wantBarred(t, "worker-1", step.want)
		}
		s.Claims = nil
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
		s.wantBarred(t, "worker-1", false)
		s.Claims = storetest.Fail(errAway).Claims(s.db.Claims())
		must.Value(s.Revoke(t.Context(), desk.Order{Fingerprint: revocationtest.Fingerprint(1).String()}))(t) // of no node
		s.Claims = storetest.Before(func() error {
			return storetest.DeleteClaim(t.Context(), s.db.Claims(), must.Value(s.db.Claims().Get(t.Context(), "worker-1", tokens.Live))(t))
		}, "Claims.Update").Claims(s.db.Claims())
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t) // the machine is deleted meanwhile
	})
}

// Catches a key that stays allowed because a call failed or the claim changed. A revocation or an undo that has changed only the entry
// or only the key can be repeated.
func TestRevokeOfMachineIsRepeated(t *testing.T) {
	for name, test := range map[string]struct {
		fault  storetest.Faulty
		failed bool
	}{
		"no claims":     {storetest.Fail(errAway, "Claims.Get"), true},
		"no write":      {storetest.Fail(errAway, "Claims.Update"), true},
		"lost response": {storetest.After(func() error { return errAway }, "Claims.Update"), true},
		"conflicts":     {storetest.Fail(tokens.ErrConflict, "Claims.Update"), true},
		"changes":       {nil, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			key := must.Value(revocation.NodeKey("worker-1"))(t)
			token := s.token(t, tokens.Limits{MaxNodes: 1})
			cert := s.join(t, token, "worker-1")
			s.machine(t, "worker-1", token)
			works, faulty, changed := s.Claims, test.fault, false
			if !test.failed {
				faulty = storetest.Before(func() (err error) {
					if !changed {
						changed = true
						_, err = storetest.UpdateClaim(t.Context(), works, "worker-1", func(c *tokens.Claim) error { c.NodeUID = "u"; return nil })
					}
					return err
				}, "Claims.Update")
			}
			s.Claims = faulty.Claims(works)
			_, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"})
			if errors.As(err, new(*desk.Incomplete)) != test.failed || (err != nil) != test.failed || test.failed && !strings.Contains(err.Error(), "the key of the machine; revoke again") {
				t.Errorf("%s: got %v, want it incomplete: %t", name, err, test.failed)
			}
			s.wantRevoked(t, cert, true)
			s.Claims = works
			must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
			s.wantBarred(t, "worker-1", true)

			changed, s.Claims = false, faulty.Claims(works)
			if _, err := s.Undo(t.Context(), key, false); (err != nil) != test.failed || err != nil && !errors.As(err, new(*tokens.Refusal)) {
				t.Errorf("%s: undo: got %v, want it refused: %t", name, err, test.failed)
			}
			s.Claims = works
			if _, err := s.Undo(t.Context(), key, false); (err == nil) != test.failed {
				t.Errorf("%s: repeated undo: got %v, want it undone once", name, err)
			}
			s.wantBarred(t, "worker-1", false)
			s.wantRevoked(t, cert, false)
		})
	}
}

// Catches a machine that gets a new token after its token was revoked, and a machine barred because of another token.
func TestRevokeTokenBarsItsMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		rack, own := s.token(t, tokens.Limits{MaxNodes: 5}), s.token(t, tokens.Limits{MaxNodes: 5})
		s.join(t, rack, "worker-1")
		s.join(t, own, "worker-2")
		s.machine(t, "worker-1", own)
		s.machine(t, "worker-2", own)
		must.Value(s.Revoke(t.Context(), desk.Order{TokenID: rack.ID()}))(t)
		s.wantBarred(t, "worker-1", false)
		must.Value(s.Revoke(t.Context(), desk.Order{TokenID: own.ID()}))(t)
		s.wantBarred(t, "worker-2", true)
	})
}

// Catches a warning about the token of a barred machine, or a refused release because of it: this token admits no machine.
func TestRevokedMachineHasNoWorkingToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.token(t, tokens.Limits{}) // may have admitted a node of which nothing is known
		barred := "this revokes the key of the machine, too; to give the name to another machine: kubejoin machine delete "
		for node, join := range map[string]bool{"worker-1": true, "worker-2": false} {
			token := s.token(t, tokens.Limits{MaxNodes: 1})
			if join {
				s.join(t, token, node)
			}
			s.machine(t, node, token)
			for _, dryRun := range []bool{true, false} {
				result, err := s.Revoke(t.Context(), desk.Order{Node: node, DryRun: dryRun})
				if err != nil || strings.Join(result.Warnings, "|") != barred+node {
					t.Errorf("%s: got warnings %q, %v, want only that of the key", node, result.Warnings, err)
				}
			}
			if err := s.CheckRelease(t.Context(), node); err != nil {
				t.Errorf("release of %s: got %v, want it allowed", node, err)
			}
		}
	})
}

// Catches a valid certificate of a machine that joins with its last token during its revocation.
func TestRevokesMachineThatJoinsMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		old := s.join(t, s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}}), "worker-1")
		t1 := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", t1)

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

// joinLate lets a machine join in 3 s, on a replica that has read its claim before the key was barred. late returns the certificate.
func (s *site) joinLate(t *testing.T, node string) (late func() *x509.Certificate) {
	t.Helper()
	token := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{node}})
	s.machine(t, node, token)

	bar := func(revoked bool) {
		must.Value(storetest.UpdateClaim(t.Context(), s.db.Claims(), node, func(c *tokens.Claim) error { c.Machine.Revoked = revoked; return nil }))(t)
	}
	var certificate *x509.Certificate
	time.AfterFunc(3*time.Second, func() {
		s.wantBarred(t, node, true)
		bar(false) // for this replica
		certificate = s.join(t, token, node)
		bar(true)
	})
	return func() *x509.Certificate {
		if certificate == nil {
			t.Fatal("the revocation ended before the replica had delivered the certificate")
		}
		return certificate
	}
}

// Catches a late certificate for a machine's token, from a replica that read the claim before the key was barred.
func TestRevokesLateCertificateOfBarredMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		late := s.joinLate(t, "worker-1")
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
		s.wantRevoked(t, late(), true)
	})
}

// Catches a revocation that reports success although the late certificate stays valid.
func TestReportsLateCertificateThatIsNotRevoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		late := s.joinLate(t, "worker-1")
		s.Guard.Store = full{s.Guard.Store, time.Now().Add(3500 * time.Millisecond)}
		r, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"})
		if incomplete := (*desk.Incomplete)(nil); !errors.As(err, &incomplete) {
			t.Errorf("got %+v, %v, want an incomplete revocation", r, err)
		}
		s.wantRevoked(t, late(), false)
	})
}

// Catches a certificate that stays valid if the first try barred the key but failed, and the second try succeeded.
func TestRepeatedRevokeFindsLateCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		late := s.joinLate(t, "worker-1")
		works := s.Guard.Store
		s.Guard.Store = full{works, time.Time{}}
		if _, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"}); err == nil {
			t.Fatal("revoked in a full list")
		}
		s.wantBarred(t, "worker-1", true)
		s.Guard.Store = works
		must.Value(s.Revoke(t.Context(), desk.Order{Node: "worker-1"}))(t)
		s.wantRevoked(t, late(), true)
	})
}

// full is a list of revocations that is full from a time on.
type full struct {
	revocation.Store
	from time.Time
}

func (f full) Update(ctx context.Context, key revocation.Key, change func(*revocation.Entry) (*revocation.Entry, error)) (*revocation.Entry, error) {
	if time.Now().Before(f.from) {
		return f.Store.Update(ctx, key, change)
	}
	return nil, revocation.ErrFull
}

// Catches a key that stays barred although its node is not revoked.
func TestUndoAllowsKeyAfterFailedRevoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-1"}})
		s.machine(t, "worker-1", token)
		works := s.Guard.Store
		s.Guard.Store = full{works, time.Time{}}
		if _, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"}); err == nil {
			t.Error("revoked in a full list")
		}
		s.Guard.Store = works
		key := must.Value(revocation.NodeKey("worker-1"))(t)
		claims := s.Claims
		s.Claims = storetest.Fail(errAway).Claims(claims)
		refusal := (*tokens.Refusal)(nil)
		if _, err := s.Undo(t.Context(), key, false); !errors.As(err, &refusal) || refusal.Reason == desk.NotRevoked {
			t.Errorf("claims unreadable: got %v, want another reason than %s", err, desk.NotRevoked)
		}
		s.Claims = claims
		must.Value(s.Undo(t.Context(), key, true))(t)
		s.wantBarred(t, "worker-1", true)
		must.Value(s.Undo(t.Context(), key, false))(t)
		s.wantBarred(t, "worker-1", false)
		if _, err := s.Undo(t.Context(), key, false); !errors.As(err, &refusal) || refusal.Reason != desk.NotRevoked {
			t.Errorf("undone twice: got %v, want %s", err, desk.NotRevoked)
		}
		s.Claims = storetest.Fail(errAway).Claims(claims)
		if _, err := s.Undo(t.Context(), revocationtest.Fingerprint(1).Key(), false); !errors.As(err, &refusal) || refusal.Reason != desk.NotRevoked {
			t.Errorf("a certificate: got %v, want %s", err, desk.NotRevoked)
		}
	})
}
