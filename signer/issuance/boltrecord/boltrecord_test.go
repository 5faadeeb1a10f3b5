package boltrecord_test

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/boltrecord"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"
)

func open(t testing.TB, path string) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // the test may have closed it
	return s
}

func openRecord(t testing.TB) *boltrecord.Record {
	return boltrecord.New(open(t, filepath.Join(t.TempDir(), "kubejoin.db")).Issued())
}

func TestStore(t *testing.T) {
	issuancetest.Run(t, func(t *testing.T) issuance.Store { return openRecord(t) })
}

// The last entry of a page may be deleted before the next page is read.
func TestListContinuesAfterDeletedEntry(t *testing.T) {
	r := openRecord(t)
	issuancetest.Add(t, r, issuancetest.Issued(time.Now(), "a8", time.Hour), issuancetest.Issued(time.Now(), "a9", time.Hour))
	page, err := r.List(t.Context(), issuance.Query{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := issuancetest.List(t, r, issuance.Query{After: "7f" + page.Next[2:], Limit: 1}); !slices.Equal(got, []string{"a9"}) {
		t.Errorf("cursor newer than all entries: got %v, want a9", got)
	}
}

func TestEntryIsUnchangedAfterReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	at := time.Now().UTC()
	want := issuancetest.Issued(at, "1f", time.Hour)
	issuancetest.Add(t, boltrecord.New(s.Issued()), want, issuancetest.Refused(at, 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := boltrecord.New(s.Issued()).Append(t.Context(), want); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Append after Close = %v, want an error that names the file", err)
	}
	again := boltrecord.New(open(t, path).Issued())
	for _, serial := range []string{"1f", "00:1F"} {
		if got, err := again.Get(t.Context(), serial); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Get(%s) = %+v, %v\nwant %+v", serial, got, err, want)
		}
	}
	for serial, wanted := range map[string]error{"1": issuance.ErrNotFound, "f1": issuance.ErrNotFound, "x": nil} {
		if _, err := again.Get(t.Context(), serial); err == nil || wanted != nil && !errors.Is(err, wanted) {
			t.Errorf("Get(%s) = %v", serial, err)
		}
	}
}

// endsAtOnce is a context that ends after its first check.
type endsAtOnce struct {
	context.Context
	checks atomic.Int32
}

func (e *endsAtOnce) Err() error {
	if e.checks.Add(1) > 1 {
		return context.Canceled
	}
	return nil
}

// A search that finds nothing may walk a million entries: it stops when its client has left.
func TestListStopsWithItsContext(t *testing.T) {
	r := openRecord(t)
	var adding errgroup.Group
	adding.SetLimit(100)
	for i := range 1000 {
		adding.Go(func() error { return r.Append(t.Context(), issuancetest.Refused(time.Now(), i)) })
	}
	if err := adding.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.List(&endsAtOnce{Context: t.Context()}, issuance.Query{Node: "worker-9"}); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %v, want %v", err, context.Canceled)
	}
}

func TestDamagedRowIsReportedWithFile(t *testing.T) {
	for name, change := range map[string]func(tx *bbolt.Tx, key []byte) error{
		"row":    func(tx *bbolt.Tx, key []byte) error { return tx.Bucket([]byte("issued")).Put(key, []byte(`{"hunter2`)) },
		"no row": func(tx *bbolt.Tx, key []byte) error { return tx.Bucket([]byte("issued")).Delete(key) },
		"other row": func(tx *bbolt.Tx, key []byte) error {
			return tx.Bucket([]byte("issued")).Put(key, []byte(`{"outcome":"issued"}`))
		},
		"no such row": func(tx *bbolt.Tx, key []byte) error {
			return tx.Bucket([]byte("issued")).Put(key, []byte(`{"tokenID":"qwertz","serial":"1f"}`))
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "tokens.db")
			s := open(t, path)
			issuancetest.Add(t, boltrecord.New(s.Issued()), issuancetest.Issued(time.Now(), "1f", time.Hour))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(db.Update(func(tx *bbolt.Tx) error {
				key, _ := tx.Bucket([]byte("issued")).Cursor().First()
				return change(tx, slices.Clone(key))
			}), db.Close()); err != nil {
				t.Fatal(err)
			}
			record := boltrecord.New(open(t, path).Issued())
			_, err = record.List(t.Context(), issuance.Query{EndsAfter: time.Now()})
			if !errors.Is(err, boltstore.ErrDamaged) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("List = %v, want ErrDamaged that names the file", err)
			}
			if name == "row" && !strings.Contains(err.Error(), "unexpected end of JSON") {
				t.Errorf("List = %v, want the defect of the row", err)
			}
			if name == "no row" || name == "no such row" {
				if _, err := record.List(t.Context(), issuance.Query{EndsAfter: time.Now(), TokenID: "qwertz"}); !errors.Is(err, boltstore.ErrDamaged) {
					t.Errorf("List of a token = %v, want ErrDamaged", err)
				}
			}
			want := issuance.ErrNotFound
			if name == "no such row" {
				want = boltstore.ErrDamaged
			}
			if e, err := record.Get(t.Context(), "1f"); !errors.Is(err, want) {
				t.Errorf("Get = %+v, %v, want %v", e, err, want)
			}
		})
	}
}

// FuzzDecode decodes any row, or reports it as damaged.
func FuzzDecode(f *testing.F) {
	f.Add(int64(1795132800e9), []byte(`{"time":"2026-11-20T00:00:00Z","outcome":"refused"}`))
	f.Fuzz(func(t *testing.T, at int64, value []byte) {
		if _, err := boltrecord.Decode(boltstore.Row{Time: time.Unix(0, at), Value: value}); err != nil && !errors.Is(err, boltstore.ErrDamaged) {
			t.Errorf("got %v, want ErrDamaged", err)
		}
	})
}
