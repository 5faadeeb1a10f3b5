package etcdstore_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func TestStore(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	storetest.Run(t, func(t *testing.T) tokens.Store { return c.Store(t) })
}

func TestClaims(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	storetest.RunClaims(t, func(t *testing.T) tokens.Claims { return c.Store(t).Claims() })
}

func TestCounter(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	storetest.RunCounter(t, func(t *testing.T) (tokens.Store, tokens.Counter) {
		s := c.Store(t)
		return s, s.Claims()
	})
}

// Catches a version that etcd cannot have, and that counts as "there is no row".
func TestInvalidVersionIsConflict(t *testing.T) {
	s := etcd.ForTest(t, etcd.Options{}).Store(t)
	r, err := s.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	before := tokens.Claim{Node: "worker-1", TokenID: r.Token.ID(), TokenUID: r.UID, Version: "x"}
	if _, err := s.Claims().Commit(t.Context(), r, r, []tokens.ClaimChange{{Before: before, After: before}}); !errors.Is(err, tokens.ErrConflict) {
		t.Errorf("got %v, want %v", err, tokens.ErrConflict)
	}
}

// Catches a cache that has a claim before the index has it: a caller that got a hint would miss the claim until the next.
func TestCacheHasClaimAndItsIndexAtOnce(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	writer, reader := c.StoreAt(t, "/index").Claims(), c.StoreAt(t, "/index").Claims()
	for i := range 50 {
		node := "worker-" + strconv.Itoa(i)
		hints := reader.Watch(t.Context())
		if _, err := writer.Create(t.Context(), tokens.Claim{Node: node, TokenID: "abc123", TokenUID: "u"}); err != nil {
			t.Fatal(err)
		}
		_, err := reader.Find(t.Context(), node)
		for ; errors.Is(err, tokens.ErrNotFound); _, err = reader.Find(t.Context(), node) {
			<-hints
		}
		if held, heldErr := reader.OfToken(t.Context(), "abc123"); err != nil || heldErr != nil || len(held) != i+1 {
			t.Fatalf("%s: Find = %v, OfToken = %d claims, %v, want %d", node, err, len(held), heldErr, i+1)
		}
	}
}
