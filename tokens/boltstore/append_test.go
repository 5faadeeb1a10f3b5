package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
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
	must.OK(t, appendAll(s, func(yield func(issuance.Entry) bool) {
		for i := range rowstore.MaxUnissued {
			if !yield(issuancetest.Refused(now.Add(time.Duration(i)), i)) {
				return
			}
		}
	}))
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

// A walk must visit all entries that were appended before it began. Those that are appended meanwhile need no import, which
// would be a transaction for each page.
func TestWalkImportsOnce(t *testing.T) {
	for _, name := range []string{"", "node/worker-1"} {
		s := openNew(t)
		for i := range 30 {
			add(t, s.Issued(), issuancetest.Issued(time.Now(), fmt.Sprintf("%x", i+1), time.Hour))
		}
		before, visited := s.Transaction(), 0
		must.OK(t, s.Issued().NewestFirst(t.Context(), name, "", time.Time{}, 1, func(string, []byte) (bool, error) {
			visited++
			add(t, s.Issued(), issuancetest.Issued(time.Now(), fmt.Sprintf("f%x", visited), time.Hour))
			return true, nil
		}))
		if imports := s.Transaction() - before; visited != 30 || imports != 1 {
			t.Errorf("walk of %q: visited %d entries with %d imports, want 30 with 1", name, visited, imports)
		}
	}
}

// A row that is only in the journal is found.
func TestGetsRowInJournal(t *testing.T) {
	s := openNew(t)
	change := rowstore.Change{Key: "issued/1", Value: []byte("x")}
	must.OK(t, s.DB().Append(t.Context(), []rowstore.Change{change}))
	rows, err := s.DB().Get(t.Context(), "tokens/none", change.Key)
	if err != nil || len(rows) != 2 || string(rows[1].Value) != "x" {
		t.Errorf("got %v, %v, want the row", rows, err)
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
				must.OK(t, appendAll(s, func(yield func(issuance.Entry) bool) {
					for range test.each {
						if !yield(ofRandomNode(test.entry())) {
							return
						}
					}
				}))
			}
			each := (s.InUse() - before) / int64(test.imports*test.each)
			t.Logf("an entry takes %d bytes", each)
			if each > test.most {
				t.Errorf("want at most %d", test.most)
			}
		})
	}
}
