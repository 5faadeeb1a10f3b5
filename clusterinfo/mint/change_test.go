package mint_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

// ownsUpload changes a record to a token that only decides when an upload of certificates expires.
func ownsUpload(r *tokens.Record) {
	r.Description, r.Signing, r.Authentication, r.Groups = tokens.UploadDescription, false, false, nil
}

// stored returns a store with a changed record.
func stored(t *testing.T, change func(*tokens.Record)) (tokens.Store, tokens.Record) {
	t.Helper()
	store, r := memdb.Open(), newRecord(2*time.Hour)
	if change != nil {
		change(&r)
	}
	r = must.Value(store.Create(t.Context(), r))(t)
	return store, r
}

func TestRenew(t *testing.T) {
	now := time.Now().UTC().Truncate(time.Second)
	in := func(hours time.Duration) time.Time { return now.Add(hours * time.Hour) }
	for _, test := range []struct {
		name    string
		record  func(*tokens.Record)
		altered func(*tokens.Record) // changes the record that the store returns
		renewal mint.Renewal
		reason  string
		message string
	}{
		{name: "longer", renewal: mint.Renewal{Expires: in(48)}},
		{name: "never expires", renewal: mint.Renewal{}},
		{name: "still never expires", record: func(r *tokens.Record) { r.Expires = time.Time{} }, renewal: mint.Renewal{}},
		{name: "expired", record: func(r *tokens.Record) { r.Expires = in(-1) }, renewal: mint.Renewal{Expires: in(1)}},
		{name: "shorter", renewal: mint.Renewal{Expires: in(1)}, reason: mint.WouldShorten, message: "would make it expire sooner, at"},
		{name: "shorter on purpose", renewal: mint.Renewal{Expires: in(1), Shorten: true}},
		{
			name: "shorter than never", record: func(r *tokens.Record) { r.Expires = time.Time{} }, renewal: mint.Renewal{Expires: in(87000)},
			reason: mint.WouldShorten, message: "never expires, and this renewal would make it expire at",
		},
		{
			name: "spent", renewal: mint.Renewal{Expires: in(48)}, reason: mint.Spent,
			record: func(r *tokens.Record) {
				r.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"worker-*"}, Role: tokens.RoleControlPlane, Rejoin: tokens.RejoinDeny, CertificateDuration: 48 * time.Hour}
				r.Nodes = []string{"worker-3"}
			},
			message: "is spent (used by worker-3), so renewing it has no effect; create another token with: kubejoin token create --max-nodes 1 --node-name 'worker-*' --role control-plane --rejoin deny --certificate-duration 48h0m0s",
		},
		{
			name: "spent on a Node", renewal: mint.Renewal{Expires: in(48)}, reason: mint.Spent,
			record: func(r *tokens.Record) {
				r.Limits, r.Nodes = tokens.Limits{Replaces: tokens.NodeRef{Name: "worker-3", UID: "u"}, Node: tokens.NodeProperties{Labels: "a=,b=c", Taints: "d:NoSchedule", ReadyAfter: "labels"}}, []string{"worker-3"}
			},
			message: "kubejoin token create --replace-node worker-3 --node-label a=,b=c --node-taint d:NoSchedule --node-ready-after labels",
		},
		{
			name: "malformed limits", altered: func(r *tokens.Record) { r.Limits.Problem = errors.New("max-nodes: many") },
			renewal: mint.Renewal{Expires: in(48)}, reason: mint.Invalid, message: "is malformed, and renewing it does not help: max-nodes: many",
		},
		{
			name: "malformed token", altered: func(r *tokens.Record) { r.Problem = errors.New("token-secret is missing") },
			renewal: mint.Renewal{Expires: in(48)}, reason: mint.Invalid, message: "is malformed, and renewing it does not help: token-secret is missing",
		},
		// A later expiration would keep the certificate key valid.
		{name: "upload", record: ownsUpload, renewal: mint.Renewal{Expires: in(8000)}, reason: mint.OwnsUpload, message: "kubejoin certs upload"},
		{name: "upload, never expires", record: ownsUpload, renewal: mint.Renewal{}, reason: mint.OwnsUpload},
		{name: "upload, shorter", record: ownsUpload, renewal: mint.Renewal{Expires: in(1), Shorten: true}, reason: mint.OwnsUpload},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, before := stored(t, test.record)
			m := &mint.Minter{Tokens: store}
			if test.altered != nil {
				m.Tokens = storetest.Faulty(func(c *storetest.Call, do func() error) error {
					if c.Method == "Store.Update.change" {
						test.altered(&c.Records[0])
						return do()
					}
					err := do()
					if c.Method == "Store.Get" {
						test.altered(&c.Records[0])
					}
					return err
				}).Store(store)
			}
			for _, dryRun := range []bool{true, false} {
				test.renewal.DryRun = dryRun
				renewed, err := m.Renew(t.Context(), before.Token.ID(), test.renewal)
				if reason(t, err) != test.reason || err != nil && !strings.Contains(err.Error(), test.message) {
					t.Fatalf("dry run %t: got %v, want %q", dryRun, err, test.reason)
				}
				if err == nil && !renewed.Expires.Equal(test.renewal.Expires) {
					t.Errorf("dry run %t: got %s, want %s", dryRun, renewed.Expires, test.renewal.Expires)
				}
				want := before.Expires
				if err == nil && !dryRun {
					want = test.renewal.Expires
				}
				if now, err := store.Get(t.Context(), before.Token.ID(), tokens.Live); err != nil || !now.Expires.Equal(want) {
					t.Errorf("dry run %t: the stored token expires at %s, %v, want %s", dryRun, now.Expires, err, want)
				}
			}
		})
	}
}

func TestDelete(t *testing.T) {
	expired := func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Minute) }
	for _, test := range []struct {
		name     string
		record   func(*tokens.Record)
		deletion mint.Deletion
		reason   string
		left     bool
	}{
		{name: "deleted"},
		{name: "dry run", deletion: mint.Deletion{DryRun: true}, left: true},
		{name: "not expired", deletion: mint.Deletion{OnlyExpired: true}, reason: mint.NotExpired, left: true},
		{name: "expired", record: expired, deletion: mint.Deletion{OnlyExpired: true}},
		// Machines are about to download the certificates, which would be deleted with the token.
		{name: "upload", record: ownsUpload, reason: mint.OwnsUpload, left: true},
		{name: "dry run of an upload", record: ownsUpload, deletion: mint.Deletion{DryRun: true}, reason: mint.OwnsUpload, left: true},
		{name: "expired upload", record: func(r *tokens.Record) { ownsUpload(r); expired(r) }},
		{name: "description of an upload", record: func(r *tokens.Record) { r.Description = tokens.UploadDescription }},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, r := stored(t, test.record)
			was, err := (&mint.Minter{Tokens: store}).Delete(t.Context(), r.Token.ID(), test.deletion)
			if reason(t, err) != test.reason || was.UID != r.UID {
				t.Errorf("got %v, %v, want reason %q", was.Token, err, test.reason)
			}
			if _, err := store.Get(t.Context(), r.Token.ID(), tokens.Live); errors.Is(err, tokens.ErrNotFound) == test.left {
				t.Errorf("got %v, want the token left: %t", err, test.left)
			}
		})
	}
}

// Catches a deletion that fails because the token changed, and a deletion of a token that was created again or, with
// OnlyExpired, renewed.
func TestDeleteRereadsChangedToken(t *testing.T) {
	joins := func(ctx context.Context, s tokens.Store, r tokens.Record) error {
		_, err := s.Update(ctx, r.Token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"a"}; return nil })
		return err
	}
	for _, test := range []struct {
		name     string
		deletion mint.Deletion
		expires  time.Duration
		then     func(context.Context, tokens.Store, tokens.Record) error
		down     bool // reads fail afterwards
		reason   string
		left     int
	}{
		{name: "a node joins", expires: time.Hour, then: joins},
		{name: "renewed", deletion: mint.Deletion{OnlyExpired: true}, expires: -time.Minute, reason: mint.NotExpired, left: 1, then: func(ctx context.Context, s tokens.Store, r tokens.Record) error {
			_, err := s.Update(ctx, r.Token.ID(), func(r *tokens.Record) error { r.Expires = time.Now().Add(time.Hour); return nil })
			return err
		}},
		{name: "another one", expires: time.Hour, reason: mint.Replaced, left: 1, then: func(ctx context.Context, s tokens.Store, r tokens.Record) error {
			err := s.Delete(ctx, r)
			if err == nil {
				_, err = s.Create(ctx, r)
			}
			return err
		}},
		{name: "a node joins, and the store is down", expires: time.Hour, then: joins, down: true, reason: mint.Unavailable, left: 1},
		{name: "deleted", expires: time.Hour, then: func(ctx context.Context, s tokens.Store, r tokens.Record) error { return s.Delete(ctx, r) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			store, r := stored(t, func(r *tokens.Record) { r.Limits.MaxNodes, r.Expires = 3, time.Now().Add(test.expires) })
			happened := false
			happen := sync.OnceValue(func() error { happened = true; return test.then(t.Context(), store, r) })
			m := &mint.Minter{Tokens: storetest.Faulty(func(c *storetest.Call, do func() error) error {
				if c.Method == "Store.Delete" {
					if err := happen(); err != nil {
						return err
					}
				} else if happened && test.down {
					return errReset
				}
				return do()
			}).Store(store)}
			_, err := m.Delete(t.Context(), r.Token.ID(), test.deletion)
			all, listErr := store.List(t.Context())
			if reason(t, err) != test.reason || listErr != nil || len(all) != test.left {
				t.Errorf("got %v with %d tokens left (%v), want reason %q and %d left", err, len(all), listErr, test.reason, test.left)
			}
		})
	}
}

// Catches a missing token that is reported as a failure of the store, and a failure as a missing token.
func TestMissingTokenAndFailedStore(t *testing.T) {
	store, r := stored(t, nil)
	for call, f := range map[string]func(*mint.Minter, string) error{
		"Get":   func(m *mint.Minter, id string) error { _, err := m.Get(t.Context(), id); return err },
		"Renew": func(m *mint.Minter, id string) error { _, err := m.Renew(t.Context(), id, mint.Renewal{}); return err },
		"dry run of Renew": func(m *mint.Minter, id string) error {
			_, err := m.Renew(t.Context(), id, mint.Renewal{DryRun: true})
			return err
		},
		"Delete": func(m *mint.Minter, id string) error {
			_, err := m.Delete(t.Context(), id, mint.Deletion{})
			return err
		},
	} {
		if got := reason(t, f(&mint.Minter{Tokens: store}, "nonono")); got != mint.NoToken {
			t.Errorf("%s: got %q, want %q", call, got, mint.NoToken)
		}
		if got := reason(t, f(&mint.Minter{Tokens: storetest.Fail(errReset).Store(store)}, r.Token.ID())); got != mint.Unavailable {
			t.Errorf("%s: got %q, want %q", call, got, mint.Unavailable)
		}
	}
	m := &mint.Minter{Tokens: storetest.Fail(errReset, "Store.Delete").Store(store)}
	if _, err := m.Delete(t.Context(), r.Token.ID(), mint.Deletion{}); reason(t, err) != mint.Unavailable || !errors.Is(err, errReset) {
		t.Errorf("failed deletion: got %v, want %q and %v", err, mint.Unavailable, errReset)
	}
	m = &mint.Minter{Tokens: storetest.Fail(tokens.ErrConflict, "Store.Delete").Store(store)}
	if _, err := m.Delete(t.Context(), r.Token.ID(), mint.Deletion{}); reason(t, err) != mint.Unavailable {
		t.Errorf("others change the token all the time: got %v, want %q", err, mint.Unavailable)
	}
}
