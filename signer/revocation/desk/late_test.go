package desk_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/tokens"
)

// lagging hides revocations from the replica of a site until a time, for requests with an object.
func (s *site) lagging(until time.Time) {
	s.authority.Revocations = &revocation.Guard{Store: revocationtest.Before(s.Guard.Store, func(method string, _ revocation.Key) error {
		if method == "Get.recent" && time.Now().Before(until) {
			return revocation.ErrNotFound
		}
		return nil
	})}
}

// objects are the certificates of the cluster's requests.
type objects struct {
	mu  sync.Mutex
	all []revocation.Certificate
}

func (o *objects) list(context.Context) ([]revocation.Certificate, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.all), nil
}

// renew issues a new certificate to a node with a certificate. If objects is not nil, renew adds an object to it.
func (s *site) renew(t *testing.T, cert *x509.Certificate, objects *objects) (*x509.Certificate, error) {
	t.Helper()
	r := request(t, tokens.Generate(), "worker-1")
	r.User, r.Groups = tokens.NodeUserPrefix+"worker-1", []string{tokens.NodesGroup}
	r.Extra = map[string][]string{revocation.CredentialIDKey: {revocation.FingerprintOf(cert).CredentialID()}}
	if objects != nil {
		r.UID = "an object"
	}
	chain, err := s.authority.Issue(t.Context(), r)
	if err != nil {
		return nil, err
	}
	renewed := pemfile.Presented(chain)[0]
	if objects != nil {
		objects.mu.Lock()
		defer objects.mu.Unlock()
		objects.all = append(objects.all, revocation.CertificateOf("", revocation.SubjectOf(r.User, r.Groups, r.Extra), renewed))
	}
	return renewed, nil
}

// A replica lags behind a revocation. Catches a certificate that this replica issues in an object and that stays valid.
// The first run, the second look at a token or a repeated run must revoke it. Over HTTPS the replica must issue none.
func TestRevokeFindsWhatLaggingReplicaIssues(t *testing.T) {
	for name, test := range map[string]struct {
		object bool
		moved  bool // another token has the name; the order is about the first token
		cutOff bool
	}{
		"by an object": {object: true}, "by an object, moved": {object: true, moved: true}, "by an object, again": {object: true, cutOff: true}, "over HTTPS": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				var objects objects
				s.Requested = objects.list
				token := s.token(t, tokens.Limits{MaxNodes: 1})
				stolen := s.join(t, token, "worker-1")
				order := desk.Order{Fingerprint: revocation.FingerprintOf(stolen).String()}
				if test.moved {
					order = desk.Order{TokenID: token.ID()}
					c := must.Value(s.Claims.Get(t.Context(), "worker-1", tokens.Live))(t)
					after := c.Clone()
					after.TokenID, after.Identity = "zzzzzz", tokens.Identity{}
					must.Value(tokens.CommitClaim(t.Context(), s.Claims, c, after))(t)
				}
				s.lagging(time.Now().Add(900 * time.Millisecond))
				time.AfterFunc(300*time.Millisecond, func() {
					if test.object {
						must.Value(s.renew(t, stolen, &objects))(t)
					} else if _, err := s.renew(t, stolen, nil); err == nil {
						t.Error("over HTTPS: got a certificate")
					}
				})
				if test.cutOff {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					if _, err := s.Revoke(ctx, order); !errors.As(err, new(*desk.Incomplete)) {
						t.Errorf("cut off: got %v, want an Incomplete", err)
					}
				}
				must.Value(s.Revoke(t.Context(), order))(t)
				s.wantRevoked(t, stolen, true)
				if all, _ := objects.list(t.Context()); test.object {
					e, err := s.Guard.Revoked(t.Context(), revocation.Subject{Fingerprints: []revocation.Fingerprint{all[0].Fingerprint}})
					if err != nil || e == nil {
						t.Errorf("the certificate of the object: got %+v, %v, want it revoked", e, err)
					}
				}
			})
		})
	}
}

// A custom signer issues a certificate of another name to a node that is revoked. Catches such a certificate that stays
// valid, because the entry of the node cannot bar it.
func TestRevokeNodeFindsCertificateOfAnotherName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		requester := revocation.Subject{Node: "worker-1", Fingerprints: []revocation.Fingerprint{revocationtest.Fingerprint(1)}}
		began := time.Now()
		s.Requested = func(context.Context) ([]revocation.Certificate, error) {
			all := []revocation.Certificate{
				{Requester: requester, Fingerprint: revocationtest.Fingerprint(2), NotAfter: began.Add(time.Hour)}, // before
			}
			if time.Now().After(began) {
				all = append(all, revocation.Certificate{Requester: requester, Fingerprint: revocationtest.Fingerprint(4), NotAfter: began.Add(time.Hour)},
					revocation.Certificate{Requester: requester, Node: "worker-1", Fingerprint: revocationtest.Fingerprint(3), NotAfter: began.Add(time.Hour)}) // the entry of the node bars this one
			}
			return all, nil
		}
		result, err := s.Revoke(t.Context(), desk.Order{Node: "worker-1"})
		if want := revocationtest.Fingerprint(4).String() + " worker-1"; err != nil || keys(result) != want {
			t.Errorf("got %s, %v, want %s", keys(result), err, want)
		}
	})
}

// brokenRecord is a record that fails or takes long.
type brokenRecord struct {
	issuance.Store
	takes time.Duration
	err   error
	used  bool
}

func (r *brokenRecord) Append(ctx context.Context, e issuance.Entry) error {
	time.Sleep(r.takes)
	r.used = true
	if r.err != nil {
		return r.err
	}
	return r.Store.Append(ctx, e)
}

// A machine rejoins while its last certificate is revoked, and the record fails. The claim then has the new
// certificate. Catches a retry that checks only the new certificate.
func TestRejoinWithoutRecordForgetsNoRevocation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.authority.Nodes.RejoinWindow = 20 * time.Hour
		first := s.join(t, s.token(t, tokens.Limits{MaxNodes: 1}), "worker-1")
		must.OK(t, s.authority.BindKey(t.Context(), first, "sha256:bound"))
		last := must.Value(s.renew(t, first, nil))(t)
		r := request(t, tokens.Generate(), "worker-1")
		r.User, r.Groups, r.Rejoin = tokens.NodeUserPrefix+"worker-1", []string{tokens.NodesGroup}, &approval.Rejoin{Key: "sha256:bound"}
		s.authority.Record = &brokenRecord{Store: s.IssuanceRecord, err: errAway}
		reads := 0 // revoke between the last check before the claim is written and the next check
		s.authority.Revocations = &revocation.Guard{Store: revocationtest.Before(s.Guard.Store, func(method string, key revocation.Key) error {
			if reads++; method == "Get.recent" { // the read in Issue
				must.Value(s.Guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(last)}))(t)
			}
			return nil
		})}
		if _, err := s.authority.Issue(t.Context(), r); err == nil {
			t.Fatal("got a certificate without a record")
		}
		s.authority.Record, s.authority.Revocations = s.IssuanceRecord, s.Guard
		if _, err := s.authority.Issue(t.Context(), r); approval.Refused(err) == nil || approval.Refused(err).Reason != revocation.Reason {
			t.Errorf("the retry after %d reads: got %v, want reason %s", reads, err, revocation.Reason)
		}
	})
}

// Catches a certificate that is delivered long after its token was revoked, because signing took long.
func TestSlowSigningDoesNotOutlastRevokedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		token := s.token(t, tokens.Limits{MaxNodes: 1})
		s.authority.Record = &brokenRecord{Store: s.IssuanceRecord, takes: admission.MaxDelivery + 3*time.Second}
		time.AfterFunc(100*time.Millisecond, func() { must.Value(s.Revoke(t.Context(), desk.Order{TokenID: token.ID()}))(t) })
		_, err := s.authority.Issue(t.Context(), request(t, token, "worker-1"))
		if refused := approval.Refused(err); refused == nil || refused.Reason != admission.ReasonTokenRevoked {
			t.Errorf("got %v, want reason %s", err, admission.ReasonTokenRevoked)
		}
	})
}

// Requests of a revoked requester are approved and have no certificate. Catches a request that is not withdrawn, the
// withdrawal of another requester's request, and a failure that hides a certificate or is not reported.
func TestRevokeWithdrawsApprovedRequests(t *testing.T) {
	for name, order := range map[string]func(id string, stolen revocation.Fingerprint) desk.Order{
		"of a token":       func(id string, _ revocation.Fingerprint) desk.Order { return desk.Order{TokenID: id} },
		"of a certificate": func(_ string, f revocation.Fingerprint) desk.Order { return desk.Order{Fingerprint: f.String()} },
		"of a node":        func(string, revocation.Fingerprint) desk.Order { return desk.Order{Node: "worker-1"} },
	} {
		for _, fails := range []error{nil, errAway} {
			t.Run(fmt.Sprintf("%s, error %v", name, fails), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSite(t)
					token := s.token(t, tokens.Limits{MaxNodes: 1})
					stolen := revocation.FingerprintOf(s.join(t, token, "worker-1"))
					order := order(token.ID(), stolen)
					asked := revocation.Certificate{TokenID: order.TokenID}
					if order.TokenID == "" {
						asked.Requester = revocation.Subject{Node: "worker-1", Fingerprints: []revocation.Fingerprint{stolen}}
					}
					late, other := asked, revocation.Certificate{TokenID: "zzzzzz", Requester: revocation.Subject{Node: "worker-2"}}
					late.Fingerprint, late.NotAfter = revocationtest.Fingerprint(2), time.Now().Add(time.Hour)
					began := time.Now()
					s.Requested = func(context.Context) ([]revocation.Certificate, error) {
						if time.Since(began) < time.Second {
							return nil, nil
						}
						return []revocation.Certificate{late}, nil
					}
					withdrawn := false
					s.Withdraw = func(_ context.Context, revoked func(revocation.Certificate) bool) error {
						withdrawn = withdrawn || revoked(asked)
						if revoked(other) {
							t.Error("withdrew a request of somebody else")
						}
						return fails
					}
					result, err := s.Revoke(t.Context(), order)
					if !withdrawn || !strings.Contains(keys(result), late.Fingerprint.String()) {
						t.Errorf("withdrawn: %t; revoked %s, want %s among them", withdrawn, keys(result), late.Fingerprint)
					}
					switch incomplete := errors.As(err, new(*desk.Incomplete)); {
					case order.Node != "" && fails != nil:
						if err != nil || !strings.Contains(strings.Join(result.Warnings, " "), "cannot read or withdraw the certificate requests") {
							t.Errorf("got %v and warnings %q, want a warning", err, result.Warnings)
						}
					case incomplete != (fails != nil), !incomplete && err != nil:
						t.Errorf("got %v, incomplete: %t", err, incomplete)
					}
				})
			})
		}
	}
}

// A machine has renewed many times, each time with its newest certificate, and a first revocation was interrupted.
// Catches a revocation that takes longer than a server waits.
func TestChainOfRenewalsIsRevokedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		const links = 300 // one replica can issue this many certificates in an hour
		began := time.Now()
		s.Requested = func(context.Context) (all []revocation.Certificate, err error) {
			for i := range links {
				on := revocation.Subject{Node: "worker-1", Fingerprints: []revocation.Fingerprint{revocationtest.Fingerprint(i + 1)}}
				all = append(all, revocation.Certificate{Requester: on, Node: "worker-1", Fingerprint: revocationtest.Fingerprint(i + 2), NotAfter: began.Add(time.Hour)})
			}
			return all, nil
		}
		order := desk.Order{Fingerprint: string(revocationtest.Fingerprint(1))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Revoke(ctx, order); !errors.As(err, new(*desk.Incomplete)) {
			t.Errorf("cut off: got %v, want an Incomplete", err)
		}
		interrupted, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, interrupt)
		if _, err := s.Revoke(interrupted, order); err == nil || errors.As(err, new(*tokens.Refusal)) {
			t.Errorf("interrupted: got %v, want no fault of a store", err)
		}
		began = time.Now()
		result := must.Value(s.Revoke(t.Context(), order))(t)
		if took := time.Since(began); len(result.Entries) != links+1 || took > 10*time.Second {
			t.Errorf("%d entries after %s, want %d within 10 s", len(result.Entries), took, links+1)
		}
	})
}

// Without a cluster, there are no request objects. Catches a certificate that is delivered after the revocation of its
// requester has returned, because the last check was before the revocation.
func TestNothingLeavesStandaloneAfterRevokeReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		first := s.join(t, s.token(t, tokens.Limits{MaxNodes: 1}), "worker-1")
		recorded := &brokenRecord{Store: s.IssuanceRecord, takes: time.Millisecond}
		s.authority.Record = recorded
		var once sync.Once
		returned := make(chan time.Time, 1)
		s.authority.Revocations = &revocation.Guard{Store: revocationtest.Before(s.Guard.Store, func(string, revocation.Key) error {
			if !recorded.used {
				return nil
			}
			once.Do(func() {
				go func() {
					must.Value(s.Revoke(t.Context(), desk.Order{Fingerprint: revocation.FingerprintOf(first).String()}))(t)
					returned <- time.Now()
				}()
				synctest.Wait()
			})
			time.Sleep(400 * time.Millisecond) // the response is on its way
			return revocation.ErrNotFound
		})}
		_, err := s.renew(t, first, nil)
		left := time.Now()
		if returned := <-returned; err == nil && left.After(returned) {
			t.Errorf("a certificate left %s after the revocation had returned", left.Sub(returned))
		}
	})
}

// The last check for revocations takes long and reads an old state. Catches a certificate that is delivered over HTTPS
// after the revocation of its requester has returned.
func TestSlowLookIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		first := s.join(t, s.token(t, tokens.Limits{MaxNodes: 1}), "worker-1")
		recorded := &brokenRecord{Store: s.IssuanceRecord, takes: time.Millisecond}
		s.authority.Record = recorded
		var once sync.Once
		s.authority.Revocations = &revocation.Guard{Store: revocationtest.Before(s.Guard.Store, func(string, revocation.Key) (err error) {
			if !recorded.used {
				return nil
			}
			once.Do(func() {
				must.Value(s.Revoke(t.Context(), desk.Order{Fingerprint: revocation.FingerprintOf(first).String()}))(t)
				time.Sleep(2 * time.Second)
				err = revocation.ErrNotFound
			})
			return err
		})}
		if _, err := s.renew(t, first, nil); approval.Refused(err) == nil || approval.Refused(err).Reason != revocation.Reason {
			t.Errorf("got %v, want reason %s", err, revocation.Reason)
		}
	})
}
