// Package revocationtest is the conformance suite for implementations of [revocation.Store]. Every implementation
// should call [Run] in a test. [Before] makes calls of a store fail.
package revocationtest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// lag is how long it may take until a cached read shows a change, on a busy machine.
const lag = time.Minute

// Run runs the suite. Each test calls open once. open must return a store without entries that stays usable until the
// test ends.
func Run(t *testing.T, open func(t *testing.T) revocation.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, revocation.Store)
	}{
		{"Empty", testEmpty},
		{"KeepsFields", testKeepsFields},
		{"Remove", testRemove},
		{"ChangeFails", testChangeFails},
		{"UpdateAtOnce", testUpdateAtOnce},
		{"Canceled", testCanceled},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

var reads = []tokens.Read{tokens.Live, tokens.Recent, tokens.Cached}

// Fingerprint returns a different fingerprint for each n.
func Fingerprint(n int) revocation.Fingerprint {
	f, err := revocation.ParseFingerprint(fmt.Sprintf("%064x", n+1))
	if err != nil {
		panic(err)
	}
	return f
}

// samples returns entries with different fields, sorted by key.
func samples() []revocation.Entry {
	at := time.Now().UTC().Truncate(time.Second)
	return []revocation.Entry{
		{Fingerprint: Fingerprint(7), Since: at, Until: at.Add(time.Hour)},
		{Node: strings.Repeat("a", 253), Since: at},
		{Node: "worker-1", Since: at, Reason: `stolen, "X509SHA256."`, By: "jane", TokenID: "abcdef", Allowed: map[revocation.Fingerprint]time.Time{Fingerprint(1): at, Fingerprint(2): at.Add(time.Hour)}},
	}
}

func put(t *testing.T, s revocation.Store, e revocation.Entry) {
	t.Helper()
	stored, err := s.Update(t.Context(), e.Key(), func(*revocation.Entry) (*revocation.Entry, error) { return &e, nil })
	if err != nil || stored == nil || !reflect.DeepEqual(*stored, e) {
		t.Fatalf("Update = %+v, %v, want %+v", stored, err, e)
	}
}

func testEmpty(t *testing.T, s revocation.Store) {
	for _, read := range reads {
		if all, err := s.List(t.Context(), read); err != nil || len(all) > 0 {
			t.Errorf("%s List = %+v, %v, want none", read, all, err)
		}
		if _, err := s.Get(t.Context(), "worker-1", read); !errors.Is(err, revocation.ErrNotFound) {
			t.Errorf("%s Get = %v, want %v", read, err, revocation.ErrNotFound)
		}
	}
	e, err := s.Update(t.Context(), "worker-1", func(e *revocation.Entry) (*revocation.Entry, error) { return e, nil })
	if e != nil || err != nil {
		t.Errorf("Update = %+v, %v, want nothing", e, err)
	}
}

func testKeepsFields(t *testing.T, s revocation.Store) {
	all := samples()
	for _, e := range all {
		put(t, s, e)
		wantGet(t, s, e.Key(), func(got revocation.Entry, err error) bool { return err == nil && reflect.DeepEqual(got, e) })
	}
	for _, read := range reads {
		if got, err := s.List(t.Context(), read); err != nil || !reflect.DeepEqual(got, all) {
			t.Errorf("%s List = %+v, %v, want %+v", read, got, err, all)
		}
	}
}

// wantGet checks the result of each kind of read of a key: a cached read after a while, other reads at once.
func wantGet(t *testing.T, s revocation.Store, key revocation.Key, done func(revocation.Entry, error) bool) {
	t.Helper()
	for _, read := range []tokens.Read{tokens.Live, tokens.Recent, tokens.Recent, tokens.Recent} {
		if e, err := s.Get(t.Context(), key, read); !done(e, err) {
			t.Errorf("%s Get = %+v, %v", read, e, err)
		}
	}
	for end := time.Now().Add(lag); ; {
		e, err := s.Get(t.Context(), key, tokens.Cached)
		if done(e, err) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %s cached Get = %+v, %v", lag, e, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func testRemove(t *testing.T, s revocation.Store) {
	e := samples()[2]
	put(t, s, e)
	left, err := s.Update(t.Context(), e.Key(), func(e *revocation.Entry) (*revocation.Entry, error) {
		if e == nil {
			return nil, errors.New("no entry")
		}
		return nil, nil
	})
	if left != nil || err != nil {
		t.Fatalf("Update = %+v, %v, want nothing", left, err)
	}
	wantGet(t, s, e.Key(), func(_ revocation.Entry, err error) bool { return errors.Is(err, revocation.ErrNotFound) })
}

func testChangeFails(t *testing.T, s revocation.Store) {
	e, failure := samples()[2], errors.New("no")
	put(t, s, e)
	if _, err := s.Update(t.Context(), e.Key(), func(*revocation.Entry) (*revocation.Entry, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("Update = %v, want %v", err, failure)
	}
	if got, err := s.Get(t.Context(), e.Key(), tokens.Live); err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("Get = %+v, %v, want %+v", got, err, e)
	}
}

// testUpdateAtOnce catches a lost change if two changes are made at the same time.
func testUpdateAtOnce(t *testing.T, s revocation.Store) {
	put(t, s, revocation.Entry{Node: "worker-1", Since: time.Now().UTC().Truncate(time.Second)})
	end := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	const at = 6
	var group sync.WaitGroup
	for n := range at {
		group.Go(func() {
			_, err := s.Update(t.Context(), "worker-1", func(e *revocation.Entry) (*revocation.Entry, error) {
				if e == nil {
					return nil, errors.New("no entry")
				}
				next := e.Allow(Fingerprint(n), end, revocation.Subject{}, time.Now())
				return &next, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if e, err := s.Get(t.Context(), "worker-1", tokens.Live); err != nil || len(e.Allowed) != at {
		t.Errorf("Get = %+v, %v, want %d allowed certificates", e, err, at)
	}
}

func testCanceled(t *testing.T, s revocation.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, getErr := s.Get(ctx, "worker-1", tokens.Live)
	_, listErr := s.List(ctx, tokens.Live)
	_, updateErr := s.Update(ctx, "worker-1", func(*revocation.Entry) (*revocation.Entry, error) {
		return &revocation.Entry{Node: "worker-1", Since: time.Now()}, nil
	})
	for name, err := range map[string]error{"Get": getErr, "List": listErr, "Update": updateErr} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v, want %v", name, err, context.Canceled)
		}
	}
}
