package rowrecord_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func openFile(t testing.TB, path string) *boltstore.Store {
	t.Helper()
	s := must.Value(boltstore.Open(path))(t)
	t.Cleanup(func() { _ = s.Close() }) // the test may have closed it
	return s
}

func TestStoreInFile(t *testing.T) {
	issuancetest.Run(t, func(t *testing.T) issuance.Store {
		return rowrecord.New(openFile(t, filepath.Join(t.TempDir(), "kubejoin.db")).Issued())
	})
}

func TestStoreInEtcd(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	issuancetest.Run(t, func(t *testing.T) issuance.Store { return rowrecord.NewWithoutCertificates(c.Store(t).Issued()) })
}

func TestStoreInMemory(t *testing.T) {
	issuancetest.Run(t, func(*testing.T) issuance.Store { return rowrecord.New(memdb.Open().Issued()) })
}

// Get must return the complete entry for its serial number in any form.
func TestGetReturnsEntry(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	file := openFile(t, path)
	want := issuancetest.Issued(time.Now().UTC(), "1f", time.Hour)
	want.Fingerprint = "sha256:" + strings.Repeat("b2", 32)
	issuancetest.Add(t, rowrecord.New(file.Issued()), want, issuancetest.Refused(time.Now(), 1))
	must.OK(t, file.Close())
	if err := rowrecord.New(file.Issued()).Append(t.Context(), want); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Append after Close = %v, want an error that names the file", err)
	}
	compact := rowrecord.NewWithoutCertificates(memdb.Open().Issued())
	issuancetest.Add(t, compact, want, issuancetest.Refused(time.Now(), 1))
	for certificate, r := range map[string]*rowrecord.Record{want.Certificate: rowrecord.New(openFile(t, path).Issued()), "": compact} {
		want.Certificate = certificate
		for _, serial := range []string{"1f", "00:1F"} {
			if got, err := r.Get(t.Context(), serial); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("Get(%s) = %+v, %v\nwant %+v", serial, got, err, want)
			}
		}
		for serial, wanted := range map[string]error{"1": issuance.ErrNotFound, "f1": issuance.ErrNotFound, "x": nil} {
			if _, err := r.Get(t.Context(), serial); err == nil || wanted != nil && !errors.Is(err, wanted) {
				t.Errorf("Get(%s) = %v", serial, err)
			}
		}
	}
}

// The last entry of a page may be deleted before the next page is read.
func TestListContinuesAfterDeletedEntry(t *testing.T) {
	r := rowrecord.New(memdb.Open().Issued())
	issuancetest.Add(t, r, issuancetest.Issued(time.Now(), "a8", time.Hour), issuancetest.Issued(time.Now(), "a9", time.Hour))
	page := must.Value(r.List(t.Context(), issuance.Query{Limit: 1}))(t)
	if got := issuancetest.List(t, r, issuance.Query{After: "00" + page.Next[2:], Limit: 1}); !slices.Equal(got, []string{"a9"}) {
		t.Errorf("cursor newer than all entries: got %v, want a9", got)
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

// A search without matches may read a million entries. It must stop when its client disconnects.
func TestListStopsWithItsContext(t *testing.T) {
	r := rowrecord.New(memdb.Open().Issued())
	for i := range 1000 {
		issuancetest.Add(t, r, issuancetest.Refused(time.Now(), i))
	}
	if _, err := r.List(&endsAtOnce{Context: t.Context()}, issuance.Query{Signer: "none"}); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %v, want %v", err, context.Canceled)
	}
}

// A value that kubejoin did not write must cause an error that names its place and not its content.
func TestReportsDamagedEntry(t *testing.T) {
	for name, value := range map[string]string{
		"not JSON": `{"hunter2`, "unknown field": `{"hunter2":1}`, "invalid": `{"outcome":"hunter2"}`, "missing": "",
		"more data": `{"time":"2026-11-20T00:00:00Z","outcome":"failed"}{"hunter2":1}`,
	} {
		db := &memdb.DB{}
		r := rowrecord.New(rowstore.New(db).Issued())
		issuancetest.Add(t, r, issuancetest.Issued(time.Now(), "1f", time.Hour))
		var key string
		must.OK(t, db.Scan(t.Context(), rowstore.Range{From: "issued/", To: "issued0"}, func(row rowstore.Row) error { key = row.Key; return nil }))
		change := rowstore.Change{Key: key, Value: []byte(value)}
		if value == "" {
			change.Value = nil
		}
		must.Value(db.Commit(t.Context(), nil, []rowstore.Change{change}))(t)
		_, getErr := r.Get(t.Context(), "1f")
		_, listErr := r.List(t.Context(), issuance.Query{EndsAfter: time.Now()})
		_, nodeErr := r.List(t.Context(), issuance.Query{Node: "worker-1"})
		for what, err := range map[string]error{"Get": getErr, "List by end": listErr, "List of a node": nodeErr} {
			if !errors.Is(err, memdb.ErrDamaged) || !strings.Contains(err.Error(), key[len("issued/"):]) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%s: %s = %v, want an error that names %s", name, what, err, key)
			}
		}
	}
}

// Sweep deletes the entries that are due with all their rows, and nothing else.
func TestSweepDeletesEntriesThatAreDue(t *testing.T) {
	c := etcd.ForTest(t, etcd.Options{})
	rows := c.StoreAt(t, "/sweep").Issued()
	r := rowrecord.NewWithoutCertificates(rows)
	now := time.Now()
	for i := range 40 {
		issuancetest.Add(t, r, issuancetest.Issued(now.Add(-100*time.Hour), fmt.Sprintf("a%02x", i), 10*time.Hour), issuancetest.Refused(now.Add(-31*24*time.Hour), i))
	}
	issuancetest.Add(t, r, issuancetest.Issued(now.Add(-100*time.Hour), "b1", 60*time.Hour), issuancetest.Refused(now.Add(-29*24*time.Hour), 99))
	out, err := rows.Sweep(t.Context(), now, 50*time.Hour)
	if err != nil || out.Deleted != 80 || out.Dropped != 0 {
		t.Errorf("Sweep = %+v, %v, want 80 deleted and none early", out, err)
	}
	if got := issuancetest.List(t, r, issuance.Query{}); !slices.Equal(got, []string{"b1", "99"}) {
		t.Errorf("got entries %v, want b1 and 99", got)
	}
	left, err := c.Client().Get(t.Context(), "/sweep/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(left.Kvs) != 5+4+1 { // entry, node, token, serial, end; entry, node, outcome, time; schema
		t.Errorf("got %d keys, %v, want 10:\n%v", len(left.Kvs), err, left.Kvs)
	}
}

// FuzzDecode decodes any value, or returns an error.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"time":"2026-11-20T00:00:00Z","outcome":"refused"}`))
	f.Add([]byte(`{"hunter2`))
	f.Fuzz(func(t *testing.T, value []byte) {
		if e, row, err := rowrecord.Decode(value, true); err == nil && (e.Check() != nil || !row.Time.Equal(e.Time) || row.Value == nil) {
			t.Errorf("%q is read as %+v with row %+v", value, e, row)
		}
	})
}
