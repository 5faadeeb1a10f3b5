package rowstore_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

// Sweep must delete the due entries, and then the certificates that expire first, even if entries are years apart.
func TestSweepDropsEntriesBeyondMaximum(t *testing.T) {
	issued, now := memdb.Open().Issued(), time.Now()
	for i := range 60 { // 20 of them are due
		must.OK(t, issued.Append(t.Context(), rowstore.IssuedRow{Time: now, Ends: now.AddDate(i-20, 0, 0).Add(-1), Names: []string{"a"}, Value: []byte(strconv.Itoa(i))}))
	}
	sum := 0
	for _, test := range []struct{ most, deleted, dropped int }{{100, 21, 0}, {39, 0, 0}, {10, 29, 29}, {10, 0, 0}} {
		out, err := issued.SweepBeyond(t.Context(), now, test.most)
		if err != nil || out.Deleted != test.deleted || out.Dropped != test.dropped {
			t.Errorf("beyond %d: sweep = %+v, %v, want %d deleted and %d of them dropped", test.most, out, err, test.deleted, test.dropped)
		}
		sum += test.dropped
		if n, last := issued.Dropped(); n != sum || sum > 0 != last.Equal(now) {
			t.Errorf("beyond %d: Dropped = %d, %s, want %d", test.most, n, last, sum)
		}
	}
	for _, name := range []string{"", "a"} {
		var left []string
		if err := issued.SoonestFirst(t.Context(), name, "", time.Time{}, 3, func(_ string, value []byte) (bool, error) {
			left = append(left, string(value))
			return true, nil
		}); err != nil || len(left) != 10 || left[0] != "50" || !slices.IsSorted(left) {
			t.Errorf("with name %q: left are %v, %v, want 50 to 59", name, left, err)
		}
	}
}

// betweenGets runs do before each Get.
type betweenGets struct {
	rowstore.DB
	do func()
}

func (b betweenGets) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	b.do()
	return b.DB.Get(ctx, keys...)
}

// A sweep may delete an entry after a walk has read its index row. Catches a walk that reports this as damage.
func TestWalkSkipsSweptEntry(t *testing.T) {
	db, now := &memdb.DB{}, time.Now()
	issued := rowstore.New(db).Issued()
	must.OK(t, issued.Append(t.Context(), rowstore.IssuedRow{Time: now, Ends: now, Names: []string{"a"}, Value: []byte("x")}))
	hooked := rowstore.New(betweenGets{db, func() {
		if _, err := issued.SweepBeyond(t.Context(), now.Add(1), 1); err != nil {
			t.Error(err)
		}
	}}).Issued()
	if err := hooked.NewestFirst(t.Context(), "a", "", time.Time{}, 10, func(string, []byte) (bool, error) {
		return false, errors.New("visited")
	}); err != nil {
		t.Errorf("NewestFirst = %v, want no entry", err)
	}
}

// countedScans counts the calls of Scan.
type countedScans struct {
	rowstore.DB
	scans int
}

func (c *countedScans) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	c.scans++
	return c.DB.Scan(ctx, keys, visit)
}

// Catches a time range that overflows because entries are decades apart.
func TestWalksDecadesWithFewReads(t *testing.T) {
	db := &countedScans{DB: &memdb.DB{}}
	issued, from := rowstore.New(db).Issued(), time.Unix(0, 0)
	for i := range 7 {
		must.OK(t, issued.Append(t.Context(), rowstore.IssuedRow{Time: from, Ends: from.AddDate(40*i, 0, 0), Value: []byte("x")}))
	}
	n := 0
	if err := issued.SoonestFirst(t.Context(), "", "", from, 1, func(string, []byte) (bool, error) { n++; return true, nil }); err != nil || n != 7 || db.scans > 15 {
		t.Errorf("visited %d entries, %v, with %d reads, want 7 with at most 15", n, err, db.scans)
	}
}

// failingFolder is a database that refuses to read a folder.
type failingFolder struct {
	rowstore.DB
	folder string
}

var errFolder = errors.New("folder fails")

func (f failingFolder) Count(ctx context.Context, folder string) (int, error) {
	if folder == f.folder {
		return 0, errFolder
	}
	return f.DB.Count(ctx, folder)
}

// Catches a sweep that keeps certificates because it cannot read refusals.
func TestSweepsOneKindIfOtherFails(t *testing.T) {
	db, now := &memdb.DB{}, time.Now()
	for _, row := range []rowstore.IssuedRow{{Time: now.AddDate(-1, 0, 0), Ends: now.AddDate(-1, 0, 0), Value: []byte("x")}, {Time: now.AddDate(-1, 0, 0), Value: []byte("y")}} {
		must.OK(t, rowstore.New(db).Issued().Append(t.Context(), row))
	}
	for _, folder := range []string{"unissued/", "issued-ends/"} {
		out, err := rowstore.New(failingFolder{db, folder}).Issued().SweepBeyond(t.Context(), now, 10)
		if !errors.Is(err, errFolder) || out.Deleted != 1 {
			t.Errorf("%s fails: Sweep = %+v, %v, want one deleted and %v", folder, out, err, errFolder)
		}
	}
}
