package boltstore

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// How long the issuance record is kept in the file. What is due goes as new entries come.
const (
	// KeepEnded is how long the entry of a certificate is kept after the certificate has ended.
	KeepEnded = 90 * 24 * time.Hour
	// KeepUnissued is how long refusals and failures are kept, and MaxUnissued how many of them:
	// anybody who may ask can be refused.
	KeepUnissued = 30 * 24 * time.Hour
	MaxUnissued  = 100_000
	// MaxSize is how many bytes of the file may be in use, 1.4 million certificates. Beyond that, and
	// when the disk is full, entries are dropped before they are due: see [Issued.Dropped].
	MaxSize = 4 << 30
)

// sweptForOne is how many entries go at most as one comes: more than one, so that the record gets
// smaller, and few, since somebody waits for a certificate.
const sweptForOne = 4

// Issued is the [issuance.Store] in the file of a [Store]. A row is an entry as JSON: a change of
// its fields or of their meaning needs another schemaVersion.
//
// Entries go into a journal beside the file first, and many of them at once from there into the
// database: when a half of the journal is full, when the record is asked, and at Close. After a
// crash Open does it.
type Issued struct {
	store *Store
	hints tokens.Hints // nobody watches
	now   func() time.Time

	appends batch.Queue[struct{}, *line]
	writing sync.Mutex // guards what follows
	journal journal
	number  uint64 // of the last entry
	closed  bool

	importing sync.Mutex // held while lines go into the database
	imports   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	pending []*line    // in the journal, and not in the database
	known   uint64     // number of the last one in the database
	dropped int
	last    time.Time // when one was dropped

	maxSize int64
	cut     bool
}

var _ issuance.Store = (*Issued)(nil)

// Issued gives the issuance record in the file, for as long as the store is open.
func (s *Store) Issued() *Issued { return &s.issued }

// Append implements [issuance.Log]. The entry is on the disk when it returns.
func (s *Issued) Append(ctx context.Context, e issuance.Entry) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkEntry(e); err != nil {
		return fmt.Errorf("issuance record: %w", err)
	}
	v, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("issuance record: encode: %w", err)
	}
	l := lineOf(e, v)
	if err := s.appends.Do(context.Background(), struct{}{}, l, s.appendAll); err != nil {
		return err
	}
	return l.err
}

// Cut reports whether the end of the record could not be read when the store was opened: a crash
// came while entries were written, of certificates that have not left, or a disk has lost some.
func (s *Issued) Cut() bool { return s.cut }

// Dropped is how many entries were taken out before they were due since the store was opened, and when
// the last one was: the disk was full, or the file had reached [MaxSize]. Refusals and failures go first,
// then the certificates that end first.
func (s *Issued) Dropped() (entries int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped, s.last
}

func (s *Issued) drops(out swept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.dropped > 0 {
		s.dropped, s.last = s.dropped+out.dropped, s.now()
	}
}

// appendAll keeps lines in the journal, with one write and sync for as many as it has room for.
func (s *Issued) appendAll(_ context.Context, all []*line) {
	s.writing.Lock()
	defer s.writing.Unlock()
	for len(all) > 0 {
		n := 1
		for n < len(all) && s.journal.fits(sizeOf(all[:n+1]...)) {
			n++
		}
		err := s.keep(all[:n])
		for _, l := range all[:n] {
			l.err = err
		}
		all = all[n:]
	}
}

func (s *Issued) keep(lines []*line) error {
	if s.closed {
		return fmt.Errorf("%s: %w", s.store.path, os.ErrClosed)
	}
	for i, l := range lines {
		l.number = s.number + 1 + uint64(i)
	}
	if size := sizeOf(lines...); size > journalHalf { // of a request that is larger than any that is served
		return s.keepWithoutJournal(lines)
	} else if !s.journal.fits(size) {
		if err := s.turn(); err != nil {
			return err
		}
	}
	if err := s.journal.write(lines); isFull(err) { // which has no place yet, or not where it was
		return s.keepWithoutJournal(lines)
	} else if err != nil {
		return err
	}
	s.number += uint64(len(lines))
	s.mu.Lock()
	s.pending = append(s.pending, lines...)
	s.mu.Unlock()
	return nil
}

// keepWithoutJournal brings lines into the database, after all that is pending.
func (s *Issued) keepWithoutJournal(lines []*line) error {
	if err := s.importAll(lines...); err != nil {
		return err
	}
	s.number += uint64(len(lines))
	s.journal.used = 0 // numbers go on from entry to entry, and all is in the database
	return nil
}

// turn goes on with the other half of the journal, when all that is in it is in the database, and
// has the full one imported meanwhile.
func (s *Issued) turn() error {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if s.journal.last[1-s.journal.half] > known {
		if err := s.importAll(); err != nil {
			return err
		}
	}
	s.journal.turn()
	s.imports.Go(func() { _ = s.importAll() }) // if it fails, the next turn says so
	return nil
}

// importAll brings what is pending, and more after it, into the database.
func (s *Issued) importAll(more ...*line) error {
	s.importing.Lock()
	defer s.importing.Unlock()
	s.mu.Lock()
	pending := s.pending
	s.mu.Unlock()
	all := append(slices.Clip(pending), more...)
	if len(all) == 0 {
		return nil
	}
	var out swept
	if err := s.store.write(&s.hints, func(tx *bbolt.Tx) (err error) {
		r := recordIn(tx)
		for _, l := range all {
			if err := r.put(l); err != nil {
				return err
			}
		}
		out, err = r.sweep(s.now(), sweptForOne*len(all), s.store.inUse(tx)+sizeOf(all...)-s.maxSize)
		return err
	}); err != nil {
		return err
	}
	s.drops(out)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending, s.known = slices.Clone(s.pending[len(pending):]), all[len(all)-1].number
	return nil
}

// replay brings what a crash has left in the journal into the database.
func (s *Issued) replay() error {
	s.journal.path = s.store.path + "-journal"
	if err := s.store.read(func(tx *bbolt.Tx) error {
		s.known = recordIn(tx).entries.Sequence()
		return nil
	}); err != nil {
		return err
	}
	s.number = s.known
	lines, complete, err := readJournal(s.journal.path, s.known)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for i, l := range lines {
		var e issuance.Entry
		if err := unmarshal(l.v, &e); err != nil {
			return fmt.Errorf("%s: %w: entry %d: %w", s.journal.path, ErrDamaged, l.number, err)
		} else if err := checkEntry(e); err != nil {
			return fmt.Errorf("%s: %w: entry %d: an entry that nobody may have made", s.journal.path, ErrDamaged, l.number)
		}
		lines[i] = lineOf(e, l.v)
		lines[i].number = l.number
		s.number = l.number
	}
	s.pending, s.cut = lines, !complete
	if err := s.importAll(); err != nil {
		return err
	}
	return os.Remove(s.journal.path)
}

// close brings all into the database. What cannot be brought there stays in the journal.
func (s *Issued) close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.imports.Wait()
	if err := s.importAll(); err != nil {
		return err
	}
	return s.journal.remove()
}

// checkEntry refuses what would not be found, or not go, again.
func checkEntry(e issuance.Entry) error {
	if e.Time.Before(firstTime) || e.Time.After(lastTime) {
		return fmt.Errorf("time %s given, want one of these centuries", e.Time)
	}
	switch e.Outcome {
	case issuance.Refused, issuance.Failed:
		return nil
	case issuance.Issued:
		if serial, err := issuance.ParseSerial(e.Serial); err != nil || serial != e.Serial {
			return fmt.Errorf("serial %.60q given, want lower case hexadecimal digits", e.Serial)
		}
		if e.NotAfter.Before(firstTime) {
			return fmt.Errorf("notAfter %s given, want the end of the certificate", e.NotAfter)
		}
		return nil
	}
	return fmt.Errorf("outcome %.20q given, want %s, %s or %s", e.Outcome, issuance.Issued, issuance.Refused, issuance.Failed)
}

// List implements [issuance.Store]. What is not asked for in the order of a bucket is looked for in
// all entries, newest first, without reading those that cannot match: 100,000 take a fraction of
// a second.
func (s *Issued) List(ctx context.Context, q issuance.Query) (issuance.Page, error) {
	var page issuance.Page
	if err := ctx.Err(); err != nil {
		return page, err
	}
	limit := q.Limit
	if limit <= 0 {
		limit = issuance.DefaultLimit
	}
	limit = min(limit, issuance.MaxLimit)
	after, err := hex.DecodeString(q.After)
	if err != nil || len(after) != 0 && len(after) != placeLen {
		return page, fmt.Errorf("%w: %.80q", issuance.ErrCursor, q.After)
	}
	if err := s.importAll(); err != nil {
		return page, err
	}
	err = s.store.read(func(tx *bbolt.Tx) error {
		r := recordIn(tx)
		var walk func(after []byte, visit func(place, key, v []byte) (bool, error)) error = r.newestFirst
		if q.ByEnd() {
			walk = r.soonestFirst(q.EndsAfter)
		}
		parts := rawParts(q)
		var last []byte
		looked := 0
		return walk(after, func(place, key, v []byte) (bool, error) {
			if looked++; looked%1000 == 0 && ctx.Err() != nil {
				return false, ctx.Err()
			}
			if past(q, place) {
				return false, nil
			}
			for _, part := range parts {
				if !bytes.Contains(v, part) {
					return true, nil
				}
			}
			e, err := decodeEntry(key, v)
			if err != nil {
				return false, err
			}
			if !q.Match(e) {
				return true, nil
			}
			if len(page.Entries) == limit { // one more that would be on the next page
				page.Next = hex.EncodeToString(last)
				return false, nil
			}
			page.Entries, last = append(page.Entries, e), bytes.Clone(place)
			return true, nil
		})
	})
	if err != nil {
		return issuance.Page{}, err
	}
	return page, nil
}

// past reports whether nothing that comes after a place can match.
func past(q issuance.Query, place []byte) bool {
	at := timeOf(place)
	if q.ByEnd() {
		return !q.EndsBefore.IsZero() && !at.Before(q.EndsBefore)
	}
	return at.Before(q.Since)
}

// rawParts are bytes that the row of each entry has that matches: to look for them takes a
// hundredth of the time of reading the row.
func rawParts(q issuance.Query) [][]byte {
	var parts [][]byte
	for name, value := range map[string]string{
		"tokenID": q.TokenID, "requester": q.Requester, "signer": q.Signer, "outcome": string(q.Outcome),
	} {
		if value == "" {
			continue
		}
		if quoted, err := json.Marshal(value); err == nil {
			parts = append(parts, fmt.Appendf(nil, "%q:%s", name, quoted))
		}
	}
	if quoted, err := json.Marshal(q.Node); err == nil && q.Node != "" {
		parts = append(parts, quoted[1:]) // after "node":" or "requester":"system:node:
	}
	return parts
}

// Get implements [issuance.Store].
func (s *Issued) Get(ctx context.Context, serial string) (issuance.Entry, error) {
	var found issuance.Entry
	serial, err := issuance.ParseSerial(serial)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return found, err
	}
	if err := s.importAll(); err != nil {
		return found, err
	}
	part := fmt.Appendf(nil, `"serial":%q`, serial)
	err = s.store.read(func(tx *bbolt.Tx) error {
		return recordIn(tx).newestFirst(nil, func(_, key, v []byte) (bool, error) {
			if !bytes.Contains(v, part) {
				return true, nil
			}
			e, err := decodeEntry(key, v)
			if err == nil {
				found = e
			}
			return false, err
		})
	})
	if err == nil && found.Serial == "" {
		err = fmt.Errorf("certificate of serial number %s: %w", serial, issuance.ErrNotFound)
	}
	return found, err
}

// decodeEntry reads what Append wrote. Its errors name the key and never show the value.
func decodeEntry(k, v []byte) (issuance.Entry, error) {
	var e issuance.Entry
	err := unmarshal(v, &e)
	if err == nil && (checkEntry(e) != nil || !e.Time.Equal(timeOf(k))) {
		err = errors.New("an entry that nobody may have made")
	}
	if err != nil {
		return e, fmt.Errorf("%w: bucket %q, key %x: %w", ErrDamaged, issuedBucket, k, err)
	}
	return e, nil
}
