package boltstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.etcd.io/bbolt"
)

// Places in the record are 8 bytes of a time, in nanoseconds, and 8 of a number that tells entries
// of the same time apart, so that their order is that of time. In bucket "issued" the time is that
// of the entry.

// firstTime and lastTime are what a place can say. What ends later, as certificates that never do,
// is last.
var firstTime, lastTime = time.Unix(0, 0), time.Unix(0, math.MaxInt64)

func timeKey(at time.Time, number uint64) []byte {
	if at.Before(firstTime) {
		at = firstTime
	} else if at.After(lastTime) {
		at = lastTime
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())), number)
}

// numbered is a place with another number.
func numbered(place []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(slices.Clip(place[:8]), number)
}

func timeOf(place []byte) time.Time {
	if len(place) != PlaceLen {
		return time.Time{}
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(place)))
}

// record is the buckets of the record in a transaction.
type record struct{ entries, ends, unissued *bbolt.Bucket }

func recordIn(tx *bbolt.Tx) record {
	r := record{tx.Bucket(issuedBucket), tx.Bucket(endsBucket), tx.Bucket(unissuedBucket)}
	r.entries.FillPercent, r.unissued.FillPercent = 1, 1 // they grow at one end
	return r
}

func lineOf(r Row) *journalEntry {
	l := &journalEntry{place: timeKey(r.Time, 0), v: r.Value}
	if !r.Ends.IsZero() {
		l.ends = timeKey(r.Ends, 0)
	}
	return l
}

// put adds an entry. The sequence of the bucket is the number of the last one.
func (r record) put(l *journalEntry) error {
	key := numbered(l.place, l.number)
	if err := errors.Join(r.entries.SetSequence(l.number), r.entries.Put(key, l.v)); err != nil {
		return err
	}
	if l.ends != nil {
		return r.ends.Put(numbered(l.ends, l.number), key)
	}
	// The sequence of the bucket is how many are in it.
	return errors.Join(r.unissued.Put(key, nil), r.unissued.SetSequence(r.unissued.Sequence()+1))
}

// A swept is what was taken out: how many entries, how many of them before they were due, and their size.
type sweepResult struct {
	taken, dropped int
	bytes          int64
}

// sweep takes out entries that are due, as many as most, and if that makes less room than so many bytes,
// others: refusals and failures first, the oldest of them before others, then the certificates that end
// first.
func (r record) sweep(now time.Time, most int, atLeast int64) (out sweepResult, err error) {
	deletes := func(due bool) bool { return due && out.taken < most || out.bytes < atLeast }
	take := func(entry []byte, index *bbolt.Bucket, key []byte, due bool) error {
		entry, key = bytes.Clone(entry), bytes.Clone(key)
		out.taken++
		out.bytes += int64(len(r.entries.Get(entry)))
		if !due {
			out.dropped++
		}
		return errors.Join(r.entries.Delete(entry), index.Delete(key))
	}
	oldest := r.unissued.Cursor()
	for key, _ := oldest.First(); key != nil; key, _ = oldest.First() {
		due := r.unissued.Sequence() > MaxUnissued || timeOf(key).Add(KeepUnissued).Before(now)
		if !deletes(due) {
			break
		}
		if err := errors.Join(take(key, r.unissued, key, due), r.unissued.SetSequence(r.unissued.Sequence()-1)); err != nil {
			return out, err
		}
	}
	ended := r.ends.Cursor()
	for at, key := ended.First(); at != nil; at, key = ended.First() {
		due := timeOf(at).Add(KeepEnded).Before(now)
		if !deletes(due) {
			break
		}
		if err := take(key, r.ends, at, due); err != nil {
			return out, err
		}
	}
	return out, nil
}

// newestFirst visits entries from the newest on, or from the one before after, until visit returns false or an error.
func (r record) newestFirst(after []byte, visit Visitor) error {
	entries := r.entries.Cursor()
	k, v := entries.Last()
	if len(after) > 0 {
		if k, _ = entries.Seek(after); k == nil {
			k, v = entries.Last()
		} else {
			k, v = entries.Prev()
		}
	}
	for ; k != nil; k, v = entries.Prev() {
		if more, err := visit(k, Row{Time: timeOf(k), Value: v, key: k}); err != nil || !more {
			return err
		}
	}
	return nil
}

// soonestFirst visits the entries of certificates in the order of their ends, from one on, until visit returns false
// or an error.
func (r record) soonestFirst(after []byte, from time.Time, visit Visitor) error {
	ends := r.ends.Cursor()
	start := after
	if len(after) == 0 && !from.IsZero() {
		start = timeKey(from, 0)
	}
	at, key := ends.First()
	if len(start) > 0 {
		at, key = ends.Seek(start)
	}
	for ; at != nil; at, key = ends.Next() {
		if bytes.Equal(at, after) {
			continue
		}
		v := r.entries.Get(key)
		if v == nil {
			return fmt.Errorf("%w: bucket %q has no key %x, which bucket %q names", ErrDamaged, issuedBucket, key, endsBucket)
		}
		if more, err := visit(at, Row{Time: timeOf(key), Ends: timeOf(at), Value: v, key: key}); err != nil || !more {
			return err
		}
	}
	return nil
}
