// Package storetest is the conformance suite for implementations of [tokens.Store] and [tokens.Claims]. It tests the
// promises in the documentation of these interfaces. Every implementation should call [Run], or [RunClaims] and
// [RunCommit], in a test.
package storetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// lag is the longest time until List shows a change and Watch sends a hint. It allows for busy machines.
const lag = time.Minute

// Run runs the suite. Each test calls open once. open must return a store without tokens that stays usable
// until the test ends.
func Run(t *testing.T, open func(t *testing.T) tokens.Store) {
	run(t, func(t *testing.T) kind[tokens.Record] { return recordsOf(open(t)) })
	for name, test := range map[string]func(*testing.T, tokens.Store){
		"Empty": testEmpty, "Recent": testRecent, "Disable": testDisable, "HidesSecret": testHidesSecret, "Malformed": testMalformed,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want an error that wraps %q", what, err, want)
	}
}

// wantList waits until List shows exactly these records, and a cached Get shows each of them.
func wantList(t *testing.T, s tokens.Store, want ...tokens.Record) {
	t.Helper()
	slices.SortFunc(want, byID)
	ctx, cancel := context.WithTimeout(t.Context(), lag)
	defer cancel()
	hints := s.Watch(ctx)
	var got []tokens.Record
	for {
		select {
		case <-hints:
		case <-ctx.Done():
			t.Fatalf("%v after the last change List gives\n%+v\nwant\n%+v", lag, got, want)
		}
		var err error
		if got, err = s.List(t.Context()); err != nil {
			t.Fatalf("List: %v", err)
		}
		if slices.EqualFunc(got, want, same) {
			break
		}
	}
	for _, r := range want {
		wantFound(t, s, r)
	}
}

// wantFound waits until a cached Get shows this record. A cached Get may lag even if List does not.
func wantFound(t *testing.T, s tokens.Store, want tokens.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lag)
	defer cancel()
	hints := s.Watch(ctx)
	for {
		got, err := s.Get(t.Context(), want.Token.ID(), tokens.Cached)
		if err == nil && same(got, want) {
			return
		}
		select {
		case <-hints:
		case <-ctx.Done():
			t.Fatalf("%v after the last change the cached Get gives\n%+v, %v\nwant\n%+v", lag, got, err, want)
		}
	}
}

func byID(a, b tokens.Record) int {
	switch {
	case a.Token.ID() < b.Token.ID():
		return -1
	case a.Token.ID() > b.Token.ID():
		return 1
	}
	return 0
}
