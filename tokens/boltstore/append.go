package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/bbolt"
)

// Retention of the issuance record. The store deletes entries that are due when it imports new ones.
const (
	// KeepEnded is how long the entry of a certificate is kept after the certificate has ended, by default.
	KeepEnded = 90 * 24 * time.Hour
	// MaxSize is how many bytes of the file can be in use, enough for 1.4 million certificates. Above it,
	// and when the disk is full, the store drops entries before they are due: see [Store.Dropped].
	MaxSize = 4 << 30
)

// sweptForOne is how many due entries are deleted at most for each new entry. It is more than one, so that
// the record shrinks. It is small, because a client waits for its certificate.
const sweptForOne = 4

// An appender stores the rows of [rowstore.DB.Append], which are those of the issuance record.
//
// It first writes them to a journal, a second file. It then imports many of them at once into the
// database: when a half of the journal is full, when they are read, and in Close. After a crash, Open
// imports them.
type appender struct {
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

// append stores rows. When it returns, they are on the disk.
func (s *appender) append(ctx context.Context, changes []rowstore.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	l := entryOf(changes)
	if err := s.appends.Do(context.Background(), struct{}{}, l, s.appendAll); err != nil {
		return err
	}
	return l.err
}

// Truncated reports whether entries at the end of the record were missing or damaged when the store was opened.
// Either a crash interrupted Append, whose certificates were then never delivered, or the disk lost entries.
func (s *Store) Truncated() bool { return s.appender.cut }

// Dropped returns how many entries the store has dropped before they were due since it was opened, and when
// it dropped the last one. It drops entries if the disk is full or the file reaches [MaxSize]: refusals and
// failures first, then the certificates that end first.
func (s *Store) Dropped() (entries int, last time.Time) {
	s.appender.mu.Lock()
	defer s.appender.mu.Unlock()
	return s.appender.dropped, s.appender.last
}

func (s *appender) addDropped(out sweepResult) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if out.dropped > 0 {
		s.dropped, s.last = s.dropped+out.dropped, s.now()
	}
}

// appendAll writes lines to the journal. It uses one write and one sync for as many as fit into the current half.
func (s *appender) appendAll(_ context.Context, all []*journalEntry) {
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

func (s *appender) keep(lines []*journalEntry) error {
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

// keepWithoutJournal imports lines into the database, after all pending lines. If it imported them together, some could
// be in the database after an error, and the next lines would get their numbers.
func (s *appender) keepWithoutJournal(lines []*journalEntry) error {
	for _, l := range lines {
		if err := s.importAll(l); err != nil {
			return err
		}
		s.number++
		// The numbers in a half must be consecutive, so start the half again. All its entries are in the database.
		s.journal.used = 0
	}
	return nil
}

// switchHalf switches to the other half of the journal, once the entries in it are in the database. It starts to
// import the full half in the background.
func (s *appender) switchHalf() error {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if s.journal.last[1-s.journal.half] > known {
		if err := s.importAll(); err != nil {
			return err
		}
	}
	s.journal.switchHalves()
	s.imports.Go(func() { _ = s.importAll() }) // after a failure, the next turn imports again and returns the error
	return nil
}

// importAll imports the pending lines into the database, followed by at most one more.
func (s *appender) importAll(more ...*journalEntry) error {
	s.importing.Lock()
	defer s.importing.Unlock()
	s.mu.Lock()
	all := append(slices.Clip(s.pending), more...)
	s.mu.Unlock()
	for most := len(all); len(all) > 0; {
		n, err := s.importSome(all, most)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.pending, s.known = slices.Clone(s.pending[min(n, len(s.pending)):]), all[n-1].number
		s.mu.Unlock()
		all, most = all[n:], n
	}
	return nil
}

// importSome imports the first lines, at most so many, and returns their number. If the disk is full, it imports fewer:
// a transaction needs free pages for each row of an index, which are all over the file.
func (s *appender) importSome(lines []*journalEntry, most int) (n int, err error) {
	n = 2 * min(most, len(lines))
	var out sweepResult
	if err := s.store.write(&write{do: func(tx *bbolt.Tx) (err error) {
		n = max(1, n/2)
		if err := s.put(tx, lines[:n]); err != nil {
			return err
		}
		out, err = s.sweep(tx, sweptForOne*n, s.store.inUse(tx)+sizeOf(lines[:n]...)-s.maxSize)
		return err
	}}); err != nil {
		return 0, err
	}
	s.addDropped(out)
	return n, nil
}

// put writes lines into the database, sorted by key: bbolt moves the keys that are behind a new one in its page.
func (s *appender) put(tx *bbolt.Tx, lines []*journalEntry) error {
	tx.Bucket(unissuedBucket).FillPercent = 1 // new keys go to the end
	// In bucket "issued", new keys go to the front. bbolt splits a full page from the front, so the first page must become
	// full if the new keys fill it, and otherwise leave its old keys together.
	if tx.Bucket(issuedBucket).FillPercent = 1; sizeOf(lines...) < int64(tx.DB().Info().PageSize) {
		tx.Bucket(issuedBucket).FillPercent = 0.1
	}
	var all []rowstore.Change
	for _, l := range lines {
		changes, err := l.changes()
		if err != nil {
			return err
		}
		all = append(all, changes...)
	}
	slices.SortFunc(all, func(a, b rowstore.Change) int { return strings.Compare(a.Key, b.Key) })
	t := transaction{tx: tx}
	version, err := t.nextVersion()
	return errors.Join(err, t.set(version, all), tx.Bucket(issuedBucket).SetSequence(lines[len(lines)-1].number))
}

// A sweepResult is the result of sweep: how many entries were deleted before they were due, and the bytes of all entries
// that were deleted.
type sweepResult struct {
	dropped int
	bytes   int64
}

// counted is a transaction that knows the number of refusals and failures without reading them.
type counted struct{ transaction }

// Count implements [rowstore.Reader].
func (c counted) Count(ctx context.Context, folder string) (int, error) {
	if folder != unissuedFolder {
		return c.transaction.Count(ctx, folder)
	}
	return int(c.tx.Bucket(unissuedBucket).Sequence()), nil
}

// sweep deletes up to most entries that are due. While the deleted entries have fewer than atLeast bytes, it deletes any
// entries, due or not.
func (s *appender) sweep(tx *bbolt.Tx, most int, atLeast int64) (out sweepResult, err error) {
	skip := func(string, error) {} // a damaged row of an index must not stop the store
	t, taken := transaction{tx: tx, report: skip}, 0
	err = rowstore.Victims(context.Background(), counted{t}, s.now(), s.retention, 0, atLeast > 0, func(v rowstore.Victim) (bool, error) {
		due := v.Due || v.Beyond
		if (!due || taken >= most) && out.bytes >= atLeast {
			return false, nil
		}
		taken++
		if !due {
			out.dropped++
		}
		var changes []rowstore.Change
		for _, key := range v.Keys {
			bucket, k := t.bucketOf(key)
			out.bytes += int64(len(bucket.Get(k)))
			changes = append(changes, rowstore.Change{Key: key})
		}
		return true, t.set(0, changes)
	})
	return out, err
}

// replay imports the entries that a crash has left in the journal, and removes the journal.
func (s *appender) replay() error {
	s.journal.path = s.store.path + "-journal"
	if err := s.store.read(func(tx *bbolt.Tx) error {
		s.known = tx.Bucket(issuedBucket).Sequence()
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
	for _, l := range lines {
		if _, err := l.changes(); err != nil {
			return fmt.Errorf("%s: %w", s.journal.path, err)
		}
		s.number = l.number
	}
	s.pending, s.cut = lines, !complete
	if err := s.importAll(); err != nil {
		return err
	}
	return os.Remove(s.journal.path)
}

// close imports all pending lines and removes the journal. If the import fails, the journal stays.
func (s *appender) close() error {
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
