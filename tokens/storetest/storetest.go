// Package storetest is the conformance suite for implementations of [tokens.Store] and [tokens.Claims]. It
// tests what the documentation of these interfaces promises. Every implementation should call [Run], or [RunClaims] and
// [RunCommit], in a test.
package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// lag is how long it may take after a change until List shows it and Watch sends a hint, on a busy machine.
const lag = time.Minute

// Run runs the suite. Each test calls open once. open must return a store without tokens that stays usable
// until the test ends.
func Run(t *testing.T, open func(t *testing.T) tokens.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, tokens.Store)
	}{
		{"Empty", testEmpty},
		{"Create", testCreate},
		{"CreateExists", testCreateExists},
		{"CreateRefuses", testCreateRefuses},
		{"CreateAtOnce", testCreateAtOnce},
		{"KeepsFields", testKeepsFields},
		{"List", testList},
		{"Recent", testRecent},
		{"Update", testUpdate},
		{"Disable", testDisable},
		{"UpdateFails", testUpdateFails},
		{"UpdateRefuses", testUpdateRefuses},
		{"UpdateStartsOver", testUpdateStartsOver},
		{"UpdateAtOnce", testUpdateAtOnce},
		{"Delete", testDelete},
		{"DeleteOther", testDeleteOther},
		{"DeleteAtOnce", testDeleteAtOnce},
		{"Copies", testCopies},
		{"Malformed", testMalformed},
		{"Canceled", testCanceled},
		{"Watch", testWatch},
		{"WatchEnds", testWatchEnds},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
}

// sample returns a record with a new token and all fields set.
func sample() tokens.Record {
	return tokens.Record{
		Token:          tokens.Generate(),
		Expires:        time.Now().Add(time.Hour).UTC().Truncate(time.Second),
		Signing:        true,
		Authentication: true,
		Groups:         []string{"system:bootstrappers:b", tokens.DefaultGroup},
		Description:    "for the rack in the cellar",
		Limits: tokens.Limits{
			MaxNodes: 3, NodeNames: []string{"worker-*", "db.example"},
			CertificateDuration: 8 * time.Hour, Role: tokens.RoleControlPlane, Rejoin: tokens.RejoinDeny,
		},
		Nodes:   []string{"worker-2", "worker-1"},
		Marks:   map[string]string{"worker-1": "-"},
		Creator: tokens.CreatorOf("ada"),
	}
}

func create(t *testing.T, s tokens.Store, r tokens.Record) tokens.Record {
	t.Helper()
	got, err := s.Create(t.Context(), r)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return got
}

func get(t *testing.T, s tokens.Store, id string) tokens.Record {
	t.Helper()
	r, err := s.Get(t.Context(), id)
	if err != nil {
		t.Fatalf("Get: %v", err)
	}
	return r
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want an error that wraps %q", what, err, want)
	}
}

func wantSame(t *testing.T, what string, got, want tokens.Record) {
	t.Helper()
	if !same(got, want) {
		t.Errorf("%s gives\n%+v\nwant\n%+v", what, got, want)
	}
}

// same reports whether all fields are equal, including the secret. Both records must be as a store returns
// them, because times are equal only with the same location.
func same(a, b tokens.Record) bool {
	return a.Token.Equal(b.Token) && a.Expires == b.Expires && a.Signing == b.Signing &&
		a.Authentication == b.Authentication && slices.Equal(a.Groups, b.Groups) &&
		a.Description == b.Description && a.Limits.Equal(b.Limits) && slices.Equal(a.Nodes, b.Nodes) && maps.Equal(a.Marks, b.Marks) && a.Creator == b.Creator && a.Problem == b.Problem && //nolint:errorlint // nil in both
		a.Created == b.Created && a.UID == b.UID && a.Version == b.Version
}

// wantList waits until List shows exactly these records, and Find each of them.
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

// wantFound waits until Find shows this record. Find may lag even if List does not.
func wantFound(t *testing.T, s tokens.Store, want tokens.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lag)
	defer cancel()
	hints := s.Watch(ctx)
	for {
		got, err := s.Find(t.Context(), want.Token.ID())
		if err == nil && same(got, want) {
			return
		}
		select {
		case <-hints:
		case <-ctx.Done():
			t.Fatalf("%v after the last change Find gives\n%+v, %v\nwant\n%+v", lag, got, err, want)
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
