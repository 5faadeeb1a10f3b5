package boltrecord_test

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

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/boltrecord"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"go.etcd.io/bbolt"
	"golang.org/x/sync/errgroup"
)

// issued returns the entry of a certificate that was issued at the given time.
func issued(at time.Time, serial string, lifetime time.Duration) issuance.Entry {
	return issuance.Entry{
		Time: at, Outcome: issuance.Issued, Signer: "kubernetes.io/kube-apiserver-client-kubelet", Requester: "system:bootstrap:qwertz", TokenID: "qwertz",
		Node: "worker-1", Subject: "CN=system:node:worker-1,O=system:nodes", Usages: []string{"digital signature", "client auth"},
		SPKI: "sha256:" + strings.Repeat("a1", 32), Serial: serial, NotBefore: at.Add(-5 * time.Minute), NotAfter: at.Add(lifetime),
		Certificate: "-----BEGIN CERTIFICATE-----\n" + strings.Repeat("MIIB", 200) + "\n-----END CERTIFICATE-----\n", Approver: "kubejoin", Rule: "nodeclient",
		Evidence: []string{`"system:bootstrap:qwertz" may create certificatesigningrequests/nodeclient`},
	}
}

func refused(at time.Time, n int) issuance.Entry {
	return issuance.Entry{Time: at, Outcome: issuance.Refused, Signer: "kubernetes.io/kubelet-serving", Requester: "system:node:worker-2", Node: "worker-2", SPKI: fmt.Sprint(n), Reason: "Bad", Message: "not today"}
}

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

func add(t testing.TB, r *boltrecord.Record, entries ...issuance.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := r.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// list returns the serial numbers of matching certificates, and the SPKI of other entries.
func list(t testing.TB, r *boltrecord.Record, q issuance.Query) []string {
	t.Helper()
	page, err := r.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range page.Entries {
		if e.Outcome == issuance.Issued {
			names = append(names, e.Serial)
		} else {
			names = append(names, e.SPKI)
		}
	}
	return names
}

func TestEntryIsUnchangedAfterReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	at := time.Now().UTC()
	want := issued(at, "1f", time.Hour)
	add(t, boltrecord.New(s.Issued()), want, refused(at, 1))
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

func TestListFiltersSortsAndPages(t *testing.T) {
	r := openRecord(t)
	start := time.Now().Add(-10 * time.Hour)
	for i := range 10 { // one entry an hour, every third one refused
		e := issued(start.Add(time.Duration(i)*time.Hour), fmt.Sprintf("%x", 0xa0+i), time.Duration(100-10*i)*time.Hour)
		if i%3 == 2 {
			e = refused(e.Time, i)
		}
		if i == 4 {
			e.TokenID, e.Requester, e.Node, e.Signer = "", "system:node:worker-4", "worker-4", "example.com/x"
		}
		add(t, r, e)
	}
	hour := func(i int) time.Time { return start.Add(time.Duration(i) * time.Hour) }
	for name, test := range map[string]struct {
		q    issuance.Query
		want string
	}{
		"all, newest first":      {issuance.Query{}, "a9 8 a7 a6 5 a4 a3 2 a1 a0"},
		"of a token":             {issuance.Query{TokenID: "qwertz"}, "a9 a7 a6 a3 a1 a0"},
		"of no token":            {issuance.Query{TokenID: "wertz"}, ""},
		"of a node":              {issuance.Query{Node: "worker-1"}, "a9 a7 a6 a3 a1 a0"},
		"of a requesting node":   {issuance.Query{Node: "worker-4"}, "a4"},
		"of a part of a name":    {issuance.Query{Node: "4"}, ""},
		"refused":                {issuance.Query{Outcome: issuance.Refused}, "8 5 2"},
		"of a signer":            {issuance.Query{Signer: "example.com/x"}, "a4"},
		"of a requester":         {issuance.Query{Requester: "system:node:worker-4"}, "a4"},
		"since":                  {issuance.Query{Since: hour(7)}, "a9 8 a7"},
		"since a moment later":   {issuance.Query{Since: hour(7).Add(1)}, "a9 8"},
		"two of them":            {issuance.Query{Since: hour(1), TokenID: "qwertz", Limit: 2}, "a9 a7"},
		"by end":                 {issuance.Query{EndsBefore: hour(200)}, "a9 a7 a6 a4 a3 a1 a0"},
		"by end, some":           {issuance.Query{EndsAfter: hour(19), EndsBefore: hour(73)}, "a7 a6 a4"},
		"by end, up to the end":  {issuance.Query{EndsAfter: hour(64)}, "a3 a1 a0"}, // a4 ends at that time
		"by end, and of a token": {issuance.Query{EndsBefore: hour(73), TokenID: "qwertz"}, "a9 a7 a6"},
		"by end, and since":      {issuance.Query{EndsBefore: hour(200), Since: hour(3)}, "a9 a7 a6 a4 a3"},
		"by end, nothing":        {issuance.Query{EndsBefore: start}, ""},
		"refused, and by end":    {issuance.Query{EndsBefore: hour(200), Outcome: issuance.Refused}, ""},
		"negative times":         {issuance.Query{EndsAfter: time.Unix(-1e9, 0), Since: time.Unix(-1e9, 0)}, "a9 a7 a6 a4 a3 a1 a0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(list(t, r, test.q), " "); got != test.want {
				t.Errorf("List = %s, want %s", got, test.want)
			}
			// Pages of any size give the same entries.
			if test.q.Limit > 0 {
				return
			}
			for size := 1; size < 4; size++ {
				var got []string
				q := test.q
				q.Limit = size
				for pages := 0; ; pages++ {
					page, err := r.List(t.Context(), q)
					if err != nil || pages > 10 || len(page.Entries) > size || page.Next != "" && len(page.Entries) < size {
						t.Fatalf("page %d of size %d: %d entries, next %s, %v", pages, size, len(page.Entries), page.Next, err)
					}
					for _, e := range page.Entries {
						if e.Outcome == issuance.Refused {
							e.Serial = e.SPKI
						}
						got = append(got, e.Serial)
					}
					if q.After = page.Next; q.After == "" {
						break
					}
				}
				if strings.Join(got, " ") != test.want {
					t.Errorf("in pages of %d: got %s, want %s", size, got, test.want)
				}
			}
		})
	}
	for _, after := range []string{"x", "00", strings.Repeat("0", 34), "8w4usg.qwertzuiopasdfgh"} {
		if _, err := r.List(t.Context(), issuance.Query{After: after}); !errors.Is(err, issuance.ErrCursor) {
			t.Errorf("List after %s: got %v, want ErrCursor", after, err)
		}
	}
	// The last entry of a page may be deleted before the next page is read.
	page, err := r.List(t.Context(), issuance.Query{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, r, issuance.Query{After: "7f" + page.Next[2:], Limit: 1}); !slices.Equal(got, []string{"a9"}) {
		t.Errorf("cursor newer than all entries: got %v, want a9", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, listErr := r.List(ctx, issuance.Query{})
	_, getErr := r.Get(ctx, "1f")
	for what, err := range map[string]error{"List": listErr, "Get": getErr, "Append": r.Append(ctx, issued(start, "1", time.Hour))} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a canceled context: got %v", what, err)
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
		adding.Go(func() error { return r.Append(t.Context(), refused(time.Now(), i)) })
	}
	if err := adding.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.List(&endsAtOnce{Context: t.Context()}, issuance.Query{Node: "worker-9"}); !errors.Is(err, context.Canceled) {
		t.Errorf("List = %v, want %v", err, context.Canceled)
	}
}

// Append refuses entries that no query would find or that would never expire.
func TestAppendRefusesInvalidEntries(t *testing.T) {
	r := openRecord(t)
	now := time.Now()
	for name, e := range map[string]issuance.Entry{
		"no outcome":                 {Time: now},
		"no time":                    {Outcome: issuance.Failed},
		"time in the distant past":   {Time: now.AddDate(-1000, 0, 0), Outcome: issuance.Failed},
		"time in the distant future": {Time: now.AddDate(1000, 0, 0), Outcome: issuance.Failed},
		"no serial":                  issued(now, "", time.Hour),
		"serial in capitals":         issued(now, "1F", time.Hour),
		"issued without end":         {Time: now, Outcome: issuance.Issued, Serial: "1f"},
		"serial of 41 digits":        issued(now, strings.Repeat("1", 41), time.Hour),
	} {
		if err := r.Append(t.Context(), e); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
	// A certificate without a real end is kept and sorted last.
	never := issued(now, "1f", time.Hour)
	never.NotAfter = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	add(t, r, never, issued(now, "2f", 1000*time.Hour))
	if got := strings.Join(list(t, r, issuance.Query{EndsAfter: now}), " "); got != "2f 1f" {
		t.Errorf("got %s, want 2f 1f", got)
	}
	if got := list(t, r, issuance.Query{EndsBefore: now.AddDate(100, 0, 0)}); len(got) != 1 {
		t.Errorf("end within 100 years: got %v, want one", got)
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
			add(t, boltrecord.New(s.Issued()), issued(time.Now(), "1f", time.Hour))
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
