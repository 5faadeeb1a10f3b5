package etcdstore_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestStore(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	storetest.Run(t, func(t *testing.T) tokens.Store { return c.Store(t) })
}

func TestClaims(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	storetest.RunClaims(t, func(t *testing.T) tokens.Claims { return c.Store(t).Claims() })
}

func TestCommit(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	storetest.RunCommit(t, func(t *testing.T) (tokens.Store, tokens.Claims) {
		s := c.Store(t)
		return s, s.Claims()
	})
}

// Catches an invalid version that the store treats as "there is no row".
func TestInvalidVersionIsConflict(t *testing.T) {
	s := etcd.ForTest(t, etcd.Options{}).Store(t)
	r := must.Value(s.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t)
	before := tokens.Claim{Node: "worker-1", TokenID: r.Token.ID(), TokenUID: r.UID, Version: "x"}
	after := before
	after.NodeUID = "u"
	if _, err := s.Claims().Commit(t.Context(), r, r, []tokens.ClaimChange{{Before: before, After: after}}); !errors.Is(err, tokens.ErrConflict) {
		t.Errorf("got %v, want %v", err, tokens.ErrConflict)
	}
}

// Catches an incomplete copy that reports ready, and an empty leader name instead of an error.
func TestReportsIncompleteCopyAndMissingLeader(t *testing.T) {
	s := etcd.ForTest(t, etcd.Options{}).Store(t)
	if leader, err := s.Leader(t.Context()); !errors.Is(err, etcdstore.ErrNoLeader) {
		t.Errorf("got leader %q, %v, want %v", leader, err, etcdstore.ErrNoLeader)
	}
	must.OK(t, s.Begin(t.Context()))
	if err := s.Ready(t.Context()); !errors.Is(err, etcdstore.ErrIncomplete) {
		t.Errorf("got %v, want %v", err, etcdstore.ErrIncomplete)
	}
}

// Catches a cache that gets a claim before its index row: a caller that got a hint would miss the claim until the next hint.
func TestCacheHasClaimAndItsIndexAtOnce(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	writer, reader := c.StoreAt(t, "/index").Claims(), c.StoreAt(t, "/index").Claims()
	for i := range 50 {
		node := "worker-" + strconv.Itoa(i)
		hints := reader.Watch(t.Context())
		must.Value(storetest.CreateClaim(t.Context(), writer, tokens.Claim{Node: node, TokenID: "abc123", TokenUID: "u"}))(t)
		_, err := reader.Get(t.Context(), node, tokens.Cached)
		for ; errors.Is(err, tokens.ErrNotFound); _, err = reader.Get(t.Context(), node, tokens.Cached) {
			<-hints
		}
		if held, heldErr := reader.HeldBy(t.Context(), "abc123", tokens.Cached); err != nil || heldErr != nil || len(held) != i+1 {
			t.Fatalf("%s: cached Get = %v, cached HeldBy = %d claims, %v, want %d", node, err, len(held), heldErr, i+1)
		}
	}
}

// Catches a cache whose first list is older than a row that the cache has already read from etcd.
func TestCacheListsNothingOlderThanItsReads(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	for i := range 30 { // the reader lists at the same time
		prefix := "/older/" + strconv.Itoa(i)
		writer := c.StoreAt(t, prefix).Claims()
		reader := c.StoreAt(t, prefix).Claims()
		must.Value(storetest.CreateClaim(t.Context(), writer, tokens.Claim{Node: "worker-1", TokenID: "abc123", TokenUID: "u"}))(t)
		seen := false
		for range 200 {
			_, err := reader.Get(t.Context(), "worker-1", tokens.Cached)
			if seen && err != nil {
				t.Fatalf("reader %d: got %v after it had found the claim", i, err)
			}
			seen = seen || err == nil
		}
	}
}

// Only some folders have a mirror. Catches a cache that returns no rows of the issuance record, or panics.
func TestCacheReadsFoldersWithoutMirror(t *testing.T) {
	s := etcd.ForTest(t, etcd.Options{}).Store(t)
	db := s.DB()
	for _, folder := range []string{"issued/", "issued-by/", "unissued/"} {
		must.OK(t, db.Append(t.Context(), []rowstore.Change{{Key: folder + "x", Value: []byte("y")}}))
		rows, err := db.Cached().Get(t.Context(), folder+"x")
		scanned := 0
		scanErr := db.Cached().Scan(t.Context(), rowstore.Range{From: folder, To: folder + "z"}, func(rowstore.Row) error { scanned++; return nil })
		if err != nil || scanErr != nil || len(rows) != 1 || string(rows[0].Value) != "y" || scanned != 1 {
			t.Errorf("%s: Get = %+v, %v, Scan visits %d rows, %v, want one", folder, rows, err, scanned, scanErr)
		}
		db.Watch(t.Context(), folder)
	}
}

// If etcd has compacted the revision that a check reads, the error must say what to do.
func TestViewOfCompactedRevision(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	db := c.Store(t).DB()
	add := func(key string) {
		t.Helper()
		must.OK(t, db.Append(t.Context(), []rowstore.Change{{Key: "issued/" + key, Value: []byte("x")}}))
	}
	add("a")
	err := db.View(t.Context(), nil, func(r rowstore.Reader) error {
		if _, err := r.Count(t.Context(), "issued/"); err != nil {
			return err
		}
		add("b")
		now, err := c.Client().Get(t.Context(), "/")
		if err != nil {
			return err
		}
		if _, err := c.Client().Compact(t.Context(), now.Header.Revision); err != nil {
			return err
		}
		_, err = r.Count(t.Context(), "issued/")
		return err
	})
	if !errors.Is(err, rpctypes.ErrCompacted) || !strings.Contains(err.Error(), "repeat it") {
		t.Errorf("View = %v, want %v and what to do", err, rpctypes.ErrCompacted)
	}
}

// Catches a read that fails because one member of etcd has just stopped. etcd's client retries only reads of one key or range.
func TestRetriesReadOfSeveralKeys(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	network := must.Value(c.Network())(t)
	t.Cleanup(network.Close)
	f := must.Value(c.Faults(network, "root", 1, 0))(t)
	t.Cleanup(f.Close)
	config := c.StoreConfig(t, "/retry")
	config.Endpoints, config.NoCache = f.Endpoints(), true
	s := must.Value(etcdstore.Open(t.Context(), config))(t)
	t.Cleanup(func() { _ = s.Close() }) // only reads follow
	for _, node := range []string{"worker-1", "worker-2"} {
		must.Value(storetest.CreateClaim(t.Context(), s.Claims(), tokens.Claim{Node: node, TokenID: "abc123", TokenUID: "u"}))(t)
	}
	f.FailTransactions(1)
	if held, err := s.Claims().HeldBy(t.Context(), "abc123", tokens.Live); err != nil || len(held) != 2 {
		t.Errorf("after one failure: HeldBy = %+v, %v, want two claims", held, err)
	}
	f.FailTransactions(1)
	if _, err := s.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())); !errors.Is(err, etcdstore.ErrUnavailable) {
		t.Errorf("Create = %v, want %v: a write may have been made", err, etcdstore.ErrUnavailable)
	}
}
