package mint_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var errReset = errors.New("connection reset")

// failing returns the store with calls that fail before or after they take effect. before and after return the error of
// call n, or nil.
func (s *site) failing(before, after func(n int) error) tokens.Store {
	calls := 0
	return storetest.Faulty(func(_ *storetest.Call, do func() error) error {
		n := calls
		calls++
		if before != nil {
			if err := before(n); err != nil {
				return err
			}
		}
		err := do()
		if err == nil && after != nil {
			err = after(n)
		}
		return err
	}).Store(s.store)
}

func always(int) error { return errReset }

func first(fail int) func(int) error { return firstWith(fail, errReset) }

func firstWith(fail int, err error) func(int) error {
	return func(n int) error {
		if n < fail {
			return err
		}
		return nil
	}
}

func onlyAt(call int, err error) func(int) error {
	return func(n int) error {
		if n == call {
			return err
		}
		return nil
	}
}

var forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "x", nil)

// Catches a failed call that leaves a token in the store without naming it.
func TestJoinLeavesNoUnnamedToken(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after func(int) error
		reason        string
		left          int
		says          string
		atMost        time.Duration
	}{
		{name: "nothing", left: 1, atMost: time.Second},
		{name: "a short outage", before: first(5), left: 1, atMost: 5 * time.Second},
		{name: "responses lost", after: first(3), left: 1, atMost: 5 * time.Second},
		{name: "unavailable for long", before: always, reason: mint.NotStored, says: "was stored nevertheless, no client received it, and it expires at", atMost: 20 * time.Second},
		{name: "responses lost for long", after: first(27), reason: mint.NotStored, atMost: 20 * time.Second}, // 25 calls to store it
		{
			name: "answer lost, then away", reason: mint.NotStored, left: 1, says: "was stored nevertheless, no client received it, and it expires at", atMost: 20 * time.Second,
			before: func(n int) error {
				if n > 0 {
					return errReset
				}
				return nil
			},
			after: always,
		},
		{name: "an API server that fails", before: firstWith(5, apierrors.NewServiceUnavailable("x")), left: 1, atMost: 5 * time.Second},
		{name: "an API server with many requests", before: firstWith(5, apierrors.NewTooManyRequests("x", 1)), left: 1, atMost: 5 * time.Second},
		{name: "a redirect on the way", before: firstWith(5, &apierrors.StatusError{ErrStatus: metav1.Status{Code: 302}}), left: 1, atMost: 5 * time.Second},
		{name: "refused", before: func(int) error { return forbidden }, reason: mint.NotStored},
		{name: "the store refuses", before: func(int) error { return fmt.Errorf("x: %w", tokens.ErrRefused) }, reason: mint.NotStored},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.Tokens = s.failing(test.before, test.after)
				began := time.Now()
				made, err := s.Join(t.Context(), newRecord(time.Hour))
				if took := time.Since(began); reason(t, err) != test.reason || took > test.atMost {
					t.Errorf("got %v after %s, want reason %q within %s", err, took, test.reason, test.atMost)
				}
				text := fmt.Sprint(made.Record.Token.ID(), " ", err)
				ids := s.ids(t)
				if len(ids) != test.left {
					t.Errorf("got tokens %v in the store, want %d", ids, test.left)
				}
				for _, id := range ids {
					if !strings.Contains(text, id) {
						t.Errorf("%s does not name token %s, which is in the store", text, id)
					}
				}
				if !strings.Contains(text, test.says) || test.says == "" && strings.Contains(text, "nevertheless") {
					t.Errorf("got %s, want %q in it", text, test.says)
				}
			})
		})
	}
}

// Catches a failed call that does not name its token although the store may have it.
func TestCreateNamesTokenThatMayBeStored(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after func(int) error
		reason        string
		left          int
	}{
		{name: "a short outage", before: first(5), left: 1},
		{name: "responses lost", after: first(3), left: 1},
		{name: "unavailable for long", before: always, reason: mint.NotStored},
		{name: "refused", before: func(int) error { return forbidden }, reason: mint.Refused},
		{name: "responses lost for long", after: always, reason: mint.NotStored, left: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t)
				s.Tokens = s.failing(test.before, test.after)
				r := newRecord(time.Hour)
				_, err := s.Create(t.Context(), mint.Creation{Record: r, Chosen: true, Wait: time.Second})
				if reason(t, err) != test.reason || len(s.ids(t)) != test.left {
					t.Errorf("got %v with %d tokens left", err, len(s.ids(t)))
				}
				var e *mint.Error
				if errors.As(err, &e) && (e.Retry != (test.reason == mint.NotStored) || (e.TokenID == r.Token.ID()) != e.Retry || e.Retry && !strings.Contains(e.Fate, "was stored nevertheless, it expires at ")) {
					t.Errorf("got %+v", e)
				}
			})
		})
	}
}

// Catches the secret of another token that happens to have the generated ID.
func TestGeneratesTokenOfFreeID(t *testing.T) {
	for _, how := range both {
		s := newSite(t)
		var other tokens.Token // has the ID of the first token to be created
		s.Tokens = storetest.Faulty(func(c *storetest.Call, do func() error) error {
			if c.Method == "Store.Create" && other.IsZero() {
				r := c.Records[0]
				var err error
				if other, err = tokens.New(c.Key, tokens.Generate().RevealSecret()); err != nil {
					return err
				}
				r.Token = other
				if _, err := s.store.Create(c.Context, r); err != nil {
					return err
				}
			}
			return do()
		}).Store(s.store)
		made := must.Value(how.call(t.Context(), s, newRecord(time.Hour)))(t)
		token := made.Join.Token
		if token.ID() == other.ID() || s.record(t, other.ID()).Token != other || s.record(t, token.ID()).Token != token || made.Record.Token != token {
			t.Errorf("%s: got token %s, want one with another ID than %s", how.name, token, other)
		}
	}
}

// Catches a call with a used record that returns the token of another call, or deletes it. A machine may have the token
// of the other call.
func TestRefusesTokenOfEarlierCall(t *testing.T) {
	calls := slices.Clone(both)
	calls = append(calls, both[1])
	calls[2].name, calls[2].call = "dry run", func(ctx context.Context, s *site, r tokens.Record) (mint.Minted, error) {
		return s.Create(ctx, mint.Creation{Record: r, DryRun: true})
	}
	for _, how := range calls {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			r := newRecord(time.Hour)
			first := must.Value(s.Join(t.Context(), r))(t)
			s.ClusterInfo = pending{s.info} // a call that accepted the token would fail and delete it
			r.Limits.MaxNodes = 3
			made, err := how.call(t.Context(), s, r)
			if reason(t, err) != mint.Exists || !strings.Contains(err.Error(), "already exists. Choose another token") {
				t.Errorf("%s: got %+v, %v", how.name, made, err)
			}
			if ids := s.ids(t); len(ids) != 1 || s.record(t, r.Token.ID()).Version != first.Record.Version {
				t.Errorf("%s: got tokens %v, want the one of the first call, unchanged", how.name, ids)
			}
		})
	}
}

// Catches a call that deletes a token of an earlier call, which a machine may have.
func TestJoinKeepsExistingTokenOfUnreadableStore(t *testing.T) {
	for err, want := range map[error]string{errReset: mint.Unavailable, forbidden: mint.Refused} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			r := newRecord(time.Hour)
			must.Value(s.Join(t.Context(), r))(t)
			down := time.Now().Add(15 * time.Second) // until Join has given up, but could still delete it
			s.Tokens = storetest.Before(func() error {
				if time.Now().Before(down) {
					return err
				}
				return nil
			}, "Store.Get").Store(s.store)
			if _, err := s.Join(t.Context(), r); reason(t, err) != want || len(s.ids(t)) != 1 {
				t.Errorf("got %v with %d tokens left, want reason %s and one token", err, len(s.ids(t)), want)
			}
		})
	}
}

// SignTimeout includes the time to store the token, so this test runs in a synctest bubble.
func TestDeletesUnsignedToken(t *testing.T) {
	for failures, left := range map[int]int{2: 0, 1000: 1} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			s.ClusterInfo = pending{s.info}
			s.Tokens = storetest.Faulty(func(c *storetest.Call, do func() error) error {
				if c.Method != "Store.Delete" || failures == 0 {
					return do()
				}
				failures--
				// Let another writer change the record before each failure.
				if _, err := s.store.Update(c.Context, c.Key, func(r *tokens.Record) error { r.Description += "."; return nil }); err != nil {
					return err
				}
				return errReset
			}).Store(s.store)
			s.SignTimeout = 200 * time.Millisecond
			began := time.Now()
			_, err := s.Join(t.Context(), newRecord(time.Hour))
			want := "was deleted, because no client received it"
			if left > 0 {
				want = "could not be deleted; no client received it, and it expires at"
			}
			for _, want := range []string{want, "within 200ms", "the signer of the test", "cluster-info has no signature of it"} {
				if reason(t, err) != mint.NotSigned || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			}
			if ids := s.ids(t); len(ids) != left || time.Since(began) > mint.WithdrawTimeout+time.Second {
				t.Errorf("tokens %v are left after %s, want %d", ids, time.Since(began), left)
			}
		})
	}
}

func TestDeletesTokenOfCanceledCall(t *testing.T) {
	s := newSite(t)
	s.ClusterInfo = pending{s.info}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { _, err := s.Join(ctx, newRecord(time.Hour)); done <- err }()
	for range s.store.Watch(t.Context()) { // until the token is stored
		if len(s.ids(t)) == 1 {
			break
		}
	}
	cancel()
	if err := <-done; reason(t, err) != mint.Failed || !strings.Contains(err.Error(), "canceled before a signature of the new token appeared in cluster-info") {
		t.Errorf("got %v", err)
	}
	if ids := s.ids(t); len(ids) != 0 {
		t.Errorf("tokens %v are left", ids)
	}
}

// The caller knows its own token. Catches such a token being deleted because cluster-info has no signature by it yet.
func TestUnsignedTokenIsKeptForItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.ClusterInfo = pending{s.info}
		r := newRecord(time.Hour)
		_, err := s.Create(t.Context(), mint.Creation{Record: r, Chosen: true, Wait: 50 * time.Millisecond})
		var e *mint.Error
		if !errors.As(err, &e) || e.Reason != mint.NotSigned || e.TokenID != r.Token.ID() || !strings.Contains(e.Message, "within 50ms; the signer should be the signer of the test") ||
			!strings.Contains(e.Fate, "was created nevertheless and expires at") || strings.Contains(err.Error(), r.Token.RevealSecret()) {
			t.Errorf("got %v", err)
		}
		if s.record(t, r.Token.ID()).Token != r.Token {
			t.Error("the store has another token than that of the request")
		}
		s.ClusterInfo = fixed{err: errReset}
		unread := newRecord(time.Hour)
		_, err = s.Create(t.Context(), mint.Creation{Record: unread, Chosen: true, Wait: time.Second})
		if e = nil; !errors.As(err, &e) || e.Reason != mint.NotSigned || e.TokenID != unread.Token.ID() || !errors.Is(err, errReset) {
			t.Errorf("cluster-info cannot be read: got %v", err)
		}
		s.ClusterInfo = pending{s.info}
		// A caller that does not wait, or that needs no signature, gets no error.
		if _, err := s.Create(t.Context(), mint.Creation{Record: newRecord(time.Hour)}); err != nil {
			t.Error(err)
		}
		authenticates := newRecord(time.Hour)
		authenticates.Signing = false
		if _, err := s.Create(t.Context(), mint.Creation{Record: authenticates, Wait: time.Second}); err != nil {
			t.Error(err)
		}
		// The signature of a spent token may have been removed.
		spent := newRecord(time.Hour)
		spent.Limits.MaxNodes = 1
		request := mint.Creation{Record: spent, Chosen: true}
		must.Value(s.Create(t.Context(), request))(t)
		must.Value(s.store.Update(t.Context(), spent.Token.ID(), func(r *tokens.Record) error { r.Nodes = []string{"worker-1"}; return nil }))(t)
		request.Wait = time.Second
		if again, err := s.Create(t.Context(), request); err != nil || !again.Existing || again.Join.Token != spent.Token {
			t.Errorf("spent token: got %+v, %v, want how to join", again, err)
		}
	})
}

func TestWaitForSignatureEndsAtExpiry(t *testing.T) {
	for _, how := range both {
		synctest.Test(t, func(t *testing.T) { testWaitEndsAtExpiry(t, how.call, how.kept) })
	}
}

// A client that lost the response repeats its request with its own token. Catches a repeated request that changes the
// token, and differences that are reported to a caller without the token secret.
func TestRepeatedCreateReturnsSameToken(t *testing.T) {
	end := time.Now().Add(4 * time.Hour).UTC().Truncate(time.Second)
	full := func(r *tokens.Record) {
		r.Description, r.Groups = "rack 7", []string{"system:bootstrappers:a", "system:bootstrappers:b"}
		r.Limits = tokens.Limits{MaxNodes: 3, NodeNames: []string{"a", "b-*"}, CertificateDuration: 48 * time.Hour}
	}
	lives := func(ttl time.Duration) func(*tokens.Record) {
		return func(r *tokens.Record) {
			if r.Expires = time.Now().Add(ttl).UTC().Truncate(time.Second); ttl == 0 {
				r.Expires = time.Time{}
			}
		}
	}
	nodes := func(n int) func(*tokens.Record) { return func(r *tokens.Record) { r.Limits.MaxNodes = n } }
	ends := func(at time.Time) func(*tokens.Record) { return func(r *tokens.Record) { r.Expires = at } }
	spend := func(r *tokens.Record) { r.Nodes, r.Expires = []string{"a"}, time.Now().Add(time.Hour) }
	all := func(changes ...func(*tokens.Record)) func(*tokens.Record) {
		return func(r *tokens.Record) {
			for _, change := range changes {
				change(r)
			}
		}
	}
	none := func(*tokens.Record) {}
	for _, test := range []struct {
		name         string
		first, again func(*tokens.Record)
		fixedEnd     bool
		secret       bool                 // the repeated request has another secret
		change       func(*tokens.Record) // applied between the requests
		differs      string               // differing fields; "": the token is returned
	}{
		{name: "the same", first: none, again: none},
		{name: "the same of everything", first: full, again: full},
		{name: "in another order", first: full, again: all(full, func(r *tokens.Record) {
			r.Groups, r.Limits.NodeNames = []string{"system:bootstrappers:b", "system:bootstrappers:a"}, []string{"b-*", "a"}
		})},
		{name: "another secret", first: none, again: none, secret: true, differs: "not shown"},
		{name: "another secret of everything", first: full, again: full, secret: true, differs: "not shown"},
		{name: "another secret and another description", first: full, again: none, secret: true, differs: "not shown"},
		{name: "another ttl", first: none, again: lives(3 * time.Hour), differs: "ttl"},
		{name: "never expires", first: none, again: lives(0), differs: "ttl"},
		{name: "expires after all", first: lives(0), again: none, differs: "ttl"},
		{name: "never expires, twice", first: lives(0), again: lives(0)},
		{name: "the same end", first: ends(end), again: ends(end.In(time.FixedZone("x", 3600))), fixedEnd: true},
		{name: "another end", first: ends(end), again: ends(end.Add(time.Second)), fixedEnd: true, differs: "expires"},
		{name: "another description", first: full, again: all(full, func(r *tokens.Record) { r.Description = "rack 8" }), differs: "description"},
		{name: "fewer groups", first: full, again: all(full, func(r *tokens.Record) { r.Groups = r.Groups[:1] }), differs: "groups"},
		{name: "other limits", first: full, again: all(full, func(r *tokens.Record) {
			r.Limits.CertificateDuration, r.Limits.NodeNames, r.Limits.Role, r.Limits.Rejoin = 49*time.Hour, []string{"a", "c"}, tokens.RoleControlPlane, tokens.RejoinDeny
		}), differs: "nodeNames, certificateDuration, role, rejoin"},
		{name: "other properties of Nodes", first: none, again: func(r *tokens.Record) {
			r.Limits.Node = tokens.NodeProperties{Labels: "a=b", Taints: "a:NoSchedule", ReadyAfter: tokens.ReadyAfterLabels}
		}, differs: "nodeLabels, nodeTaints, nodeReadyAfter"},
		{name: "more nodes", first: full, again: all(full, nodes(4)), differs: "maxNodes"},
		{name: "another Node to replace", first: func(r *tokens.Record) { r.Limits.Replaces = tokens.NodeRef{Name: "a", UID: "1"} }, again: func(r *tokens.Record) { r.Limits.Replaces = tokens.NodeRef{Name: "a", UID: "2"} }, differs: "replaceNode"},
		{name: "another usage", first: none, again: func(r *tokens.Record) { r.Signing = false }, differs: "usages"},
		{name: "renewed", first: none, again: none, differs: "ttl", change: func(r *tokens.Record) { r.Expires = r.Expires.Add(time.Hour) }},
		{name: "expired", first: none, again: none, differs: "ttl, status", change: func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Second) }},
		{name: "used", first: full, again: full, change: func(r *tokens.Record) { r.Nodes = []string{"a"} }},
		// A token expires earlier once its last slot is used.
		{name: "spent", first: nodes(1), again: nodes(1), change: spend},
		{name: "spent, never expires", first: all(nodes(1), lives(0)), again: all(nodes(1), lives(0)), change: spend},
		{name: "spent, of an end", first: all(nodes(1), ends(end)), again: all(nodes(1), ends(end)), fixedEnd: true, change: spend},
		{name: "spent, and ends later than is asked for", first: nodes(1), again: all(nodes(1), lives(30*time.Minute)), differs: "ttl", change: spend},
		{name: "spent, and ends later than the end", first: all(nodes(1), lives(0)), again: all(nodes(1), lives(30*time.Minute)), fixedEnd: true, differs: "expires", change: spend},
		{name: "spent, and never ends", first: all(nodes(1), lives(0)), again: nodes(1), differs: "ttl", change: func(r *tokens.Record) { r.Nodes = []string{"a"} }},
		{name: "spent and never ends, of an end", first: all(nodes(1), lives(0)), again: all(nodes(1), ends(end)), fixedEnd: true, differs: "expires", change: func(r *tokens.Record) { r.Nodes = []string{"a"} }},
		{name: "not spent, and ends early", first: nodes(2), again: nodes(2), differs: "ttl", change: spend},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newSite(t)
			own := tokens.Generate()
			record := func(change func(*tokens.Record)) tokens.Record {
				r := tokens.NewRecord(own, 2*time.Hour, time.Now())
				change(&r)
				return r
			}
			request := mint.Creation{Record: record(test.first), Chosen: true, Wait: time.Second}
			lifetime := func() time.Duration {
				if test.fixedEnd || request.Record.Expires.IsZero() {
					return 0
				}
				return time.Until(request.Record.Expires)
			}
			request.Lifetime = lifetime()
			made, err := s.Create(t.Context(), request)
			if err != nil || made.Existing {
				t.Fatalf("got %+v, %v", made, err)
			}
			before := s.record(t, own.ID())
			if test.change != nil {
				before = must.Value(s.store.Update(t.Context(), own.ID(), func(r *tokens.Record) error { test.change(r); return nil }))(t)
			}
			request.Record = record(test.again)
			request.Lifetime = lifetime()
			if test.secret {
				request.Record.Token = must.Value(tokens.New(own.ID(), tokens.Generate().RevealSecret()))(t)
			}
			for _, request.DryRun = range []bool{false, true} {
				again, err := s.Create(t.Context(), request)
				if test.differs == "" {
					if err != nil || !again.Existing || again.Join.Token != own || again.Record.Token != own || again.Record.Version != before.Version || !again.Record.Expires.Equal(before.Expires) {
						t.Errorf("dry run %t: got %+v, %v", request.DryRun, again, err)
					}
					continue
				}
				differs := ""
				if !test.secret {
					differs = "; it differs in " + test.differs
				}
				want := fmt.Sprintf("token %s already exists and does not match the request%s. Choose another token, or if no machine still joins with the existing one: kubejoin token delete %s", own.ID(), differs, own.ID())
				if reason(t, err) != mint.Exists || err.Error() != want {
					t.Errorf("dry run %t: got %v, want %s", request.DryRun, err, want)
				}
			}
			if after := s.record(t, own.ID()); after.Version != before.Version || after.Token != own {
				t.Error("the repeated request changed the token")
			}
		})
	}
}

// The ttl of a repeated request starts at the creation of the token, and kube-apiserver sets the creation time.
// Catches a token that is extended or seems to differ because time has passed or clocks differ, and an expired token
// that is returned.
func TestRepeatedCreateCountsTTLFromCreation(t *testing.T) {
	for _, test := range []struct {
		name             string
		ttl, again       time.Duration
		created, expires time.Duration
		same             bool
	}{
		{"later", 24 * time.Hour, 24 * time.Hour, -10 * time.Hour, -10 * time.Hour, true},
		{"later, for the rest", 24 * time.Hour, 14 * time.Hour, -10 * time.Hour, -10 * time.Hour, false},
		{"after it expired", time.Hour, time.Hour, -2 * time.Hour, -2 * time.Hour, false},
		{"ahead", 24 * time.Hour, 24 * time.Hour, 20 * time.Second, 0, true},
		{"behind", 24 * time.Hour, 24 * time.Hour, -20 * time.Second, 0, true},
		{"minutes ahead", 24 * time.Hour, 24 * time.Hour, 4 * time.Minute, 0, true},
		{"minutes behind", 24 * time.Hour, 24 * time.Hour, -4 * time.Minute, 0, true},
		{"too far ahead", 24 * time.Hour, 24 * time.Hour, 6 * time.Minute, 0, false},
		{"too far behind", 24 * time.Hour, 24 * time.Hour, -6 * time.Minute, 0, false},
		{"a short token", 20 * time.Minute, 20 * time.Minute, time.Minute, 0, true},
		{"a short token, too far ahead", 20 * time.Minute, 20 * time.Minute, 4 * time.Minute, 0, false},
		{"a token of a minute, too far ahead", time.Minute, time.Minute, 25 * time.Second, 0, false},
		{"a very short token", 20 * time.Second, 20 * time.Second, 10 * time.Second, 0, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t)
			s.Tokens = storetest.Alter(func(r *tokens.Record) {
				r.Created, r.Expires = r.Created.Add(test.created), r.Expires.Add(test.expires)
			}).Store(s.store)
			own := tokens.Generate()
			must.Value(s.Create(t.Context(), mint.Creation{Record: tokens.NewRecord(own, test.ttl, time.Now()), Chosen: true, Lifetime: test.ttl}))(t)
			made, err := s.Create(t.Context(), mint.Creation{Record: tokens.NewRecord(own, test.again, time.Now()), Chosen: true, Lifetime: test.again})
			if (err == nil) != test.same || err != nil && reason(t, err) != mint.Exists || err == nil && !made.Existing {
				t.Errorf("%s: got %v, want the same token %t", test.name, err, test.same)
			}
		})
	}
}

// Catches concurrent identical requests that make two tokens, or that fail because another request was first.
func TestConcurrentCreatesMakeOneToken(t *testing.T) {
	s := newSite(t)
	r := newRecord(time.Hour)
	var all sync.WaitGroup
	var mu sync.Mutex
	created := 0
	for range 20 {
		all.Go(func() {
			made, err := s.Create(t.Context(), mint.Creation{Record: r, Chosen: true, Wait: time.Minute})
			if err != nil || made.Join.Token != r.Token {
				t.Errorf("got %+v, %v", made, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if !made.Existing {
				created++
			}
		})
	}
	all.Wait()
	if created != 1 {
		t.Errorf("%d calls report that they created the token, want one", created)
	}
}

// A dry run reads the token twice. Catches an internal error if the token is deleted or the store fails in between.
func TestDryRunOfDeletedTokenIsConflict(t *testing.T) {
	for err, want := range map[error]string{fmt.Errorf("x: %w", tokens.ErrNotFound): mint.Exists, errReset: mint.Unavailable, forbidden: mint.Refused} {
		s := newSite(t)
		r := newRecord(time.Hour)
		must.Value(s.store.Create(t.Context(), r))(t)
		for call := range 2 {
			if call == 0 && want == mint.Exists {
				continue // a token that does not exist yet
			}
			s.Tokens = s.failing(onlyAt(call, err), nil)
			if _, got := s.Create(t.Context(), mint.Creation{Record: r, Chosen: true, DryRun: true}); reason(t, got) != want {
				t.Errorf("%v: got %v, want %s", err, got, want)
			}
		}
	}
}

// Catches retries of a permanent refusal, and its reason in place of "the token store is unavailable now; retry".
func TestCreateReturnsRefusalOfStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		calls := 0
		s.Tokens = s.failing(func(int) error {
			calls++
			return &tokens.Refusal{Reason: mint.Exists, Message: "another Secret", Err: tokens.ErrRefused}
		}, nil)
		for _, chosen := range []bool{true, false} {
			calls = 0
			_, err := s.Create(t.Context(), mint.Creation{Record: newRecord(time.Hour), Chosen: chosen})
			if no, found := errors.AsType[*mint.Error](err); !found || no.Reason != mint.Exists || no.Retry || no.Message != "another Secret" {
				t.Errorf("chosen %t: got %v after %d calls, want the refusal", chosen, err, calls)
			}
		}
	})
}
