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
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	"go.etcd.io/bbolt"
)

// Retention of the issuance record. The store deletes entries that are due when it imports new ones.
const (
	// KeepEnded is how long the entry of a certificate is kept after the certificate has ended, by default.
	KeepEnded = 90 * 24 * time.Hour
	// KeepUnissued is how long refusals and failures are kept. MaxUnissued is how many of them are kept,
	// because every client can cause refusals.
	KeepUnissued = 30 * 24 * time.Hour
	MaxUnissued  = 100_000
	// MaxSize is how many bytes of the file can be in use, enough for 1.4 million certificates. Above it,
	// and when the disk is full, the store drops entries before they are due: see [Issued.Dropped].
	MaxSize = 4 << 30
)

// sweptForOne is how many due entries are deleted at most for each new entry. It is more than one, so that
// the record shrinks. It is small, because a client waits for its certificate.
const sweptForOne = 4

// Issued stores the issuance record in the file of a [Store], as rows. Package
// signer/issuance/boltrecord encodes and decodes them.
//
// It first writes entries to a journal, a second file. It then imports many of them at once into the
// database: when a half of the journal is full, when the record is read, and in Close. After a crash, Open
// imports them.
type Issued struct {
	store *Store
	now   func() time.Time

	appends batch.Queue[struct{}, *journalEntry]
	writing sync.Mutex // guards the next three fields
	journal journal
	number  uint64 // of the last entry
	closed  bool

	importing sync.Mutex // held while lines are imported into the database
	imports   sync.WaitGroup

	mu      sync.Mutex      // guards the next four fields
	pending []*journalEntry // in the journal, but not in the database yet
	known   uint64          // number of the last entry in the database
	dropped int
	last    time.Time // when the last entry was dropped

	retention time.Duration
	maxSize   int64
	cut       bool

	journaled []*journalEntry // see Journaled
}

// A Row is one entry of the issuance record.
type Row struct {
	// Time is when the entry was made.
	Time time.Time
	// Ends is when the certificate of the entry ends; zero if none was issued.
	Ends time.Time
	// Value is the entry as a JSON object. Its fields "time", "outcome" and "notAfter" must agree with Time
	// and Ends, because after a crash, Open reads them from the journal. If the fields or their meaning
	// change, schemaVersion must change too.
	Value []byte

	key []byte // only in rows that were read
}

// readRow returns the row with this value. Its errors never contain the value.
func readRow(value []byte) (Row, error) {
	var e struct {
		Time     time.Time `json:"time"`
		Outcome  string    `json:"outcome"`
		NotAfter time.Time `json:"notAfter"`
	}
	if err := json.Unmarshal(value, &e); err != nil {
		return Row{}, rows.WithoutValue(err)
	}
	r := Row{Time: e.Time, Value: value}
	known := e.Outcome == "refused" || e.Outcome == "failed"
	if e.Outcome == "issued" {
		r.Ends, known = e.NotAfter, !e.NotAfter.Before(firstTime)
	}
	if !known || e.Time.Before(firstTime) || e.Time.After(lastTime) {
		return Row{}, errors.New("invalid outcome or time")
	}
	return r, nil
}

// Decode decodes Value into e and refuses unknown fields. Its errors come from [Row.Damaged] and never
// contain the value.
func (r Row) Decode(e any) error {
	if err := rows.Unmarshal(r.Value, e); err != nil {
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

// Append stores a row. When Append returns, the row is on the disk. Append does not compare Time and Ends
// with Value: package signer/issuance/boltrecord creates rows in which they agree.
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

// Truncated reports whether entries at the end of the record were missing or damaged when the store was opened.
// Either a crash interrupted Append, whose certificates were then never delivered, or the disk lost entries.
func (s *Issued) Truncated() bool { return s.cut }

// Dropped returns how many entries the store has dropped before they were due since it was opened, and when
// it dropped the last one. It drops entries if the disk is full or the file reaches [MaxSize]: refusals and
// failures first, then the certificates that end first.
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

// appendAll writes lines to the journal. It uses one write and one sync for as many as fit into the current half.
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
	if size := sizeOf(lines...); size > journalHalf { // one line that is larger than any request can be
		return s.keepWithoutJournal(lines)
	} else if !s.journal.fits(size) {
		if err := s.switchHalf(); err != nil {
			return err
		}
	}
	if err := s.journal.write(lines); isFull(err) { // the journal could not be created or written
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

// keepWithoutJournal imports lines into the database, after all pending lines.
func (s *Issued) keepWithoutJournal(lines []*journalEntry) error {
	if err := s.importAll(lines...); err != nil {
		return err
	}
	s.number += uint64(len(lines))
	// The numbers in a half must be consecutive, so start the half again. All its entries are in the database.
	s.journal.used = 0
	return nil
}

// switchHalf switches to the other half of the journal, once the entries in it are in the database. It starts to
// import the full half in the background.
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
	s.imports.Go(func() { _ = s.importAll() }) // after a failure, the next turn imports again and returns the error
	return nil
}

// importAll imports the pending lines into the database, followed by more.
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
	if err := s.store.write(&write{do: func(tx *bbolt.Tx) (err error) {
		r := recordIn(tx)
		for _, l := range all {
			if err := r.put(l); err != nil {
				return err
			}
		}
		out, err = r.sweep(s.now(), s.retention, sweptForOne*len(all), s.store.inUse(tx)+sizeOf(all...)-s.maxSize)
		return err
	}}); err != nil {
		return err
	}
	s.addDropped(out)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending, s.known = slices.Clone(s.pending[len(pending):]), all[len(all)-1].number
	return nil
}

// replay imports the entries that a crash has left in the journal, and removes the journal.
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

// close imports all pending lines and removes the journal. If the import fails, the journal stays.
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

// A Visitor gets a row and its place. It returns whether it wants more rows. A later walk can continue
// from the place. Row and place are valid only during the call.
type Visitor func(place []byte, r Row) (more bool, err error)

// NewestFirst visits the rows from the newest to the oldest. If after is not empty, it starts behind that
// place. The rows have no Ends.
func (s *Issued) NewestFirst(after []byte, visit Visitor) error {
	return s.walk(func(r record) error { return r.newestFirst(after, visit) })
}

// SoonestFirst visits the rows of certificates that end at from or later, in the order in which they end.
// If after is not empty, SoonestFirst starts behind that place instead.
func (s *Issued) SoonestFirst(after []byte, from time.Time, visit Visitor) error {
	return s.walk(func(r record) error { return r.soonestFirst(after, from, visit) })
}

func (s *Issued) walk(visit func(record) error) error {
	if err := s.importAll(); err != nil {
		return err
	}
	return s.store.read(func(tx *bbolt.Tx) error { return visit(recordIn(tx)) })
}
