package rowlist_test

import (
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/revocationtest"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

func TestStore(t *testing.T) {
	revocationtest.Run(t, func(t *testing.T) revocation.Store {
		s := must.Value(boltstore.Open(filepath.Join(t.TempDir(), "kubejoin.db")))(t)
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return rowlist.New(s.Revocations())
	})
}

func TestStoreOfRows(t *testing.T) {
	revocationtest.Run(t, func(*testing.T) revocation.Store { return rowlist.New(memdb.Open().Revocations()) })
}

func TestStoreInEtcd(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	revocationtest.Run(t, func(t *testing.T) revocation.Store { return rowlist.New(c.Store(t).Revocations()) })
}

// Catches revocations that are lost at a restart.
func TestSurvivesRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubejoin.db")
	for n := range 2 {
		s, err := boltstore.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		g := revocation.Guard{Store: rowlist.New(s.Revocations())}
		if n == 0 {
			_, err = g.Revoke(t.Context(), revocation.Entry{Node: "worker-1"})
		} else if bars, barsErr := g.Revoked(t.Context(), revocation.Subject{Node: "worker-1"}); bars == nil || barsErr != nil {
			t.Errorf("after a restart: got %+v, %v, want the entry", bars, barsErr)
		}
		if err != nil {
			t.Fatal(err)
		}
		must.OK(t, s.Close())
	}
}
