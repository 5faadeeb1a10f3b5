package memdb_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) tokens.Store { return memdb.Open() })
}

func TestClaims(t *testing.T) {
	storetest.RunClaims(t, func(*testing.T) tokens.Claims { return memdb.Open().Claims() })
}

func TestCommit(t *testing.T) {
	storetest.RunCommit(t, func(*testing.T) (tokens.Store, tokens.Claims) {
		s := memdb.Open()
		return s, s.Claims()
	})
}

// Catches listeners that wake up for each change of another folder.
func TestSendsHintsOfOneFolder(t *testing.T) {
	db := &memdb.DB{}
	a, b := db.Watch(t.Context(), "a/"), db.Watch(t.Context(), "b/")
	<-a
	<-b
	must.Value(db.Commit(t.Context(), nil, []rowstore.Change{{Key: "a/1", Value: []byte("x")}}))(t)
	if len(a) != 1 || len(b) != 0 {
		t.Errorf("got %d hints for a/ and %d for b/, want one for a/", len(a), len(b))
	}
}
