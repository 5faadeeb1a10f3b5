package rowstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The rows of the issuance record. A PLACE is the time of an entry and random characters. The time in a PLACE is inverted,
// so that the newest entry comes first. A NAME is a search term for entries, such as node/worker-1. A TIME is not inverted.
//   - issued/PLACE: an entry.
//   - issued-by/NAME/PLACE: an index. The values are the TIMEs when the certificates end; empty if none was issued.
//   - issued-ends/TIME-PLACE: the certificates by the time when they end. The values are the names, one a line.
//   - unissued/TIME-PLACE: refusals and failures by their time. The values are the names, one a line.

// Bounds of the issuance record.
const (
	// KeepUnissued is how long refusals and failures are kept. MaxUnissued is how many of them are kept, because every
	// client can cause refusals.
	KeepUnissued = 30 * 24 * time.Hour
	MaxUnissued  = 100_000
	// MaxCertificates is how many entries of certificates Sweep keeps. An entry needs some 2 KB in etcd's database, and 1.6
	// KB of memory in each member. A store in a file has a maximum size instead.
	MaxCertificates = 1_000_000
)

// Issued are the rows of the issuance record. Package signer/issuance/rowrecord encodes and decodes them.
type Issued struct {
	db DB

	mu      sync.Mutex
	dropped int
	last    time.Time // when the last entry was dropped
}

// Issued returns the issuance record in the database.
func (s *Store) Issued() *Issued { return &s.issued }

// An IssuedRow is one entry of the issuance record.
type IssuedRow struct {
	// Time is when the entry was made.
	Time time.Time
	// Ends is when the certificate of the entry ends; zero if none was issued.
	Ends time.Time
	// Names are the names by which a query finds the entry. They are unique and have no line breaks.
	Names []string
	Value []byte
}

// PlaceLen is the length of a place in [Issued.NewestFirst], and EndsPlaceLen the length of a place in
// [Issued.SoonestFirst] without a name.
const (
	PlaceLen     = timeLen + suffixLen
	EndsPlaceLen = timeLen + 1 + PlaceLen
	timeLen      = 16
	suffixLen    = 8
)

// timeText returns a text that sorts like the time. It returns times before 1970 as 1970, and times after 2262 as 2262.
func timeText(t time.Time) string { return digits(nanos(t)) }

// inverted returns a text that sorts in the reverse order of the time.
func inverted(t time.Time) string { return digits(math.MaxInt64 - nanos(t)) }

func digits(n int64) string { return fmt.Sprintf("%016x", n) }

func nanos(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, 0)):
		return 0
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// Append stores an entry.
func (s *Issued) Append(ctx context.Context, r IssuedRow) error {
	return wrapIssued(s.db.Append(ctx, r.rows(inverted(r.Time)+rand.Text()[:suffixLen])))
}

func wrapIssued(err error) error {
	if err != nil {
		return fmt.Errorf("issuance record: %w", err)
	}
	return nil
}

// rows returns the rows of an entry. The entry itself is the first.
func (r IssuedRow) rows(place string) []Change {
	ends, order := "", unissuedFolder+timeText(r.Time)
	if !r.Ends.IsZero() {
		ends = timeText(r.Ends)
		order = issuedEndsFolder + ends
	}
	changes := []Change{{issuedFolder + place, r.Value}, {order + "-" + place, []byte(strings.Join(r.Names, "\n"))}}
	for _, name := range r.Names {
		changes = append(changes, Change{issuedByFolder + name + "/" + place, []byte(ends)})
	}
	return changes
}

// placeIn returns the place at the end of a key.
func placeIn(key string) string { return key[max(0, len(key)-PlaceLen):] }

// A Visitor gets the place and the value of an entry. It returns whether it wants more entries. A later call can pass the
// place as after, to continue there.
type Visitor func(place string, value []byte) (more bool, err error)

// NewestFirst visits the entries from the newest to the oldest, down to the time since. If name is not empty, it visits
// only the entries with this name. If after is not empty, it starts behind that place. The first read gets as many entries
// as some says, and later reads get more.
func (s *Issued) NewestFirst(ctx context.Context, name, after string, since time.Time, some int, visit Visitor) error {
	if name == "" {
		return wrapIssued(timed(ctx, s.db, issuedFolder, after, math.MaxInt64-nanos(time.Now()), math.MaxInt64-nanos(since), some, func(rows []Row) (bool, error) {
			for _, row := range rows {
				if more, err := visit(placeIn(row.Key), row.Value); err != nil || !more {
					return false, err
				}
			}
			return true, nil
		}))
	}
	folder := issuedByFolder + name + "/"
	keys := Range{From: behind(folder, after), To: folder + inverted(since) + last, Limit: some}
	for {
		rows, err := page(ctx, s.db, keys)
		if err != nil {
			return wrapIssued(err)
		}
		if more, err := s.visit(ctx, rows, func(row Row) string { return placeIn(row.Key) }, visit); !more || len(rows) < keys.Limit {
			return wrapIssued(err)
		}
		keys.From, keys.Limit = rows[len(rows)-1].Key+"\x00", min(2*keys.Limit, maxPage)
	}
}

// SoonestFirst visits the entries of certificates that end at from or later, in the order in which they end. If name is not
// empty, it visits only entries with this name. If after is not empty, it starts behind that place instead of at from.
func (s *Issued) SoonestFirst(ctx context.Context, name, after string, from time.Time, some int, visit Visitor) error {
	if name == "" {
		return wrapIssued(timed(ctx, s.db, issuedEndsFolder, cmp.Or(after, timeText(from)), nanos(from), math.MaxInt64, some, func(rows []Row) (bool, error) {
			return s.visit(ctx, rows, func(row Row) string { return row.Key[len(issuedEndsFolder):] }, visit)
		}))
	}
	after = cmp.Or(after, timeText(from))
	place := func(row Row) string { return string(row.Value) + "-" + placeIn(row.Key) }
	var all []Row
	if err := scan(ctx, s.db, issuedByFolder+name+"/", func(_ string, row Row) error {
		if len(row.Value) == timeLen && place(row) > after {
			row.Value = slices.Clone(row.Value)
			all = append(all, row)
		}
		return nil
	}); err != nil {
		return wrapIssued(err)
	}
	slices.SortFunc(all, func(a, b Row) int { return strings.Compare(place(a), place(b)) })
	for rows := range slices.Chunk(all, some) {
		if more, err := s.visit(ctx, rows, place, visit); !more {
			return wrapIssued(err)
		}
	}
	return nil
}

// visit calls visit with the entry of each index row. place returns the place that the Visitor gets for an index row. After
// an error, more is false.
func (s *Issued) visit(ctx context.Context, index []Row, place func(Row) string, visit Visitor) (more bool, err error) {
	keys := make([]string, len(index))
	for i, row := range index {
		keys[i] = issuedFolder + placeIn(row.Key)
	}
	if len(keys) == 0 {
		return true, nil
	}
	entries, err := s.db.Get(ctx, keys...)
	if err != nil {
		return false, err
	}
	for i, entry := range entries {
		if entry.Version == "" {
			if err := mustHaveChanged(ctx, s.db, index[i], "the entry of this row of an index is missing"); err != nil {
				return false, err
			}
			continue
		}
		if more, err := visit(place(index[i]), entry.Value); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

// last is greater than all places, so that the end of a range includes them.
const last = "\x7f"

func behind(folder, after string) string {
	if after == "" {
		return folder
	}
	return folder + after + "\x00"
}

// timeOf returns the number at the beginning of a place.
func timeOf(place string) (int64, error) {
	if len(place) < timeLen {
		return 0, errors.New("invalid key")
	}
	t, err := strconv.ParseUint(place[:timeLen], 16, 63)
	if err != nil {
		return 0, errors.New("invalid key")
	}
	return int64(t), nil
}

// firstWindow is the span of time that the first read of timed covers. minWindow is the minimum span for all reads. Both
// are in nanoseconds.
const firstWindow, minWindow = int64(time.Hour), int64(time.Second)

// timed calls visit with pages of rows in a folder whose keys begin with a time. It starts behind the place after, and ends
// with the time end. It is fastest if most rows are later than first.
//
// etcd visits all keys in the range of a read, even if it returns few of them, and holds a lock meanwhile: a quarter of a
// second for a million keys. So each read has a short range, which grows where there are few keys.
func timed(ctx context.Context, r Reader, folder, after string, first, end int64, some int, visit func([]Row) (bool, error)) error {
	if after != "" {
		t, err := timeOf(after)
		if err != nil {
			return nil // no entry is behind an invalid place
		}
		first = t
	}
	keys, window := Range{From: behind(folder, after), Limit: some}, firstWindow
	for {
		isLast := first >= end-window
		if keys.To = folder + digits(first+window); isLast {
			keys.To = folder + digits(end) + last
		}
		rows, err := page(ctx, r, keys)
		if err != nil {
			return err
		}
		if more, err := visit(rows); err != nil || !more {
			return err
		}
		switch {
		case len(rows) == keys.Limit:
			key := rows[len(rows)-1].Key
			t, err := timeOf(key[len(folder):])
			if err != nil { // the key is damaged
				t = first
			}
			keys.From, keys.Limit = key+"\x00", min(2*keys.Limit, maxPage)
			window = max(minWindow, 8*min(t-first, math.MaxInt64/8)) // a page with twice as many rows needs a longer window
			first = t
		case isLast:
			return nil
		default:
			keys.From, first = max(keys.From, keys.To), first+window
			window = min(window, math.MaxInt64/16) * 16
		}
	}
}

// A Victim is an entry that a sweep deletes.
type Victim struct {
	// Keys are the keys of all rows of the entry.
	Keys []string
	// Due is true if the retention of the entry is over. Beyond is true if the record has too many entries of its kind.
	Due, Beyond bool
}

// SweepOptions say which entries [Victims] visits.
type SweepOptions struct {
	Now time.Time
	// Retention is how long the entry of a certificate stays after its end.
	Retention time.Duration
	// MaxCertificates is how many certificates the record keeps; 0 means unlimited.
	MaxCertificates int
	// Early also visits entries that are neither due nor beyond a maximum.
	Early bool
}

// Victims calls take with entries in the order of deletion: first refusals and failures, the oldest first, and then
// certificates, the earliest to expire first. If take returns false, Victims skips the other entries of this kind. After an
// error, it continues with the other kind.
func Victims(ctx context.Context, r Reader, o SweepOptions, take func(Victim) (more bool, err error)) error {
	var errs []error
	for _, kind := range []struct {
		folder string
		keep   time.Duration
		most   int
	}{{unissuedFolder, KeepUnissued, MaxUnissued}, {issuedEndsFolder, o.Retention, o.MaxCertificates}} {
		extra, due := 0, o.Now.Add(-kind.keep)
		if kind.most > 0 {
			count, err := r.Count(ctx, kind.folder)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			extra = count - kind.most
		}
		end := nanos(due)
		if extra > 0 || o.Early {
			end = math.MaxInt64
		}
		errs = append(errs, timed(ctx, r, kind.folder, "", nanos(due), end, sweptAtOnce, func(rows []Row) (bool, error) {
			for _, row := range rows {
				v := victim(row)
				v.Due, v.Beyond = row.Key[len(kind.folder):] < timeText(due), extra > 0
				extra--
				if !v.Due && !v.Beyond && !o.Early {
					return false, nil
				}
				if more, err := take(v); err != nil || !more {
					return false, err
				}
			}
			return true, nil
		}))
	}
	return errors.Join(errs...)
}

// victim returns the entry of a row of issued-ends or unissued.
func victim(row Row) (v Victim) {
	place := placeIn(row.Key)
	v.Keys = []string{issuedFolder + place, row.Key}
	for name := range strings.SplitSeq(string(row.Value), "\n") {
		if name != "" {
			v.Keys = append(v.Keys, issuedByFolder+name+"/"+place)
		}
	}
	return v
}

// sweptAtOnce is how many entries one transaction deletes. An entry has up to seven keys.
const sweptAtOnce = 16

// A Swept is the result of [Issued.Sweep].
type Swept struct {
	// Deleted is how many entries were deleted, and Dropped how many of them were not due yet.
	Deleted, Dropped int
}

// Sweep deletes entries of certificates that expired before now minus retention, and entries of refusals and failures older
// than [KeepUnissued]. Of more than [MaxCertificates] or [MaxUnissued] entries, it deletes the first. Only one replica at a
// time should call it.
func (s *Issued) Sweep(ctx context.Context, now time.Time, retention time.Duration) (Swept, error) {
	return s.sweep(ctx, now, retention, MaxCertificates)
}

func (s *Issued) sweep(ctx context.Context, now time.Time, retention time.Duration, maxCertificates int) (out Swept, err error) {
	var batch []Victim
	write := func() error {
		var changes []Change
		dropped, swept := 0, len(batch)
		for _, v := range batch {
			for _, key := range v.Keys {
				changes = append(changes, Change{Key: key})
			}
			if !v.Due {
				dropped++
			}
		}
		if batch = nil; swept == 0 {
			return nil
		}
		if _, err := s.db.Commit(ctx, nil, changes); err != nil {
			return err
		}
		out.Deleted, out.Dropped = out.Deleted+swept, out.Dropped+dropped
		return nil
	}
	err = Victims(ctx, s.db, SweepOptions{Now: now, Retention: retention, MaxCertificates: maxCertificates}, func(v Victim) (bool, error) {
		if batch = append(batch, v); len(batch) < sweptAtOnce {
			return true, nil
		}
		return true, write()
	})
	err = errors.Join(err, write())
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.Dropped > 0 {
		s.dropped, s.last = s.dropped+out.Dropped, now
	}
	return out, wrapIssued(err)
}

// Dropped returns how many entries Sweep has dropped before they were due, and when it dropped the last one. A store in a
// file deletes entries itself and does not use Sweep.
func (s *Issued) Dropped() (entries int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped, s.last
}

// Damaged returns an error for the damaged entry at a place, like [DB.Damaged].
func (s *Issued) Damaged(place string, err error) error {
	return s.db.Damaged(issuedFolder+place, err)
}
