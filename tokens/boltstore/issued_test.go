package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"go.etcd.io/bbolt"
)

// issued is the entry of a certificate that was issued at a time.
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

func openIssued(t testing.TB) *boltstore.Issued {
	return open(t, filepath.Join(t.TempDir(), "tokens.db")).Issued()
}

func add(t testing.TB, s issuance.Log, entries ...issuance.Entry) {
	t.Helper()
	for _, e := range entries {
		if err := s.Append(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// list gives the serial numbers, or keys, of what matches.
func list(t testing.TB, s issuance.Store, q issuance.Query) []string {
	t.Helper()
	page, err := s.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range page.Entries {
		names = append(names, e.Serial+e.SPKI[:min(len(e.SPKI), 3)])
		if e.Outcome == issuance.Issued {
			names[len(names)-1] = e.Serial
		}
	}
	return names
}

func TestIssuedAsItWas(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	at := time.Now().UTC()
	want := issued(at, "1f", time.Hour)
	add(t, s.Issued(), want, refused(at, 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Issued().Append(t.Context(), want); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("Append after Close = %v, want an error that names the file", err)
	}
	again := open(t, path).Issued()
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

func TestIssuedList(t *testing.T) {
	s := openIssued(t)
	start := time.Now().Add(-10 * time.Hour)
	for i := range 10 { // of each hour one, and every third is refused
		e := issued(start.Add(time.Duration(i)*time.Hour), fmt.Sprintf("%x", 0xa0+i), time.Duration(100-10*i)*time.Hour)
		if i%3 == 2 {
			e = refused(e.Time, i)
		}
		if i == 4 {
			e.TokenID, e.Requester, e.Node, e.Signer = "", "system:node:worker-4", "worker-4", "example.com/x"
		}
		add(t, s, e)
	}
	hour := func(i int) time.Time { return start.Add(time.Duration(i) * time.Hour) }
	for name, test := range map[string]struct {
		q    issuance.Query
		want string
	}{
		"all, newest first":        {issuance.Query{}, "a9 8 a7 a6 5 a4 a3 2 a1 a0"},
		"of a token":               {issuance.Query{TokenID: "qwertz"}, "a9 a7 a6 a3 a1 a0"},
		"of no token":              {issuance.Query{TokenID: "wertz"}, ""},
		"of a node":                {issuance.Query{Node: "worker-1"}, "a9 a7 a6 a3 a1 a0"},
		"of a node that asked":     {issuance.Query{Node: "worker-4"}, "a4"},
		"of a part of a name":      {issuance.Query{Node: "4"}, ""},
		"refused":                  {issuance.Query{Outcome: issuance.Refused}, "8 5 2"},
		"of a signer":              {issuance.Query{Signer: "example.com/x"}, "a4"},
		"of a requester":           {issuance.Query{Requester: "system:node:worker-4"}, "a4"},
		"since":                    {issuance.Query{Since: hour(7)}, "a9 8 a7"},
		"since a moment later":     {issuance.Query{Since: hour(7).Add(1)}, "a9 8"},
		"two of them":              {issuance.Query{Since: hour(1), TokenID: "qwertz", Limit: 2}, "a9 a7"},
		"by end":                   {issuance.Query{EndsBefore: hour(200)}, "a9 a7 a6 a4 a3 a1 a0"},
		"by end, some":             {issuance.Query{EndsAfter: hour(19), EndsBefore: hour(73)}, "a7 a6 a4"},
		"by end, up to the end":    {issuance.Query{EndsAfter: hour(64)}, "a3 a1 a0"}, // a4 ends then
		"by end, and of a token":   {issuance.Query{EndsBefore: hour(73), TokenID: "qwertz"}, "a9 a7 a6"},
		"by end, and since":        {issuance.Query{EndsBefore: hour(200), Since: hour(3)}, "a9 a7 a6 a4 a3"},
		"by end, nothing":          {issuance.Query{EndsBefore: start}, ""},
		"refused, and by end":      {issuance.Query{EndsBefore: hour(200), Outcome: issuance.Refused}, ""},
		"before there was a clock": {issuance.Query{EndsAfter: time.Unix(-1e9, 0), Since: time.Unix(-1e9, 0)}, "a9 a7 a6 a4 a3 a1 a0"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := strings.Join(list(t, s, test.q), " "); got != test.want {
				t.Errorf("List gives %s, want %s", got, test.want)
			}
			// In pages of every size it is the same.
			if test.q.Limit > 0 {
				return
			}
			for size := 1; size < 4; size++ {
				var got []string
				q := test.q
				q.Limit = size
				for pages := 0; ; pages++ {
					page, err := s.List(t.Context(), q)
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
					t.Errorf("in pages of %d: %s, want %s", size, got, test.want)
				}
			}
		})
	}
	for _, after := range []string{"x", "00", strings.Repeat("0", 34), "8w4usg.qwertzuiopasdfgh"} {
		if _, err := s.List(t.Context(), issuance.Query{After: after}); !errors.Is(err, issuance.ErrCursor) {
			t.Errorf("List after %s: %v", after, err)
		}
	}
	// The entry that a page ended with may be gone by then.
	page, err := s.List(t.Context(), issuance.Query{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := list(t, s, issuance.Query{After: "7f" + page.Next[2:], Limit: 1}); !slices.Equal(got, []string{"a9"}) {
		t.Errorf("after one that is newer than all: %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, listErr := s.List(ctx, issuance.Query{})
	_, getErr := s.Get(ctx, "1f")
	for what, err := range map[string]error{"List": listErr, "Get": getErr, "Append": s.Append(ctx, issued(start, "1", time.Hour))} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a context that has ended: %v", what, err)
		}
	}
}

// What could not be found, or would never go, is refused.
func TestIssuedChecks(t *testing.T) {
	s := openIssued(t)
	now := time.Now()
	for name, e := range map[string]issuance.Entry{
		"no outcome":          {Time: now},
		"no time":             {Outcome: issuance.Failed},
		"a time of long ago":  {Time: now.AddDate(-1000, 0, 0), Outcome: issuance.Failed},
		"a time to come":      {Time: now.AddDate(1000, 0, 0), Outcome: issuance.Failed},
		"no serial":           issued(now, "", time.Hour),
		"serial in capitals":  issued(now, "1F", time.Hour),
		"issued without end":  {Time: now, Outcome: issuance.Issued, Serial: "1f"},
		"serial of 41 digits": issued(now, strings.Repeat("1", 41), time.Hour),
	} {
		if err := s.Append(t.Context(), e); err == nil {
			t.Errorf("%s: kept", name)
		}
	}
	// One that does not end in this millennium is kept, and the last to end.
	never := issued(now, "1f", time.Hour)
	never.NotAfter = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	add(t, s, never, issued(now, "2f", 1000*time.Hour))
	if got := strings.Join(list(t, s, issuance.Query{EndsAfter: now}), " "); got != "2f 1f" {
		t.Errorf("kept are %s", got)
	}
	if got := list(t, s, issuance.Query{EndsBefore: now.AddDate(100, 0, 0)}); len(got) != 1 {
		t.Errorf("within 100 years end %v", got)
	}
}

func TestIssuedRetention(t *testing.T) {
	s := openIssued(t)
	now := time.Now()
	s.SetNow(func() time.Time { return now })
	const day = 24 * time.Hour
	add(t, s,
		issued(now.Add(-100*day), "a1", 5*day), // ended 95 days ago
		issued(now.Add(-100*day), "a2", 20*day),
		issued(now.Add(-1000*day), "a3", 1001*day),
		issued(now.Add(-200*day), "a4", day),
		refused(now.Add(-31*day), 1), refused(now.Add(-29*day), 2), refused(now, 3))
	if got := strings.Join(list(t, s, issuance.Query{}), " "); got != "3 2 a2 a3" {
		t.Errorf("kept are %s, want what ended within 90 days or is to end, and refusals of 30 days", got)
	}
	now = now.Add(2 * day)
	add(t, s, issued(now, "a5", day))
	if got := strings.Join(list(t, s, issuance.Query{}), " "); got != "a5 3 a2 a3" {
		t.Errorf("two days later kept are %s", got)
	}
	now = now.Add(200 * day)
	for range 2 { // a few go with each
		add(t, s, issued(now, "a6", day))
	}
	if got := strings.Join(list(t, s, issuance.Query{}), " "); got != "a6 a6" {
		t.Errorf("200 days later kept are %s", got)
	}
	if got := list(t, s, issuance.Query{EndsBefore: now.Add(1000 * day)}); len(got) != 2 {
		t.Errorf("by their ends they are %s", got)
	}
}

// Refusals have a bound: anybody who may ask can be refused.
func TestIssuedMost(t *testing.T) {
	s := openIssued(t)
	now := time.Now()
	if err := s.AppendAll(func(yield func(issuance.Entry) bool) {
		for i := range boltstore.MaxUnissued {
			if !yield(refused(now.Add(time.Duration(i)), i)) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	oldest := func() string {
		entries := list(t, s, issuance.Query{After: fmt.Sprintf("%016x%016x", now.Add(3).UnixNano(), 1<<62)})
		return strings.Join(entries, " ")
	}
	if got := oldest(); got != "3 2 1 0" {
		t.Fatalf("the oldest are %s", got)
	}
	add(t, s, issued(now.Add(time.Minute), "1f", time.Hour))
	if got := oldest(); got != "3 2 1 0" {
		t.Errorf("after a certificate the oldest are %s", got)
	}
	add(t, s, refused(now.Add(time.Minute), 1), refused(now.Add(time.Minute), 2))
	if got := oldest(); got != "3 2" {
		t.Errorf("after two more refusals the oldest are %s", got)
	}
}

// Many at once share an fsync, and each is there.
func TestIssuedManyAtOnce(t *testing.T) {
	s := openIssued(t)
	var all sync.WaitGroup
	for lane := range 16 {
		all.Go(func() {
			for i := range 25 {
				if err := s.Append(t.Context(), issued(time.Now(), fmt.Sprintf("%x", 1+lane*100+i), time.Hour)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got := list(t, s, issuance.Query{Limit: issuance.MaxLimit})
	slices.Sort(got)
	if len(slices.Compact(got)) != 400 {
		t.Errorf("%d entries, want 400", len(got))
	}
}

func TestIssuedDamaged(t *testing.T) {
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
			add(t, s.Issued(), issued(time.Now(), "1f", time.Hour))
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			edit(t, path, func(tx *bbolt.Tx) error {
				key, _ := tx.Bucket([]byte("issued")).Cursor().First()
				return change(tx, slices.Clone(key))
			})
			record := open(t, path).Issued()
			_, err := record.List(t.Context(), issuance.Query{EndsAfter: time.Now()})
			if !errors.Is(err, boltstore.ErrDamaged) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("List = %v, want ErrDamaged that names the file", err)
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

// manyIssued has 100,000 certificates, of which every thousandth is of another token, and the last
// 50 end first.
func manyIssued(t testing.TB) *boltstore.Issued {
	s := openIssued(t)
	start := time.Now().Add(-time.Hour)
	err := s.AppendAll(func(yield func(issuance.Entry) bool) {
		for i := range 100_000 {
			e := issued(start.Add(time.Duration(i)*time.Millisecond), fmt.Sprintf("a%031x", i), 365*24*time.Hour)
			if i%1000 == 0 {
				e.TokenID, e.Requester = "asdfgh", "system:bootstrap:asdfgh"
			}
			if i >= 99_950 {
				e.NotAfter = start.Add(48 * time.Hour)
			}
			if !yield(e) {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func Test100000Issued(t *testing.T) {
	s := manyIssued(t)
	for name, test := range map[string]struct {
		q    issuance.Query
		want int
	}{
		"of a token":    {issuance.Query{TokenID: "asdfgh", Limit: issuance.MaxLimit}, 100},
		"of no token":   {issuance.Query{TokenID: "nonono"}, 0},
		"soon ending":   {issuance.Query{EndsAfter: time.Now(), EndsBefore: time.Now().Add(30 * 24 * time.Hour)}, 50},
		"of no node":    {issuance.Query{Node: "worker-9"}, 0},
		"newest":        {issuance.Query{}, issuance.DefaultLimit},
		"most":          {issuance.Query{Limit: 1_000_000}, issuance.MaxLimit},
		"none was that": {issuance.Query{Outcome: issuance.Refused}, 0},
	} {
		began := time.Now()
		if got := list(t, s, test.q); len(got) != test.want {
			t.Errorf("%s: %d, want %d", name, len(got), test.want)
		}
		t.Logf("%s: %s", name, time.Since(began))
		if took := time.Since(began); took > 10*time.Second { // a busy machine; usually 0.1 s
			t.Errorf("%s takes %s", name, took)
		}
	}
	began := time.Now()
	if e, err := s.Get(t.Context(), "a"+strings.Repeat("0", 31)); err != nil || e.TokenID != "asdfgh" {
		t.Errorf("the first is %+v, %v", e, err)
	}
	t.Logf("get of the oldest: %s", time.Since(began))
}

func BenchmarkIssued100000(b *testing.B) {
	s := manyIssued(b)
	for name, q := range map[string]issuance.Query{
		"of-a-token": {TokenID: "asdfgh", Limit: issuance.MaxLimit}, "ends": {EndsAfter: time.Now(), EndsBefore: time.Now().Add(time.Hour * 720)},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				list(b, s, q)
			}
		})
	}
}

func BenchmarkAppendIssued(b *testing.B) {
	for _, workers := range []int{1, 16} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			s := openIssued(b)
			work := make(chan issuance.Entry)
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for e := range work {
						if err := s.Append(context.Background(), e); err != nil {
							b.Error(err)
						}
					}
				})
			}
			i := 0
			for b.Loop() {
				i++
				work <- issued(time.Now(), fmt.Sprintf("%x", i), time.Hour)
			}
			close(work)
			all.Wait()
		})
	}
}

// FuzzDecodeEntry: whatever is in a row, it is read or called damaged.
func FuzzDecodeEntry(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), []byte(`{"time":"2026-11-20T00:00:00Z","outcome":"refused"}`))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if _, err := boltstore.DecodeEntry(key, value); err != nil && !errors.Is(err, boltstore.ErrDamaged) {
			t.Errorf("%v is not ErrDamaged", err)
		}
	})
}

// The record grows by what an entry has.
func TestIssuedSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.db")
	s := open(t, path)
	if err := s.Issued().AppendAll(func(yield func(issuance.Entry) bool) {
		for i := range 20_000 {
			if !yield(issued(time.Now(), fmt.Sprintf("%x", i+1), time.Hour)) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if each := info.Size() / 20_000; each > 4<<10 {
		t.Errorf("an entry takes %d bytes", each)
	} else {
		t.Logf("an entry takes %d bytes", each)
	}
}
