package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/issuance/issuancetest"
	"github.com/kubejoin/kubejoin/signer/issuance/rowrecord"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

func openNew(t testing.TB) *boltstore.Store { return open(t, filepath.Join(t.TempDir(), "tokens.db")) }

func add(t testing.TB, s *rowstore.Issued, entries ...issuance.Entry) {
	t.Helper()
	issuancetest.Add(t, rowrecord.New(s), entries...)
}

// appendAll adds many entries in one transaction.
func appendAll(s *boltstore.Store, entries iter.Seq[issuance.Entry]) error {
	return s.Appends(func(db rowstore.DB) (err error) {
		r := rowrecord.New(rowstore.New(db).Issued())
		for e := range entries {
			err = errors.Join(err, r.Append(context.Background(), e))
		}
		return err
	})
}

func list(t testing.TB, s *rowstore.Issued, q issuance.Query) []string {
	t.Helper()
	return issuancetest.List(t, rowrecord.New(s), q)
}

func TestIssuedRetention(t *testing.T) {
	s := openNew(t)
	now := time.Now()
	s.SetNow(func() time.Time { return now })
	const day = 24 * time.Hour
	add(t, s.Issued(),
		issuancetest.Issued(now.Add(-100*day), "a1", 5*day), // ended 95 days ago
		issuancetest.Issued(now.Add(-100*day), "a2", 20*day),
		issuancetest.Issued(now.Add(-1000*day), "a3", 1001*day),
		issuancetest.Issued(now.Add(-200*day), "a4", day),
		issuancetest.Refused(now.Add(-31*day), 1), issuancetest.Refused(now.Add(-29*day), 2), issuancetest.Refused(now, 3))
	if got := strings.Join(list(t, s.Issued(), issuance.Query{}), " "); got != "3 2 a2 a3" {
		t.Errorf("got %s, want certificates that ended within 90 days or are valid, and refusals of 30 days", got)
	}
	now = now.Add(2 * day)
	add(t, s.Issued(), issuancetest.Issued(now, "a5", day))
	if got := strings.Join(list(t, s.Issued(), issuance.Query{}), " "); got != "a5 3 a2 a3" {
		t.Errorf("two days later: got %s", got)
	}
	now = now.Add(200 * day)
	for range 2 { // each append deletes a few
		add(t, s.Issued(), issuancetest.Issued(now, "a6", day))
	}
	if got := strings.Join(list(t, s.Issued(), issuance.Query{}), " "); got != "a6 a6" {
		t.Errorf("200 days later: got %s", got)
	}
	if got := list(t, s.Issued(), issuance.Query{EndsBefore: now.Add(1000 * day)}); len(got) != 2 {
		t.Errorf("got %s by end, want 2", got)
	}
}

// The number of refusals must stay below a limit: anyone who can send requests can cause refusals.
func TestLimitsNumberOfRefusals(t *testing.T) {
	s := openNew(t)
	now := time.Now()
	if err := appendAll(s, func(yield func(issuance.Entry) bool) {
		for i := range rowstore.MaxUnissued {
			if !yield(issuancetest.Refused(now.Add(time.Duration(i)), i)) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	oldest := func() string {
		entries := list(t, s.Issued(), issuance.Query{After: fmt.Sprintf("%016xzzzzzzzz", math.MaxInt64-now.Add(4).UnixNano())})
		return strings.Join(entries, " ")
	}
	if got := oldest(); got != "3 2 1 0" {
		t.Fatalf("got %s as the oldest", got)
	}
	add(t, s.Issued(), issuancetest.Issued(now.Add(time.Minute), "1f", time.Hour))
	if got := oldest(); got != "3 2 1 0" {
		t.Errorf("after a certificate: got %s as the oldest", got)
	}
	add(t, s.Issued(), issuancetest.Refused(now.Add(time.Minute), 1), issuancetest.Refused(now.Add(time.Minute), 2))
	if got := oldest(); got != "3 2" {
		t.Errorf("after two more refusals: got %s as the oldest", got)
	}
}

// Concurrent appends share an fsync. No entry may be lost.
func TestConcurrentAppends(t *testing.T) {
	s := openNew(t)
	var all sync.WaitGroup
	for lane := range 16 {
		all.Go(func() {
			for i := range 25 {
				if err := rowrecord.New(s.Issued()).Append(t.Context(), issuancetest.Issued(time.Now(), fmt.Sprintf("%x", 1+lane*100+i), time.Hour)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got := list(t, s.Issued(), issuance.Query{Limit: issuance.MaxLimit})
	slices.Sort(got)
	if len(slices.Compact(got)) != 400 {
		t.Errorf("%d entries, want 400", len(got))
	}
}

// A walk must visit all entries that were appended before it began. Those that are appended meanwhile need no import, which
// would be a transaction for each page.
func TestWalkImportsOnce(t *testing.T) {
	for _, name := range []string{"", "node/worker-1"} {
		s := openNew(t)
		for i := range 30 {
			add(t, s.Issued(), issuancetest.Issued(time.Now(), fmt.Sprintf("%x", i+1), time.Hour))
		}
		before, visited := s.Transaction(), 0
		if err := s.Issued().NewestFirst(t.Context(), name, "", time.Time{}, 1, func(string, []byte) (bool, error) {
			visited++
			add(t, s.Issued(), issuancetest.Issued(time.Now(), fmt.Sprintf("f%x", visited), time.Hour))
			return true, nil
		}); err != nil {
			t.Fatal(err)
		}
		if imports := s.Transaction() - before; visited != 30 || imports != 1 {
			t.Errorf("walk of %q: visited %d entries with %d imports, want 30 with 1", name, visited, imports)
		}
	}
}

// A row that is only in the journal is found.
func TestGetsRowInJournal(t *testing.T) {
	s := openNew(t)
	change := rowstore.Change{Key: "issued/1", Value: []byte("x")}
	if err := s.DB().Append(t.Context(), []rowstore.Change{change}); err != nil {
		t.Fatal(err)
	}
	rows, err := s.DB().Get(t.Context(), "tokens/none", change.Key)
	if err != nil || len(rows) != 2 || string(rows[1].Value) != "x" {
		t.Errorf("got %v, %v, want the row", rows, err)
	}
}

// manyIssued returns a record of 100,000 certificates. Every thousandth belongs to another token, and the last 50
// end first.
func manyIssued(t testing.TB) *boltstore.Store {
	s := openNew(t)
	start := time.Now().Add(-time.Hour)
	err := appendAll(s, func(yield func(issuance.Entry) bool) {
		for i := range 100_000 {
			e := issuancetest.Issued(start.Add(time.Duration(i)*time.Millisecond), fmt.Sprintf("a%031x", i), 365*24*time.Hour)
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
	if testing.Short() {
		t.Skip("takes seconds")
	}
	s := manyIssued(t)
	for name, test := range map[string]struct {
		q    issuance.Query
		want int
	}{
		"of a token":  {issuance.Query{TokenID: "asdfgh", Limit: issuance.MaxLimit}, 100},
		"of no token": {issuance.Query{TokenID: "nonono"}, 0},
		"soon ending": {issuance.Query{EndsAfter: time.Now(), EndsBefore: time.Now().Add(30 * 24 * time.Hour)}, 50},
		"of no node":  {issuance.Query{Node: "worker-9"}, 0},
		"newest":      {issuance.Query{}, issuance.DefaultLimit},
		"most":        {issuance.Query{Limit: 1_000_000}, issuance.MaxLimit},
		"no refusals": {issuance.Query{Outcome: issuance.Refused}, 0},
	} {
		began := time.Now()
		if got := list(t, s.Issued(), test.q); len(got) != test.want {
			t.Errorf("%s: %d, want %d", name, len(got), test.want)
		}
		t.Logf("%s: %s", name, time.Since(began))
		if took := time.Since(began); took > 10*time.Second { // usually 0.1 s, but the machine may be busy
			t.Errorf("%s takes %s", name, took)
		}
	}
	began := time.Now()
	if e, err := rowrecord.New(s.Issued()).Get(t.Context(), "a"+strings.Repeat("0", 31)); err != nil || e.TokenID != "asdfgh" {
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
				list(b, s.Issued(), q)
			}
		})
	}
}

func BenchmarkAppendIssued(b *testing.B) {
	for _, workers := range []int{1, 16} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			s := openNew(b)
			work := make(chan issuance.Entry)
			var all sync.WaitGroup
			for range workers {
				all.Go(func() {
					for e := range work {
						if err := rowrecord.New(s.Issued()).Append(context.Background(), e); err != nil {
							b.Error(err)
						}
					}
				})
			}
			i := 0
			for b.Loop() {
				i++
				work <- issuancetest.Issued(time.Now(), fmt.Sprintf("%x", i), time.Hour)
			}
			close(work)
			all.Wait()
		})
	}
}

// ofRandomNode returns the entry with the name of another node and another token.
func ofRandomNode(e issuance.Entry) issuance.Entry {
	e.Node, e.TokenID = "worker-"+newSerial(), tokens.Generate().ID()
	e.Requester = tokens.BootstrapUserPrefix + e.TokenID
	return e
}

// An entry must not take much more space in the file than its own size, also if it is imported alone.
func TestEntrySizeInFile(t *testing.T) {
	for name, test := range map[string]struct {
		entry         func() issuance.Entry
		imports, each int
		most          int64
	}{
		"certificates":        {func() issuance.Entry { return issuancetest.Issued(time.Now(), newSerial(), time.Hour) }, 40, 500, 3 << 10},
		"refusals in a row":   {func() issuance.Entry { return issuancetest.Refused(time.Now(), 1) }, 5, 500, 1 << 10},
		"refusals one by one": {func() issuance.Entry { return issuancetest.Refused(time.Now(), 1) }, 1000, 1, 1 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			s := openNew(t)
			before := s.InUse()
			for range test.imports {
				if err := appendAll(s, func(yield func(issuance.Entry) bool) {
					for range test.each {
						if !yield(ofRandomNode(test.entry())) {
							return
						}
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			each := (s.InUse() - before) / int64(test.imports*test.each)
			t.Logf("an entry takes %d bytes", each)
			if each > test.most {
				t.Errorf("want at most %d", test.most)
			}
		})
	}
}
