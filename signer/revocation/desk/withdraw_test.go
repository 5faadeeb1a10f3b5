package desk_test

import (
	"context"
	"encoding/pem"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
)

// A machine joins again with a new token while the revocation of its node, or of its old token, waits. Catches the
// withdrawal of its new request: the current entry allows its certificate, although the entry that was stored first
// does not.
func TestRevokeWithdrawsNoRequestOfAllowedMachine(t *testing.T) {
	for name, order := range map[string]func(id string) desk.Order{
		"of a node":  func(string) desk.Order { return desk.Order{Node: "worker-1"} },
		"of a token": func(id string) desk.Order { return desk.Order{TokenID: id} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.Requested = func(context.Context) ([]revocation.Certificate, error) { return nil, nil }
				first := s.token(t, tokens.Limits{MaxNodes: 1})
				s.join(t, first, "worker-1")
				var joined atomic.Pointer[revocation.Subject]
				time.AfterFunc(time.Second, func() {
					c := must.Value(s.Claims.Get(t.Context(), "worker-1", tokens.Live))(t)
					after := c.Clone()
					after.TokenID, after.Identity = "zzzzzz", tokens.Identity{}
					must.Value(tokens.CommitClaim(t.Context(), s.Claims, c, after))(t)
					other := newSite(t)
					cert := other.join(t, other.token(t, tokens.Limits{MaxNodes: 1}), "worker-1")
					must.Value(s.Guard.Issue(t.Context(), revocation.Subject{}, cert))(t)
					joined.Store(&revocation.Subject{Node: "worker-1", Fingerprints: []revocation.Fingerprint{revocation.FingerprintOf(cert)}})
				})
				s.Withdraw = func(ctx context.Context, revoked func(revocation.Certificate) bool) error {
					fresh := *joined.Load()
					if e, err := s.Guard.Revoked(ctx, fresh); err != nil || e != nil {
						t.Errorf("the new machine: got %+v, %v, want it allowed", e, err)
					}
					if revoked(revocation.Certificate{Requester: fresh}) {
						t.Error("withdrew a request of the new machine")
					}
					return nil
				}
				must.Value(s.Revoke(t.Context(), order(first.ID())))(t)
			})
		})
	}
}

// A lagging replica stores the certificate of a revoked machine in its claim, and cannot write it because the request
// was withdrawn. Catches a rejoin that checks only that certificate, which is not revoked.
func TestWithdrawnCertificateForgetsNoRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.authority.Nodes.RejoinWindow = 20 * time.Hour
		first := s.join(t, s.token(t, tokens.Limits{MaxNodes: 1}), "worker-1")
		must.OK(t, s.authority.BindKey(t.Context(), first, "sha256:bound"))
		stolen := must.Value(s.renew(t, first, nil))(t)
		var seen, hidden objects
		s.Requested = seen.list
		s.lagging(time.Now().Add(900 * time.Millisecond))
		time.AfterFunc(300*time.Millisecond, func() {
			late := must.Value(s.renew(t, stolen, &hidden))(t)
			time.Sleep(2 * time.Second) // the write gets a conflict
			r := request(t, tokens.Generate(), "worker-1")
			r.User, r.Groups, r.UID = tokens.NodeUserPrefix+"worker-1", []string{tokens.NodesGroup}, "an object"
			r.Extra = map[string][]string{revocation.CredentialIDKey: {revocation.FingerprintOf(stolen).CredentialID()}}
			must.OK(t, s.authority.Undelivered(t.Context(), r, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: late.Raw})))
		})
		must.Value(s.Revoke(t.Context(), desk.Order{Fingerprint: revocation.FingerprintOf(stolen).String()}))(t)
		time.Sleep(2 * time.Second)
		r := request(t, tokens.Generate(), "worker-1")
		r.User, r.Groups, r.Rejoin = tokens.NodeUserPrefix+"worker-1", []string{tokens.NodesGroup}, &approval.Rejoin{Key: "sha256:bound"}
		if _, err := s.authority.Issue(t.Context(), r); approval.Refused(err) == nil || approval.Refused(err).Reason != revocation.Reason {
			t.Errorf("the revoked machine rejoins: got %v, want reason %s", err, revocation.Reason)
		}
	})
}
