package rowstore_test

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

var errAway = errors.New("away")

// failsOnce is a database whose n-th call fails. A failed read also returns rows. A failed write has no effect.
type failsOnce struct {
	*memdb.DB
	left *int // calls until one fails; 0 or less: that call has failed
}

func (f failsOnce) fails() error {
	if *f.left--; *f.left == 0 {
		return errAway
	}
	return nil
}

func (f failsOnce) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	rows, err := f.DB.Get(ctx, keys...)
	return rows, cmp.Or(f.fails(), err)
}

func (f failsOnce) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	err := f.DB.Scan(ctx, keys, visit)
	return cmp.Or(f.fails(), err)
}

func (f failsOnce) Count(ctx context.Context, folder string) (int, error) {
	n, err := f.DB.Count(ctx, folder)
	return n, cmp.Or(f.fails(), err)
}

func (f failsOnce) Cached() rowstore.Reader { return f }

func (f failsOnce) View(ctx context.Context, damaged func(string, error), do func(rowstore.Reader) error) error {
	return cmp.Or(f.fails(), f.DB.View(ctx, damaged, func(r rowstore.Reader) error { return do(failsOnce{r.(*memdb.DB), f.left}) }))
}

func (f failsOnce) Commit(ctx context.Context, conditions []rowstore.Condition, changes []rowstore.Change) (string, error) {
	if err := f.fails(); err != nil {
		return "", err
	}
	return f.DB.Commit(ctx, conditions, changes)
}

func (f failsOnce) Append(ctx context.Context, changes []rowstore.Change) error {
	_, err := f.Commit(ctx, nil, changes)
	return err
}

// begin is the time of the first entry, before the current time.
var begin = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// entry returns entry n of the issuance record. Each fourth entry is a refusal.
func entry(n int) rowstore.IssuedRow {
	r := rowstore.IssuedRow{Time: begin.Add(time.Duration(n) * time.Minute), Names: []string{"a"}, Value: []byte(strconv.Itoa(n))}
	if n%4 != 0 {
		r.Ends = r.Time.Add(time.Hour)
	}
	return r
}

// stored returns a filled database with entries of the issuance record. Two index rows refer
// to rows that do not exist: to claim worker-9 of token abc123, and to an entry of name b.
func stored(t *testing.T, entries int) *memdb.DB {
	t.Helper()
	db := &memdb.DB{}
	s := rowstore.New(db)
	fill(t, s)
	for n := range entries {
		must.OK(t, s.Issued().Append(t.Context(), entry(n)))
	}
	damage := []rowstore.Change{{Key: "holders/abc123/worker-9", Value: []byte{}}, {Key: "issued-by/b/0123456789abcdefABCDEFGH", Value: []byte("0123456789abcdef")}}
	must.OK(t, db.Append(t.Context(), damage))
	return db
}

// walks are the ways to visit entries. Their first page has three entries.
func walks(ctx context.Context, s *rowstore.Issued, after string, visit rowstore.Visitor) map[string]func() error {
	all := map[string]func() error{}
	for _, name := range []string{"", "a"} {
		all["NewestFirst "+name] = func() error { return s.NewestFirst(ctx, name, after, time.Time{}, 3, visit) }
		all["SoonestFirst "+name] = func() error { return s.SoonestFirst(ctx, name, after, time.Time{}, 3, visit) }
	}
	return all
}

func second[T any](_ T, err error) error { return err }

// Catches a failed read or write that looks like a missing row, the last page or a success.
func TestReturnsErrorOfEachCall(t *testing.T) {
	ctx, n := t.Context(), 0
	visit := func(string, []byte) error { return nil }
	visitEntry := func(string, []byte) (bool, error) { n++; return true, nil }
	count := func(page []rowstore.Row) error {
		if n += len(page); len(page) == 0 {
			return errors.New("empty page")
		}
		return nil
	}
	for name, test := range map[string]struct {
		calls   int   // number of calls of the database; 0: not checked
		want    error // expected error if no call fails
		counts  int   // expected n if no call fails
		entries int
		run     func(s *rowstore.Store) error
	}{
		"single reads": {calls: 10, run: func(s *rowstore.Store) error {
			c, r := s.Claims(), s.Revocations()
			return errors.Join(second(s.Get(ctx, "abc123", tokens.Live)), second(s.Get(ctx, "abc123", tokens.Cached)), second(s.List(ctx)),
				second(c.Get(ctx, "worker-1", tokens.Live)), second(c.Get(ctx, "worker-1", tokens.Cached)), second(c.List(ctx)),
				second(r.Get(ctx, "k", tokens.Live)), second(r.Get(ctx, "k", tokens.Cached)), r.Visit(ctx, tokens.Live, visit), r.Visit(ctx, tokens.Cached, visit))
		}},
		"writes without a read": {calls: 3, run: func(s *rowstore.Store) error {
			return errors.Join(second(s.Create(ctx, tokens.NewRecord(tokens.Generate(), time.Hour, noon))),
				second(storetest.CreateClaim(ctx, s.Claims(), tokens.Claim{Node: "worker-2"})), s.Issued().Append(ctx, entry(0)))
		}},
		"updates": {calls: 6, run: func(s *rowstore.Store) error {
			return errors.Join(second(s.Update(ctx, "abc123", edit)), second(storetest.UpdateClaim(ctx, s.Claims(), "worker-1", editClaim)),
				s.Revocations().Update(ctx, "k", func([]byte) ([]byte, error) { return nil, nil }))
		}},
		"commit and deletes": {calls: 7, run: func(s *rowstore.Store) error {
			r, err := s.Get(ctx, "abc123", tokens.Live)
			_, commitErr := s.Claims().Commit(ctx, r, described(r), nil)
			now, getErr := s.Get(ctx, "abc123", tokens.Live)
			c, claimErr := s.Claims().Get(ctx, "worker-1", tokens.Live)
			return errors.Join(err, commitErr, getErr, claimErr, s.Delete(ctx, now), storetest.DeleteClaim(ctx, s.Claims(), c))
		}},
		"create twice": {calls: 1, want: tokens.ErrConflict, run: func(s *rowstore.Store) error {
			return second(storetest.CreateClaim(ctx, s.Claims(), tokens.Claim{Node: "worker-1"}))
		}},
		"claims of a token": {calls: 2, run: func(s *rowstore.Store) error { return second(s.Claims().HeldBy(ctx, "abc123", tokens.Cached)) }},
		"claims held by a token": {calls: 3, want: memdb.ErrDamaged, run: func(s *rowstore.Store) error {
			return second(s.Claims().HeldBy(ctx, "abc123", tokens.Live))
		}},
		"sweep": {entries: 40, counts: 40, run: func(s *rowstore.Store) error {
			swept, err := s.Issued().Sweep(ctx, begin.AddDate(0, 2, 0), 0)
			n = swept.Deleted
			return err
		}},
		"newest of a damaged index": {calls: 3, want: memdb.ErrDamaged, run: func(s *rowstore.Store) error {
			return s.Issued().NewestFirst(ctx, "b", "", time.Time{}, 3, visitEntry)
		}},
		"soonest of a damaged index": {calls: 3, want: memdb.ErrDamaged, run: func(s *rowstore.Store) error {
			return s.Issued().SoonestFirst(ctx, "b", "", time.Time{}, 3, visitEntry)
		}},
		"walks": {entries: 40, counts: 40 + 40 + 30 + 30, run: func(s *rowstore.Store) (err error) {
			for _, walk := range walks(ctx, s.Issued(), "", visitEntry) {
				if err == nil {
					err = walk()
				}
			}
			return err
		}},
		"pages of entries": {entries: 1400, counts: 1400, run: func(s *rowstore.Store) error {
			return rowstore.EachPage(ctx, s.DB(), "issued/", count)
		}},
		"pages of an index": {entries: 1400, counts: 1050, calls: 2, run: func(s *rowstore.Store) error {
			return rowstore.EachPage(ctx, s.DB(), "issued-ends/", count)
		}},
		"check": {entries: 40, counts: 2, run: func(s *rowstore.Store) error {
			return rowstore.Check(ctx, s.DB(), decoders, func(string, error) { n++ })
		}},
	} {
		for call := 1; ; call++ {
			left := call
			n = 0 // number of rows that were visited, deleted or reported
			err := test.run(rowstore.New(failsOnce{stored(t, test.entries), &left}))
			if left > 0 {
				if !errors.Is(err, test.want) || n != test.counts || call == 1 || test.calls > 0 && call-1 != test.calls {
					t.Errorf("%s: got %v, %d rows and %d calls, want %v, %d rows and %d calls", name, err, n, call-1, test.want, test.counts, test.calls)
				}
				break
			}
			if !errors.Is(err, errAway) {
				t.Errorf("%s: call %d fails: got %v, want %v", name, call, err, errAway)
			}
		}
	}
}

// Catches a walk that calls the visitor after the visitor has ended the walk, or that loses the visitor's error.
func TestVisitorEndsWalk(t *testing.T) {
	visited, issued := 0, rowstore.New(stored(t, 40)).Issued()
	for _, want := range []error{nil, errAway} {
		for name, walk := range walks(t.Context(), issued, "", func(string, []byte) (bool, error) { visited++; return want != nil, want }) {
			visited = 0
			if err := walk(); !errors.Is(err, want) || visited != 1 {
				t.Errorf("%s: got %v after %d entries, want %v after one", name, err, visited, want)
			}
		}
	}
	for _, folder := range []string{"issued/", "issued-ends/"} {
		visited = 0
		err := rowstore.EachPage(t.Context(), stored(t, 1400), folder, func([]rowstore.Row) error { visited++; return errAway })
		if !errors.Is(err, errAway) || visited != 1 {
			t.Errorf("EachPage of %s: got %v after %d pages, want %v after one", folder, err, visited, errAway)
		}
	}
	for _, want := range []error{nil, errAway} {
		visited = 0
		err := rowstore.Victims(t.Context(), stored(t, 40), rowstore.SweepOptions{Now: begin, Early: true}, func(rowstore.Victim) (bool, error) { visited++; return want != nil, want })
		if !errors.Is(err, want) || visited != 2 {
			t.Errorf("Victims: got %v after %d entries, want %v after one of each kind", err, visited, want)
		}
	}
}

// Catches a walk that starts at the first entry if after is malformed.
func TestNoEntryIsBehindMalformedPlace(t *testing.T) {
	issued := rowstore.New(stored(t, 3)).Issued()
	for _, after := range []string{"00", "0zzzzzzzzzzzzzzz"} {
		all := walks(t.Context(), issued, after, func(string, []byte) (bool, error) { return false, errors.New("visited") })
		for _, name := range []string{"NewestFirst ", "SoonestFirst "} {
			if err := all[name](); err != nil {
				t.Errorf("%sbehind %q: got %v, want no entry", name, after, err)
			}
		}
	}
}

func described(r tokens.Record) tokens.Record {
	r.Description += "."
	return r
}
