package etcdstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Folders of the issuance record. A place is the time of an entry and random characters. The times of places are
// inverted, so that the newest entry comes first, because etcd reads a whole range to sort it in another order.
//   - entries/PLACE: the entries.
//   - nodes/NODE/PLACE, tokens/ID/PLACE: indexes. The values are the times when the certificates end.
//   - serials/SERIAL/PLACE: an index of certificates. The values are empty.
//   - ends/TIME-PLACE: certificates by the time when they end. The values are the keys of the other indexes, which
//     end with the entry.
//   - unissued/TIME-PLACE: refusals and failures by their time. The values are as in ends.
const (
	entriesFolder  = "issued/entries/"
	nodesFolder    = "issued/nodes/"
	idsFolder      = "issued/tokens/"
	serialsFolder  = "issued/serials/"
	endsFolder     = "issued/ends/"
	unissuedFolder = "issued/unissued/"
)

// Bounds of the issuance record. Each entry needs some 2 KB in etcd's database, and 1.6 KB of memory of each member.
const (
	// MaxUnissued is how many refusals and failures are kept, because every client can cause refusals. They are kept
	// for KeepUnissued.
	MaxUnissued  = 100_000
	KeepUnissued = 30 * 24 * time.Hour
	// MaxCertificates is how many entries of certificates are kept. The first to end are dropped first.
	MaxCertificates = 1_000_000
)

// Issued stores the issuance record in etcd, as rows. Package signer/issuance/etcdrecord encodes and decodes them.
type Issued struct{ store *Store }

// Issued returns the issuance record in etcd. It can be used until the store is closed.
func (s *Store) Issued() *Issued { return &s.issued }

// An IssuedRow is one entry of the issuance record.
type IssuedRow struct {
	// Time is when the entry was made.
	Time time.Time
	// Ends is when the certificate of the entry ends; zero if none was issued.
	Ends time.Time
	// Value is the entry as JSON.
	Value []byte
	// Nodes, TokenID and Serial are what the entry is found by; empty for none.
	Nodes           []string
	TokenID, Serial string
}

// PlaceLen and EndsPlaceLen are the lengths of places: from the newest to the oldest, and from those that end first.
const (
	PlaceLen     = timeLen + suffixLen
	EndsPlaceLen = timeLen + 1 + PlaceLen
	timeLen      = 16
	suffixLen    = 8
)

// timeText returns a time so that texts sort like times. Times before 1970 are 1970, and those after 2262 are 2262.
func timeText(t time.Time) string {
	return fmt.Sprintf("%016x", nanos(t))
}

func nanos(t time.Time) int64 {
	switch {
	case t.Before(time.Unix(0, 0)):
		return 0
	case t.After(time.Unix(0, math.MaxInt64)):
		return math.MaxInt64
	}
	return t.UnixNano()
}

// inverted returns a time so that texts sort in the reverse order of times.
func inverted(t time.Time) string { return fmt.Sprintf("%016x", math.MaxInt64-nanos(t)) }

// Append stores a row.
func (s *Issued) Append(ctx context.Context, r IssuedRow) error {
	ops := s.put(inverted(r.Time)+rand.Text()[:suffixLen], r)
	_, err := s.store.write(ctx, nil, ops)
	return wrapRecord(err)
}

func (s *Issued) put(place string, r IssuedRow) []clientv3.Op {
	kv, ends := s.store.kv, ""
	if !r.Ends.IsZero() {
		ends = timeText(r.Ends)
	}
	ops := []clientv3.Op{kv.put(entriesFolder+place, r.Value)}
	var keys []string
	index := func(key, value string) {
		key += "/" + place
		keys, ops = append(keys, key), append(ops, kv.put(key, []byte(value)))
	}
	for _, node := range slices.Compact(slices.Sorted(slices.Values(r.Nodes))) {
		index(nodesFolder+node, ends)
	}
	if r.TokenID != "" {
		index(idsFolder+r.TokenID, ends)
	}
	if r.Serial != "" {
		index(serialsFolder+r.Serial, "")
	}
	end := unissuedFolder + timeText(r.Time)
	if ends != "" {
		end = endsFolder + ends
	}
	return append(ops, kv.put(end+"-"+place, []byte(strings.Join(keys, "\n"))))
}

// A Visitor gets the place and the value of an entry. It returns whether it wants more entries. A later walk can
// continue behind the place.
type Visitor func(place string, value []byte) (more bool, err error)

// An Index selects entries. The zero Index selects none.
type Index struct{ folder string }

// AllIssued selects all entries.
func AllIssued() Index { return Index{entriesFolder} }

// IssuedOfNode, IssuedOfToken and IssuedOfSerial select the entries that were stored with this node, token or serial
// number.
func IssuedOfNode(name string) Index { return Index{nodesFolder + name + "/"} }

// IssuedOfToken is described at [IssuedOfNode].
func IssuedOfToken(id string) Index { return Index{idsFolder + id + "/"} }

// IssuedOfSerial is described at [IssuedOfNode].
func IssuedOfSerial(serial string) Index { return Index{serialsFolder + serial + "/"} }

// Unissued selects the entries of refusals and failures. There are at most [MaxUnissued].
func Unissued() Index { return Index{unissuedFolder} }

// issuedPage is how many entries a walk reads at once: etcd allows 128 operations in a transaction by default.
const issuedPage = 100

// NewestFirst visits the entries of an index from the newest to the oldest, down to the time since. If after is not
// empty, it starts behind that place.
func (s *Issued) NewestFirst(ctx context.Context, index Index, after string, since time.Time, visit Visitor) error {
	placeOf := func(row *mvccpb.KeyValue) string { return string(row.Key)[len(s.store.kv.prefix)+len(index.folder):] }
	switch index.folder {
	case entriesFolder:
		return wrapRecord(s.timed(ctx, entriesFolder, after, math.MaxInt64-nanos(time.Now()), math.MaxInt64-nanos(since), issuedPage, func(page []*mvccpb.KeyValue) (bool, error) {
			places, values := make([]string, len(page)), make([][]byte, len(page))
			for i, row := range page {
				places[i], values[i] = placeOf(row), row.Value
			}
			return visitAll(places, values, visit)
		}))
	case unissuedFolder: // the oldest comes first
		var places []string
		if err := s.timed(ctx, unissuedFolder, timeText(since), nanos(since), math.MaxInt64, pageSize, func(page []*mvccpb.KeyValue) (bool, error) {
			for _, row := range page {
				if place := placeOf(row)[timeLen+1:]; place > after {
					places = append(places, place)
				}
			}
			return true, nil
		}); err != nil {
			return wrapRecord(err)
		}
		return wrapRecord(s.visitSorted(ctx, places, visit))
	}
	last := index.folder
	if !since.IsZero() {
		last += inverted(since)
	}
	return wrapRecord(s.pages(ctx, behind(index.folder, after), last, issuedPage, func(page []*mvccpb.KeyValue) (bool, error) {
		places := make([]string, len(page))
		for i, row := range page {
			places[i] = placeOf(row)
		}
		return s.visitPlaces(ctx, places, visit)
	}))
}

// SoonestFirst visits the entries of certificates in an index that end at from or later, in the order in which they
// end. If after is not empty, it starts behind that place instead.
func (s *Issued) SoonestFirst(ctx context.Context, index Index, after string, from time.Time, visit Visitor) error {
	if after == "" {
		after = timeText(from)
	}
	if index.folder == entriesFolder {
		return wrapRecord(s.timed(ctx, endsFolder, after, nanos(from), math.MaxInt64, issuedPage, func(page []*mvccpb.KeyValue) (bool, error) {
			var places []string
			for _, row := range page {
				places = append(places, string(row.Key)[len(s.store.kv.prefix)+len(endsFolder):])
			}
			return s.visitPlaces(ctx, places, visit)
		}))
	}
	var places []string
	if err := s.pages(ctx, index.folder, index.folder, pageSize, func(page []*mvccpb.KeyValue) (bool, error) {
		for _, row := range page {
			place := string(row.Value) + "-" + string(row.Key)[len(s.store.kv.prefix)+len(index.folder):]
			if len(row.Value) == timeLen && place > after {
				places = append(places, place)
			}
		}
		return true, nil
	}); err != nil {
		return wrapRecord(err)
	}
	return wrapRecord(s.visitSorted(ctx, places, visit))
}

func (s *Issued) visitSorted(ctx context.Context, places []string, visit Visitor) error {
	slices.Sort(places)
	for page := range slices.Chunk(places, issuedPage) {
		if more, err := s.visitPlaces(ctx, page, visit); err != nil || !more {
			return err
		}
	}
	return nil
}

// visitPlaces visits the entries at at most issuedPage places. The places may have other text in front.
func (s *Issued) visitPlaces(ctx context.Context, places []string, visit Visitor) (more bool, err error) {
	of := make([]string, len(places))
	for i, place := range places {
		of[i] = place[len(place)-PlaceLen:]
	}
	values, err := s.entries(ctx, of)
	if err != nil {
		return false, err
	}
	return visitAll(places, values, visit)
}

func behind(folder, after string) string {
	if after == "" {
		return folder
	}
	return folder + after + "\x00"
}

func visitAll(places []string, values [][]byte, visit Visitor) (more bool, err error) {
	for i, value := range values {
		if value == nil { // swept since
			continue
		}
		if more, err := visit(places[i], value); err != nil || !more {
			return false, err
		}
	}
	return true, nil
}

func wrapRecord(err error) error {
	if err != nil {
		return fmt.Errorf("issuance record: %w", err)
	}
	return nil
}

// pages calls visit with pages of rows, from the key from up to the last key with the prefix last.
func (s *Issued) pages(ctx context.Context, from, last string, size int64, visit func([]*mvccpb.KeyValue) (bool, error), options ...clientv3.OpOption) error {
	kv := s.store.kv
	from, end := kv.prefix+from, clientv3.GetPrefixRangeEnd(kv.prefix+last)
	for {
		var page *clientv3.GetResponse
		if err := kv.call(ctx, func(ctx context.Context) (err error) {
			page, err = kv.client.Get(ctx, from, append([]clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(size)}, options...)...)
			return err
		}); err != nil {
			return err
		}
		if more, err := visit(page.Kvs); err != nil || !more || !page.More || len(page.Kvs) == 0 {
			return err
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// timeOf returns the time at the beginning of a place, as the number that it was made of.
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

// firstWindow is how much time the first read of [Issued.timed] covers, in nanoseconds.
const firstWindow = int64(time.Hour)

// timed is pages for a folder whose keys begin with a time. It reads behind after, from the beginning of the folder up to
// the time last. Most rows should be after the time first.
//
// etcd visits all keys in the range of a read, even if it returns few of them, and holds a lock meanwhile: a quarter of
// a second for a million. So each read has a short range, which grows where there are few keys.
func (s *Issued) timed(ctx context.Context, folder, after string, first, last int64, size int64, visit func([]*mvccpb.KeyValue) (bool, error)) error {
	kv := s.store.kv
	folder = kv.prefix + folder
	if after != "" {
		t, err := timeOf(after)
		if err != nil {
			return nil // no place begins like this
		}
		first = t
	}
	from, window := behind(folder, after), firstWindow
	for {
		end, isLast := folder+fmt.Sprintf("%016x", first+window), false
		if first >= last-window {
			end, isLast = clientv3.GetPrefixRangeEnd(folder+fmt.Sprintf("%016x", last)), true
		}
		var page *clientv3.GetResponse
		if err := kv.call(ctx, func(ctx context.Context) (err error) {
			page, err = kv.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(size))
			return err
		}); err != nil {
			return err
		}
		if more, err := visit(page.Kvs); err != nil || !more {
			return err
		}
		switch {
		case page.More:
			key := string(page.Kvs[len(page.Kvs)-1].Key)
			t, err := timeOf(key[len(folder):])
			if err != nil {
				return kv.damaged(strings.TrimPrefix(key, kv.prefix), err)
			}
			from, first = key+"\x00", t
		case isLast:
			return nil
		default:
			from, first = end, first+window
		}
		switch {
		case page.Count > 10*size:
			window = max(window/16, 1)
		case page.Count < size:
			window = min(window, math.MaxInt64/16) * 16
		}
	}
}

// entries returns the entries at at most issuedPage places; nil for an entry that is gone.
func (s *Issued) entries(ctx context.Context, places []string) ([][]byte, error) {
	kv, values := s.store.kv, make([][]byte, len(places))
	if len(places) == 0 {
		return nil, nil
	}
	ops := make([]clientv3.Op, len(places))
	for i, place := range places {
		ops[i] = clientv3.OpGet(kv.prefix + entriesFolder + place)
	}
	return values, kv.call(ctx, func(ctx context.Context) error {
		got, err := kv.client.Txn(ctx).Then(ops...).Commit()
		if err != nil {
			return err
		}
		for i, response := range got.Responses {
			if rows := response.GetResponseRange().Kvs; len(rows) > 0 {
				values[i] = rows[0].Value
			}
		}
		return nil
	})
}

// A Swept is the result of [Issued.Sweep].
type Swept struct {
	// Deleted is how many entries were deleted, and Dropped how many of them were not due yet.
	Deleted, Dropped int
}

// sweptAtOnce is how many entries one transaction deletes. An entry has up to six keys.
const sweptAtOnce = 16

// Sweep deletes entries of certificates that ended before now minus retention, entries of refusals and failures older
// than [KeepUnissued], and the first of those beyond [MaxCertificates] and [MaxUnissued]. One replica at a time should
// call it.
func (s *Issued) Sweep(ctx context.Context, now time.Time, retention time.Duration) (Swept, error) {
	var out Swept
	err := errors.Join(
		s.sweep(ctx, endsFolder, now.Add(-retention), MaxCertificates, &out),
		s.sweep(ctx, unissuedFolder, now.Add(-KeepUnissued), MaxUnissued, &out),
	)
	return out, wrapRecord(err)
}

func (s *Issued) sweep(ctx context.Context, folder string, due time.Time, most int64, out *Swept) error {
	kv := s.store.kv
	count, err := s.count(ctx, folder)
	if err != nil {
		return err
	}
	extra, last := count-most, nanos(due)
	if extra > 0 {
		last = math.MaxInt64
	}
	return s.timed(ctx, folder, "", nanos(due), last, sweptAtOnce, func(page []*mvccpb.KeyValue) (bool, error) {
		var ops []clientv3.Op
		deleted, dropped, more := 0, 0, true
		for _, row := range page {
			key := strings.TrimPrefix(string(row.Key), kv.prefix)
			place := key[len(folder):]
			isDue := place < timeText(due)
			if !isDue && extra <= 0 {
				more = false
				break
			}
			if !isDue {
				dropped++
			}
			extra--
			deleted++
			ops = append(ops, kv.delete(key), kv.delete(entriesFolder+place[timeLen+1:]))
			for index := range strings.SplitSeq(string(row.Value), "\n") {
				if index != "" {
					ops = append(ops, kv.delete(index))
				}
			}
		}
		if len(ops) == 0 {
			return more, nil
		}
		if _, err := s.store.write(ctx, nil, ops); err != nil {
			return false, err
		}
		out.Deleted, out.Dropped = out.Deleted+deleted, out.Dropped+dropped
		return more, nil
	})
}

// count returns the number of keys in a folder.
func (s *Issued) count(ctx context.Context, folder string, options ...clientv3.OpOption) (n int64, err error) {
	err = s.store.kv.call(ctx, func(ctx context.Context) error {
		got, err := s.store.kv.client.Get(ctx, s.store.kv.prefix+folder, append(options, clientv3.WithPrefix(), clientv3.WithCountOnly())...)
		if err == nil {
			n = got.Count
		}
		return err
	})
	return n, err
}
