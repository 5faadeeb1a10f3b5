package rowstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

var errAway = errors.New("away")

// failsOnce is a database whose n-th call fails. A failed read returns rows, too; a failed write has no effect.
type failsOnce struct {
	*memdb.DB
	left *int // calls up to the failed one; 0 or less: it has failed
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

// entry returns entry n of the issuance record. Each fourth is a refusal.
func entry(n int) rowstore.IssuedRow {
	r := rowstore.IssuedRow{Time: begin.Add(time.Duration(n) * time.Minute), Names: []string{"a"}, Value: []byte(strconv.Itoa(n))}
	if n%4 != 0 {
		r.Ends = r.Time.Add(time.Hour)
	}
	return r
}

// stored returns a filled database with entries of the issuance record. The holder worker-9 of the token abc123, and the
// only index of name b, have no row.
func stored(t *testing.T, entries int) *memdb.DB {
	t.Helper()
	db := &memdb.DB{}
	s := rowstore.New(db)
	fill(t, s)
	for n := range entries {
		if err := s.Issued().Append(t.Context(), entry(n)); err != nil {
			t.Fatal(err)
		}
	}
	damage := []rowstore.Change{{Key: "holders/abc123/worker-9", Value: []byte{}}, {Key: "issued-by/b/0123456789abcdefABCDEFGH", Value: []byte("0123456789abcdef")}}
	if err := db.Append(t.Context(), damage); err != nil {
		t.Fatal(err)
	}
	return db
}

// walks are the ways to visit entries, with a first page of three.
func walks(ctx context.Context, s *rowstore.Issued, after string, visit rowstore.Visitor) map[string]func() error {
	all := map[string]func() error{}
	for _, name := range []string{"", "a"} {
		all["NewestFirst "+name] = func() error { return s.NewestFirst(ctx, name, after, time.Time{}, 3, visit) }
		all["SoonestFirst "+name] = func() error { return s.SoonestFirst(ctx, name, after, time.Time{}, 3, visit) }
	}
	return all
}

// Catches a failed read or write that looks like a missing row, the last page or a success.
func TestReturnsErrorOfEachCall(t *testing.T) {
	ctx, claim, now := t.Context(), tokens.Claim{Node: "worker-1"}, begin.AddDate(0, 2, 0)
	ignore := func(string, []byte) (bool, error) { return true, nil }
	second := func(_ any, err error) error { return err }
	for name, test := range map[string]struct {
		run     func(s *rowstore.Store) error
		calls   int   // of the database, at least
		want    error // if no call fails
		entries int
	}{
		"create a token": {run: func(s *rowstore.Store) error {
			return second(s.Create(ctx, tokens.NewRecord(tokens.Generate(), time.Hour, now)))
		}},
		"update a token":           {run: func(s *rowstore.Store) error { return second(s.Update(ctx, "abc123", edit)) }, calls: 2},
		"create an existing claim": {run: func(s *rowstore.Store) error { return second(s.Claims().Create(ctx, claim)) }, calls: 2, want: tokens.ErrExists},
		"update a claim":           {run: func(s *rowstore.Store) error { return second(s.Claims().Update(ctx, "worker-1", editClaim)) }, calls: 2},
		"list tokens":              {run: func(s *rowstore.Store) error { return second(s.List(ctx)) }},
		"list claims":              {run: func(s *rowstore.Store) error { return second(s.Claims().List(ctx)) }},
		"find a claim":             {run: func(s *rowstore.Store) error { return second(s.Claims().Find(ctx, "worker-1")) }},
		"claims of a token":        {run: func(s *rowstore.Store) error { return second(s.Claims().OfToken(ctx, "abc123")) }, calls: 2},
		"claims held by a token":   {run: func(s *rowstore.Store) error { return second(s.Claims().HeldBy(ctx, "abc123")) }, calls: 3, want: memdb.ErrDamaged},
		"delete a token": {calls: 2, run: func(s *rowstore.Store) error {
			return deleted(ctx, "abc123", s.Get, s.Delete)
		}},
		"delete a claim": {calls: 2, run: func(s *rowstore.Store) error {
			return deleted(ctx, "worker-1", s.Claims().Get, s.Claims().Delete)
		}},
		"commit claims": {calls: 2, run: func(s *rowstore.Store) error {
			r, err := s.Get(ctx, "abc123")
			if err != nil {
				return err
			}
			return second(s.Claims().Commit(ctx, r, r, nil))
		}},
		"change a revocation": {calls: 2, run: func(s *rowstore.Store) error {
			return s.Revocations().Update(ctx, "k", func([]byte) ([]byte, error) { return nil, nil })
		}},
		"append an entry": {run: func(s *rowstore.Store) error { return s.Issued().Append(ctx, entry(0)) }},
		"sweep":           {entries: 40, calls: 7, run: func(s *rowstore.Store) error { return second(s.Issued().Sweep(ctx, now, 0)) }},
		"entries of a damaged index": {calls: 3, want: memdb.ErrDamaged, run: func(s *rowstore.Store) error {
			return s.Issued().NewestFirst(ctx, "b", "", time.Time{}, 3, ignore)
		}},
		"ends in a damaged index": {calls: 3, want: memdb.ErrDamaged, run: func(s *rowstore.Store) error {
			return s.Issued().SoonestFirst(ctx, "b", "", time.Time{}, 3, ignore)
		}},
		"walks": {entries: 40, calls: 30, run: func(s *rowstore.Store) error {
			visited := 0
			for name, walk := range walks(ctx, s.Issued(), "", func(string, []byte) (bool, error) { visited++; return true, nil }) {
				if err := walk(); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
			}
			if visited != 40+40+30+30 { // each fourth has no certificate
				return fmt.Errorf("visited %d entries, want 140", visited)
			}
			return nil
		}},
		"pages": {entries: 1400, calls: 4, run: func(s *rowstore.Store) error {
			rows := 0
			for _, folder := range []string{"issued/", "issued-ends/"} {
				if err := rowstore.EachPage(ctx, s.DB(), folder, func(page []rowstore.Row) error { rows += len(page); return nil }); err != nil {
					return err
				}
			}
			if rows != 1400+1050 {
				return fmt.Errorf("read %d rows, want 2450", rows)
			}
			return nil
		}},
		"check": {entries: 40, calls: 14, run: func(s *rowstore.Store) error {
			damaged := 0
			decoders := rowstore.Decoders{
				Revocation: func(string, []byte) error { return nil },
				Issued:     func(v []byte) (rowstore.IssuedRow, error) { n, err := strconv.Atoi(string(v)); return entry(n), err },
			}
			err := rowstore.Check(ctx, s.DB(), decoders, func(string, error) { damaged++ })
			if err == nil && damaged != 2 {
				err = fmt.Errorf("%d damaged rows, want 2", damaged)
			}
			return err
		}},
	} {
		for n := 1; ; n++ {
			left := n
			err := test.run(rowstore.New(failsOnce{stored(t, test.entries), &left}))
			if left > 0 {
				if !errors.Is(err, test.want) || n <= max(test.calls, 1) {
					t.Errorf("%s: got %v after %d calls, want %v after at least %d", name, err, n-1, test.want, max(test.calls, 1))
				}
				break
			}
			if !errors.Is(err, errAway) {
				t.Errorf("%s: call %d fails: got %v, want %v", name, n, err, errAway)
			}
		}
	}
}

// deleted reads a value and deletes it.
func deleted[T any](ctx context.Context, key string, get func(context.Context, string) (T, error), remove func(context.Context, T) error) error {
	v, err := get(ctx, key)
	if err != nil {
		return err
	}
	return remove(ctx, v)
}

// Catches a visitor that is called after it has ended the walk, and an error of it that is lost.
func TestVisitorEndsWalk(t *testing.T) {
	for _, want := range []error{nil, errAway} {
		visited := 0
		for name, walk := range walks(t.Context(), rowstore.New(stored(t, 40)).Issued(), "", func(string, []byte) (bool, error) { visited++; return want != nil, want }) {
			visited = 0
			if err := walk(); !errors.Is(err, want) || visited != 1 {
				t.Errorf("%s: got %v after %d entries, want %v after one", name, err, visited, want)
			}
		}
		pages := 0
		err := rowstore.EachPage(t.Context(), stored(t, 1400), "issued/", func([]rowstore.Row) error { pages++; return errAway })
		if !errors.Is(err, errAway) || pages != 1 {
			t.Errorf("EachPage: got %v after %d pages, want %v after one", err, pages, errAway)
		}
	}
}

// Catches a malformed place that a walk takes for the first one.
func TestNoEntryIsBehindMalformedPlace(t *testing.T) {
	for _, after := range []string{"00", "0zzzzzzzzzzzzzzz"} {
		for _, name := range []string{"NewestFirst ", "SoonestFirst "} {
			walk := walks(t.Context(), rowstore.New(stored(t, 3)).Issued(), after, func(string, []byte) (bool, error) { return false, errors.New("visited") })[name]
			if err := walk(); err != nil {
				t.Errorf("%sbehind %q: got %v, want no entry", name, after, err)
			}
		}
	}
}
