package storetest_test

import (
	"errors"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func healthy(_ *storetest.Call, do func() error) error { return do() }

// A store with a Faulty without faults must pass the conformance suite.
func TestFaultyStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) tokens.Store { return storetest.Faulty(healthy).Store(memdb.Open()) })
}

func TestFaultyClaims(t *testing.T) {
	storetest.RunClaims(t, func(*testing.T) tokens.Claims {
		return storetest.Faulty(healthy).Claims(memdb.Open().Claims())
	})
}

func TestFaultyCommit(t *testing.T) {
	storetest.RunCommit(t, func(*testing.T) (tokens.Store, tokens.Claims) {
		s := memdb.Open()
		return storetest.Faulty(healthy).Store(s), storetest.Faulty(healthy).Claims(s.Claims())
	})
}

var errFault = errors.New("fault")

// Every method must run through the Faulty, with its name.
func TestFailEachMethod(t *testing.T) {
	healthy := memdb.Open()
	r := must.Value(healthy.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	id, claim := r.Token.ID(), tokens.Claim{Node: "worker-1", TokenID: r.Token.ID()}
	held := claim
	held.Version = "1"
	for method, call := range map[string]func(tokens.Store, tokens.Claims) error{
		"Store.Get": func(s tokens.Store, _ tokens.Claims) error { _, err := s.Get(t.Context(), id, tokens.Live); return err },
		"Store.Get.cached": func(s tokens.Store, _ tokens.Claims) error {
			_, err := s.Get(t.Context(), id, tokens.Cached)
			return err
		},
		"Store.Get.recent": func(s tokens.Store, _ tokens.Claims) error {
			_, err := s.Get(t.Context(), id, tokens.Recent)
			return err
		},
		"Store.List":   func(s tokens.Store, _ tokens.Claims) error { _, err := s.List(t.Context()); return err },
		"Store.Create": func(s tokens.Store, _ tokens.Claims) error { _, err := s.Create(t.Context(), r); return err },
		"Store.Update": func(s tokens.Store, _ tokens.Claims) error {
			_, err := s.Update(t.Context(), id, func(*tokens.Record) error { return nil })
			return err
		},
		"Store.Update.change": func(s tokens.Store, _ tokens.Claims) error {
			_, err := s.Update(t.Context(), id, func(*tokens.Record) error { return nil })
			return err
		},
		"Store.Delete": func(s tokens.Store, _ tokens.Claims) error { return s.Delete(t.Context(), r) },
		"Claims.Get": func(_ tokens.Store, c tokens.Claims) error {
			_, err := c.Get(t.Context(), "worker-1", tokens.Live)
			return err
		},
		"Claims.Get.cached": func(_ tokens.Store, c tokens.Claims) error {
			_, err := c.Get(t.Context(), "worker-1", tokens.Cached)
			return err
		},
		"Claims.Get.recent": func(_ tokens.Store, c tokens.Claims) error {
			_, err := c.Get(t.Context(), "worker-1", tokens.Recent)
			return err
		},
		"Claims.HeldBy.recent": func(_ tokens.Store, c tokens.Claims) error {
			_, err := c.HeldBy(t.Context(), id, tokens.Recent)
			return err
		},
		"Claims.List": func(_ tokens.Store, c tokens.Claims) error { _, err := c.List(t.Context()); return err },
		"Claims.HeldBy.cached": func(_ tokens.Store, c tokens.Claims) error {
			_, err := c.HeldBy(t.Context(), id, tokens.Cached)
			return err
		},
		"Claims.HeldBy": func(_ tokens.Store, c tokens.Claims) error {
			_, err := c.HeldBy(t.Context(), id, tokens.Live)
			return err
		},
		"Claims.Create": func(_ tokens.Store, c tokens.Claims) error {
			_, err := storetest.CreateClaim(t.Context(), c, claim)
			return err
		},
		"Claims.Update": func(_ tokens.Store, c tokens.Claims) error {
			_, err := tokens.CommitClaim(t.Context(), c, held, claim)
			return err
		},
		"Claims.Delete": func(_ tokens.Store, c tokens.Claims) error { return storetest.DeleteClaim(t.Context(), c, held) },
		"Claims.Commit": func(_ tokens.Store, c tokens.Claims) error {
			_, err := c.Commit(t.Context(), r, r, nil)
			return err
		},
	} {
		f := storetest.Fail(errFault, method)
		if err := call(f.Store(healthy), f.Claims(healthy.Claims())); !errors.Is(err, errFault) {
			t.Errorf("%s: got %v, want the fault", method, err)
		}
		if err := call(storetest.Fail(errFault).Store(healthy), storetest.Fail(errFault).Claims(healthy.Claims())); !errors.Is(err, errFault) {
			t.Errorf("%s when all fail: got %v, want the fault", method, err)
		}
	}
	if now, err := healthy.Get(t.Context(), id, tokens.Live); err != nil || now.Version != r.Version {
		t.Errorf("got %+v, %v, want no effect of a failed call", now, err)
	}
}

func TestLostResponseHasEffect(t *testing.T) {
	s := memdb.Open()
	lost := storetest.After(func() error { return errFault }, "Store.Create").Store(s)
	r := tokens.Record{Token: tokens.Generate()}
	if _, err := lost.Create(t.Context(), r); !errors.Is(err, errFault) {
		t.Errorf("Create = %v, want the fault", err)
	}
	if _, err := lost.Create(t.Context(), r); !errors.Is(err, tokens.ErrExists) {
		t.Errorf("Create again = %v, want the error of the store", err)
	}
	if _, err := lost.Get(t.Context(), r.Token.ID(), tokens.Live); err != nil {
		t.Errorf("the lost call has no effect: %v", err)
	}
}

func TestBeforeRunsAheadOfCall(t *testing.T) {
	s := memdb.Open()
	r := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	f := storetest.Before(func() error { return s.Delete(t.Context(), r) }, "Store.Get")
	for n, want := range []error{tokens.ErrNotFound, tokens.ErrNotFound} {
		if _, err := f.Store(s).Get(t.Context(), r.Token.ID(), tokens.Live); !errors.Is(err, want) {
			t.Errorf("call %d = %v, want %v", n, err, want)
		}
	}
	if _, err := f.Store(s).Get(t.Context(), "abcdef", tokens.Cached); !errors.Is(err, tokens.ErrNotFound) {
		t.Errorf("another method: %v", err)
	}
}

func TestAlterChangesWhatIsRead(t *testing.T) {
	s := memdb.Open()
	r := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	f := storetest.Alter(func(r *tokens.Record) { r.Problem = errFault }).Store(s)
	got, err := f.Get(t.Context(), r.Token.ID(), tokens.Live)
	found, findErr := f.Get(t.Context(), r.Token.ID(), tokens.Cached)
	list, listErr := f.List(t.Context())
	if errors.Join(err, findErr, listErr) != nil || got.Problem != errFault || found.Problem != errFault || list[0].Problem != errFault { //nolint:errorlint // the same value, not wrapped
		t.Errorf("got %+v, %+v and %+v, want the problem in each", got, found, list)
	}
	updated, err := f.Update(t.Context(), r.Token.ID(), func(r *tokens.Record) error { r.Description = "new"; return nil })
	if err != nil || updated.Problem != nil {
		t.Errorf("Update = %+v, %v, want the record as stored", updated, err)
	}
}

func TestStaleShowsEarlierState(t *testing.T) {
	s := memdb.Open()
	r := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	id := r.Token.ID()
	claim := must.Value(storetest.CreateClaim(t.Context(), s.Claims(), tokens.Claim{Node: "worker-1", TokenID: id}))(t)
	f := storetest.Stale(t, s, s.Claims())
	later := must.Value(s.Create(t.Context(), tokens.Record{Token: tokens.Generate()}))(t)
	must.OK(t, errors.Join(s.Delete(t.Context(), r), storetest.DeleteClaim(t.Context(), s.Claims(), claim)))
	store, claims := f.Store(s), f.Claims(s.Claims())
	found, err := store.Get(t.Context(), id, tokens.Cached)
	list, listErr := store.List(t.Context())
	foundClaim, claimErr := claims.Get(t.Context(), "worker-1", tokens.Cached)
	claimList, claimsErr := claims.List(t.Context())
	of, ofErr := claims.HeldBy(t.Context(), id, tokens.Cached)
	if err := errors.Join(err, listErr, claimErr, claimsErr, ofErr); err != nil || found.UID != r.UID || len(list) != 1 || foundClaim.UID != claim.UID || len(claimList) != 1 || len(of) != 1 {
		t.Errorf("got %+v, %+v, %+v, %+v, %+v, %v, want the state before", found, list, foundClaim, claimList, of, err)
	}
	none, err := claims.HeldBy(t.Context(), later.Token.ID(), tokens.Cached)
	if err != nil || len(none) != 0 {
		t.Errorf("claims of another token: %+v, %v", none, err)
	}
	_, err = store.Get(t.Context(), later.Token.ID(), tokens.Cached)
	_, getErr := store.Get(t.Context(), id, tokens.Live)
	_, claimErr = claims.Get(t.Context(), "worker-2", tokens.Cached)
	_, liveErr := claims.Get(t.Context(), "worker-1", tokens.Live)
	for what, err := range map[string]error{"a later token in the cache": err, "a live read": getErr, "no claim in the cache": claimErr, "a live read of a claim": liveErr} {
		if !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", what, err)
		}
	}
}
