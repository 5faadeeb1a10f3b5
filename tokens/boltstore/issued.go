package boltstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
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

// Issued keeps the issuance record in the file of a [Store], as rows. Package
// signer/issuance/boltrecord encodes and decodes them.
//
// Entries go into a journal beside the file first, and many of them at once from there into the
// database: when a half of the journal is full, when the record is asked, and at Close. After a
// crash Open does it.
type Issued struct {
	store *Store
	hints tokens.Hints // nobody watches
	now   func() time.Time

	appends batch.Queue[struct{}, *journalEntry]
	writing sync.Mutex // guards what follows
	journal journal
	number  uint64 // of the last entry
	closed  bool

	importing sync.Mutex // held while lines go into the database
	imports   sync.WaitGroup

	mu      sync.Mutex      // guards what follows
	pending []*journalEntry // in the journal, and not in the database
	known   uint64          // number of the last one in the database
	dropped int
	last    time.Time // when one was dropped

	maxSize int64
	cut     bool
}

// A Row is one entry of the issuance record.
type Row struct {
	// Time is when the entry was made.
	Time time.Time
	// Ends is when the certificate of the entry ends; zero if none was issued.
	Ends time.Time
	// Value is the entry as a JSON object. Its fields "time", "outcome" and "notAfter" say the same
	// as Time and Ends: after a crash, Open reads them from the journal. A change of its fields or of
	// their meaning needs another schemaVersion.
	Value []byte

	key []byte // of a row that was read
}

// readRow returns the row with this value. Its errors never show the value.
func readRow(value []byte) (Row, error) {
	var e struct {
		Time     time.Time `json:"time"`
		Outcome  string    `json:"outcome"`
		NotAfter time.Time `json:"notAfter"`
	}
	if err := json.Unmarshal(value, &e); err != nil {
		return Row{}, withoutValue(err)
	}
	r := Row{Time: e.Time, Value: value}
	known := e.Outcome == "refused" || e.Outcome == "failed"
	if e.Outcome == "issued" {
		r.Ends, known = e.NotAfter, !e.NotAfter.Before(firstTime)
	}
	if !known || e.Time.Before(firstTime) || e.Time.After(lastTime) {
		return Row{}, errors.New("an entry that nobody may have made")
	}
	return r, nil
}

// Decode reads Value strictly into e. Its errors are as those of [Row.Damaged] and never show the value.
func (r Row) Decode(e any) error {
	if err := unmarshal(r.Value, e); err != nil {
		return r.Damaged(err)
	}
	return nil
}

// Damaged returns an error that wraps [ErrDamaged] and err, and names the row.
func (r Row) Damaged(err error) error {
	return fmt.Errorf("%w: bucket %q, key %x: %w", ErrDamaged, issuedBucket, r.key, err)
}

// Issued returns the issuance record in the file. It can be used until the store is closed.
func (s *Store) Issued() *Issued { return &s.issued }

// Append keeps a row. It is on the disk when Append returns. Append does not compare Time and Ends with Value: package
// signer/issuance/boltrecord makes rows in which they agree.
func (s *Issued) Append(ctx context.Context, r Row) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l := lineOf(r)
	if err := s.appends.Do(context.Background(), struct{}{}, l, s.appendAll); err != nil {
		return err
	}
	return l.err
}

// Truncated reports whether the end of the record could not be read when the store was opened: a crash
// came while entries were written, of certificates that have not left, or a disk has lost some.
func (s *Issued) Truncated() bool { return s.cut }

// Dropped is how many entries were taken out before they were due since the store was opened, and when
// the last one was: the disk was full, or the file had reached [MaxSize]. Refusals and failures go first,
// then the certificates that end first.
func (s *Issued) Dropped() (entries int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped, s.last
}

func (s *Issued) addDropped(out sweepResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.dropped > 0 {
		s.dropped, s.last = s.dropped+out.dropped, s.now()
	}
}

// appendAll keeps lines in the journal, with one write and sync for as many as it has room for.
func (s *Issued) appendAll(_ context.Context, all []*journalEntry) {
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

func (s *Issued) keep(lines []*journalEntry) error {
	if s.closed {
		return fmt.Errorf("%s: %w", s.store.path, os.ErrClosed)
	}
	for i, l := range lines {
		l.number = s.number + 1 + uint64(i)
	}
	if size := sizeOf(lines...); size > journalHalf { // of a request that is larger than any that is served
		return s.keepWithoutJournal(lines)
	} else if !s.journal.fits(size) {
		if err := s.switchHalf(); err != nil {
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
func (s *Issued) keepWithoutJournal(lines []*journalEntry) error {
	if err := s.importAll(lines...); err != nil {
		return err
	}
	s.number += uint64(len(lines))
	s.journal.used = 0 // numbers go on from entry to entry, and all is in the database
	return nil
}

// switchHalf goes on with the other half of the journal, when all that is in it is in the database, and
// has the full one imported meanwhile.
func (s *Issued) switchHalf() error {
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
func (s *Issued) importAll(more ...*journalEntry) error {
	s.importing.Lock()
	defer s.importing.Unlock()
	s.mu.Lock()
	pending := s.pending
	s.mu.Unlock()
	all := append(slices.Clip(pending), more...)
	if len(all) == 0 {
		return nil
	}
	var out sweepResult
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
	s.addDropped(out)
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
		r, err := readRow(l.v)
		if err != nil {
			return fmt.Errorf("%s: %w: entry %d: %w", s.journal.path, ErrDamaged, l.number, err)
		}
		lines[i] = lineOf(r)
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

// PlaceLen is the length of a place in the record, in bytes.
const PlaceLen = 16

// A Visitor is called with a row and with its place, from which a later walk can go on. It returns
// whether it wants more rows. Both are valid during the call only.
type Visitor func(place []byte, r Row) (more bool, err error)

// NewestFirst visits all rows, the newest first. With a place in after it begins behind that place.
// The rows have no Ends.
func (s *Issued) NewestFirst(after []byte, visit Visitor) error {
	return s.walk(func(r record) error { return r.newestFirst(after, visit) })
}

// SoonestFirst visits the rows of certificates that end at from or later, the one that ends first
// first. With a place in after it begins behind that place instead.
func (s *Issued) SoonestFirst(after []byte, from time.Time, visit Visitor) error {
	return s.walk(func(r record) error { return r.soonestFirst(after, from, visit) })
}

func (s *Issued) walk(visit func(record) error) error {
	if err := s.importAll(); err != nil {
		return err
	}
	return s.store.read(func(tx *bbolt.Tx) error { return visit(recordIn(tx)) })
}
