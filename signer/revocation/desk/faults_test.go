package desk_test

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// failsOnce makes one call of a Revoker fail.
type failsOnce struct {
	left   int // calls up to the failed one; 0 or less: no call fails
	method string
}

func (f *failsOnce) call(method string) error {
	if f.left--; f.left == 0 {
		f.method = method
		return errAway
	}
	return nil
}

// in makes f count all calls of a Revoker.
func (f *failsOnce) in(d *desk.Revoker) {
	faulty := storetest.Faulty(func(c *storetest.Call, do func() error) error {
		if err := f.call(c.Method); err != nil {
			return err
		}
		return do()
	})
	d.Tokens, d.Claims = faulty.Store(d.Tokens), faulty.Claims(d.Claims)
	before := revocationtest.Before(d.Guard.Store, func(method string, _ revocation.Key) error { return f.call("Guard." + method) })
	d.Guard.Store, d.IssuanceRecord, d.ClusterInfo = before, faultyRecord{d.IssuanceRecord, f}, faultyConfig{d.ClusterInfo.(config), f}
	requested, clientCAs, node := d.Requested, d.ClientCAs, d.Node
	d.Requested = func(ctx context.Context) ([]revocation.Certificate, error) {
		all, err := requested(ctx)
		return all, cmp.Or(f.call("Requested"), err)
	}
	d.ClientCAs = func(ctx context.Context) ([]*x509.Certificate, error) {
		all, err := clientCAs(ctx)
		return all, cmp.Or(f.call("ClientCAs"), err)
	}
	if node != nil {
		d.Node = func(ctx context.Context, name string) (tokens.NodeRef, error) {
			ref, err := node(ctx, name)
			return ref, cmp.Or(f.call("Node"), err)
		}
	}
}

type faultyRecord struct {
	issuance.Store
	f *failsOnce
}

func (r faultyRecord) Get(ctx context.Context, serial string) (issuance.Entry, error) {
	e, err := r.Store.Get(ctx, serial)
	return e, cmp.Or(r.f.call("Record.Get"), err)
}

func (r faultyRecord) List(ctx context.Context, q issuance.Query) (issuance.Page, error) {
	page, err := r.Store.List(ctx, q)
	return page, cmp.Or(r.f.call("Record.List"), err)
}

type faultyConfig struct {
	config
	f *failsOnce
}

func (c faultyConfig) Config(ctx context.Context) ([]byte, error) {
	kubeconfig, err := c.config.Config(ctx)
	return kubeconfig, cmp.Or(c.f.call("Config"), err)
}

// Catches a failed call that looks like a complete revocation, and a failed call whose state a repeated call cannot
// complete.
func TestRevokeReportsEachFailedCall(t *testing.T) {
	for name, test := range map[string]struct {
		ends  string // methods that only determine when the revocation ends
		hints string // methods that only determine whether to warn
		set   func(*testing.T, *site, tokens.Token)
		of    func(token tokens.Token, serial string) desk.Order
	}{
		"token": {ends: "Config ClientCAs", of: func(token tokens.Token, _ string) desk.Order { return desk.Order{TokenID: token.ID()} }},
		"deleted token": {ends: "Config ClientCAs", set: func(t *testing.T, s *site, token tokens.Token) {
			r, err := s.db.Get(t.Context(), token.ID(), tokens.Live)
			must.OK(t, cmp.Or(err, s.db.Delete(t.Context(), r)))
		}, of: func(token tokens.Token, _ string) desk.Order { return desk.Order{TokenID: token.ID()} }},
		"node": {ends: "Config ClientCAs Requested Record.List", hints: "Claims.Get Record.List Store.List Store.Get.live", of: func(tokens.Token, string) desk.Order {
			return desk.Order{Node: "worker-1"}
		}},
		"node of a cluster": {ends: "Config ClientCAs Requested Record.List", hints: "Node Claims.Get Store.List Store.Get.live", set: func(_ *testing.T, s *site, _ tokens.Token) {
			s.Node = func(context.Context, string) (tokens.NodeRef, error) { return tokens.NodeRef{}, nil }
		}, of: func(tokens.Token, string) desk.Order { return desk.Order{Node: "worker-1"} }},
		"serial": {ends: "Config ClientCAs Requested Record.List", of: func(_ tokens.Token, serial string) desk.Order { return desk.Order{Serial: serial} }},
		"serial of a request": {ends: "Config ClientCAs Requested Record.List", set: func(_ *testing.T, s *site, _ tokens.Token) { s.IssuanceRecord = rowrecord.New(memdb.Open().Issued()) },
			of: func(_ tokens.Token, serial string) desk.Order { return desk.Order{Serial: serial} }},
	} {
		for n, more := 1, true; more; n++ {
			synctest.Test(t, func(t *testing.T) {
				s, fault := newSite(t), &failsOnce{}
				token := s.token(t, tokens.Limits{MaxNodes: 5})
				certs := []*x509.Certificate{s.join(t, token, "worker-1"), s.join(t, token, "worker-2")}
				s.machine(t, "worker-1", token)
				seen := revocation.CertificateOf(token.ID(), revocation.Subject{}, certs[0])
				s.Requested = func(context.Context) ([]revocation.Certificate, error) { return []revocation.Certificate{seen}, nil }
				s.ClientCAs = func(context.Context) ([]*x509.Certificate, error) { return []*x509.Certificate{s.ca}, nil }
				if test.set != nil {
					test.set(t, s, token)
				}
				fault.in(s.Revoker)
				fault.left = n
				r := test.of(token, seen.Serial)
				result, err := s.Revoke(t.Context(), r)
				more, fault.left = fault.left <= 0, 0
				result.Warnings = slices.DeleteFunc(result.Warnings, func(w string) bool { // TestRevokeNodeWarns has these
					return strings.HasPrefix(w, "this revokes the key of the machine") || strings.Contains(w, "which tokens admitted")
				})
				ends, hints := strings.Contains(test.ends, fault.method), strings.Contains(test.hints, fault.method)
				unlooked := slices.ContainsFunc(result.Warnings, func(w string) bool { return strings.Contains(w, "of another name") })
				switch {
				case err == nil && unlooked && r.Node != "" && strings.Contains("Guard.List.live Requested", fault.method):
				case !more:
					if err != nil || len(result.Warnings) > 0 || n < 6 {
						t.Errorf("%s: got %+v, %v after %d calls, want success after 5 or more", name, result, err, n-1)
					}
				case err != nil && !errors.Is(err, errAway), err == nil && !ends && !hints,
					err == nil && result.EndUnknown == nil && (!hints || len(result.Warnings) > 0),
					result.EndUnknown != nil && (!ends || !errors.Is(result.EndUnknown, errAway) || !slices.Contains(result.Warnings, desk.NoEnd)):
					t.Errorf("%s: call %d, %s, fails: got %+v, %v, want %v", name, n, fault.method, result, err, errAway)
				}
				want := 1
				if r.TokenID != "" {
					want = len(certs)
				}
				if result, err = s.Revoke(t.Context(), r); err != nil || len(result.Entries) != want {
					t.Errorf("%s: repeat after failed call %d, %s: got %+v, %v, want %d entries", name, n, fault.method, result, err, want)
				}
				s.wantRevoked(t, certs[0], true)
				s.wantRevoked(t, certs[1], r.TokenID != "")
				s.wantToken(t, token, r.TokenID == "")
				s.wantBarred(t, "worker-1", r.Node != "" || r.TokenID != "")
			})
		}
	}
}
