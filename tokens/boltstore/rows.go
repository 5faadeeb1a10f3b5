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

// A place is a key in the issuance record that sorts by time. It has 8 bytes of a time in nanoseconds, then
// 8 bytes of the number of the entry, which distinguishes entries with the same time. In the buckets "issued"
// and "unissued" it is the time of the entry, in "ends" the time when the certificate ends.

// firstTime and lastTime are the range of times in a place. Later times, such as the end of certificates
// that never expire, are stored as lastTime.
var firstTime, lastTime = time.Unix(0, 0), time.Unix(0, math.MaxInt64)

func timeKey(at time.Time, number uint64) []byte {
	if at.Before(firstTime) {
		at = firstTime
	} else if at.After(lastTime) {
		at = lastTime
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano())), number)
}

// numbered returns a place with the same time and another number.
func numbered(place []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(slices.Clip(place[:8]), number)
}

func timeOf(place []byte) time.Time {
	if len(place) != PlaceLen {
		return time.Time{}
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(place)))
}

// record has the buckets of the issuance record in a transaction.
type record struct{ entries, ends, unissued *bbolt.Bucket }

func recordIn(tx *bbolt.Tx) record {
	r := record{tx.Bucket(issuedBucket), tx.Bucket(endsBucket), tx.Bucket(unissuedBucket)}
	r.entries.FillPercent, r.unissued.FillPercent = 1, 1 // new keys go to the end
	return r
}

func lineOf(r Row) *journalEntry {
	l := &journalEntry{place: timeKey(r.Time, 0), v: r.Value}
	if !r.Ends.IsZero() {
		l.ends = timeKey(r.Ends, 0)
	}
	return l
}

// put adds an entry. The sequence of bucket "issued" is the number of the last entry.
func (r record) put(l *journalEntry) error {
	key := numbered(l.place, l.number)
	if err := errors.Join(r.entries.SetSequence(l.number), r.entries.Put(key, l.v)); err != nil {
		return err
	}
	if l.ends != nil {
		return r.ends.Put(numbered(l.ends, l.number), key)
	}
	// The sequence of bucket "unissued" is the number of its entries.
	return errors.Join(r.unissued.Put(key, nil), r.unissued.SetSequence(r.unissued.Sequence()+1))
}

// A sweepResult is the result of sweep: the number of deleted entries, how many of them were not due yet, and the
// bytes of all their values.
type sweepResult struct {
	taken, dropped int
	bytes          int64
}

// sweep deletes up to most entries that are due. While the deleted values have fewer than atLeast bytes, it
// deletes any entries, due or not. It begins with refusals and failures, the oldest first, and continues
// with the certificates that end first.
func (r record) sweep(now time.Time, retention time.Duration, most int, atLeast int64) (out sweepResult, err error) {
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
		due := timeOf(at).Add(retention).Before(now)
		if !deletes(due) {
			break
		}
		if err := take(key, r.ends, at, due); err != nil {
			return out, err
		}
	}
	return out, nil
}

// newestFirst visits the entries from the newest to the oldest, until visit returns false or an error. If
// after is not empty, it starts behind that place.
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

// soonestFirst visits the entries of certificates in the order in which the certificates end, until visit returns
// false or an error. It starts behind the place after, or at the time from if after is empty.
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
			return fmt.Errorf("%w: bucket %q has no key %x, but bucket %q refers to it", ErrDamaged, issuedBucket, key, endsBucket)
		}
		if more, err := visit(at, Row{Time: timeOf(key), Ends: timeOf(at), Value: v, key: key}); err != nil || !more {
			return err
		}
	}
	return nil
}
