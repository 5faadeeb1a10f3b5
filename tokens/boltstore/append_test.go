package boltstore_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
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

func newSerial() string { return fmt.Sprintf("%x%016x", 1+rand.Uint64N(1<<60), rand.Uint64()) }

// large returns e, enlarged so that it takes two pages of the file.
func large(e issuance.Entry) issuance.Entry {
	e.Message = strings.Repeat("x", 8<<10)
	return e
}

// serials counts the entries of each certificate.
func serials(s *rowstore.Issued) (map[string]int, error) {
	found := map[string]int{}
	for q := (issuance.Query{Limit: issuance.MaxLimit}); ; {
		page, err := rowrecord.New(s).List(context.Background(), q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Entries {
			found[e.Serial]++
		}
		if q.After = page.Next; q.After == "" {
			return found, nil
		}
	}
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
	for range 2 { // twice, because each append deletes only a few
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
	const each = 1000 // with more new keys in a transaction, bbolt is slow
	for first := 0; first < rowstore.MaxUnissued; first += each {
		must.OK(t, appendAll(s, func(yield func(issuance.Entry) bool) {
			for i := first; i < first+each; i++ {
				if !yield(issuancetest.Refused(now.Add(time.Duration(i)), i)) {
					return
				}
			}
		}))
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

// ofRandomNode returns e with a random node name and token ID.
func ofRandomNode(e issuance.Entry) issuance.Entry {
	e.Node, e.TokenID = "worker-"+newSerial(), tokens.Generate().ID()
	e.Requester = tokens.BootstrapUserPrefix + e.TokenID
	return e
}

// An entry must not take much more space in the file than its own size, even if a transaction stores only one entry.
func TestEntrySizeInFile(t *testing.T) {
	for name, test := range map[string]struct {
		entry         func() issuance.Entry
		commits, each int
		most          int64
	}{
		"certificates at once":    {func() issuance.Entry { return issuancetest.Issued(time.Now(), newSerial(), time.Hour) }, 40, 500, 3 << 10},
		"certificates one by one": {func() issuance.Entry { return issuancetest.Issued(time.Now(), newSerial(), time.Hour) }, 2000, 1, 3600},
		"refusals at once":        {func() issuance.Entry { return issuancetest.Refused(time.Now(), 1) }, 5, 500, 1400},
		"refusals one by one":     {func() issuance.Entry { return issuancetest.Refused(time.Now(), 1) }, 1000, 1, 1250},
	} {
		t.Run(name, func(t *testing.T) {
			s := openNew(t)
			before := s.InUse()
			for range test.commits {
				must.OK(t, appendAll(s, func(yield func(issuance.Entry) bool) {
					for range test.each {
						if !yield(ofRandomNode(test.entry())) {
							return
						}
					}
				}))
			}
			each := (s.InUse() - before) / int64(test.commits*test.each)
			t.Logf("an entry takes %d bytes", each)
			if each > test.most {
				t.Errorf("want at most %d", test.most)
			}
		})
	}
}
