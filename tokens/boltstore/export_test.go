package boltstore

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/bbolt"
)

// SetNow sets the clock of the record.
func (s *Store) SetNow(now func() time.Time) { s.appender.now = now }

// Appends collects what do appends, and then stores it in one transaction.
func (s *Store) Appends(do func(rowstore.DB) error) error {
	s.appender.writing.Lock()
	defer s.appender.writing.Unlock()
	c := &collector{DB: rowDB{s}, number: s.appender.number}
	if err := do(c); err != nil {
		return err
	}
	s.appender.number = c.number
	return s.appender.importAll(c.lines...)
}

type collector struct {
	rowstore.DB
	number uint64
	lines  []*journalEntry
}

func (c *collector) Append(_ context.Context, changes []rowstore.Change) error {
	l := entryOf(changes)
	c.number++
	l.number = c.number
	c.lines = append(c.lines, l)
	return nil
}

// JournalHalf is the size of each half of the journal in bytes.
const JournalHalf = journalHalf

// ReadJournal returns the entries of a journal with numbers above known, as Open reads them.
func ReadJournal(path string, known uint64) (entries [][]byte, complete bool, err error) {
	lines, complete, err := readJournal(path, known)
	for _, l := range lines {
		entries = append(entries, l.v)
	}
	return entries, complete, err
}

// SetMaxSize replaces the limit MaxSize of the record.
func (s *Store) SetMaxSize(bytes int64) { s.appender.maxSize = bytes }

// SetMaxDrop replaces maxDrop in this process.
func SetMaxDrop(bytes int64) { maxDrop = bytes }

// InUse returns the number of bytes in use in the file.
func (s *Store) InUse() (n int64) {
	_ = s.read(func(tx *bbolt.Tx) error { n = s.inUse(tx); return nil })
	return n
}

// Fill uses the free pages of the file, in the end one by one, until the file is full.
func (s *Store) Fill() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	for pages := 1024; pages > 0; {
		err := s.update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("filler"))
			for range pages {
				if err == nil {
					n, _ := b.NextSequence() // fails only in a read transaction
					err = b.Put(binary.BigEndian.AppendUint64(nil, n), make([]byte, tx.DB().Info().PageSize*3/4))
				}
			}
			return err
		})
		if isFull(err) {
			pages /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}

// Break makes every later write fail with err.
func (s *Store) Break(err error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	s.broken = err
}

// Transaction returns the number of the last transaction that was committed.
func (s *Store) Transaction() (n int) {
	_ = s.read(func(tx *bbolt.Tx) error { n = tx.ID(); return nil })
	return n
}

// WriteJournal creates a journal with one group of entries. The first entry gets this number.
func WriteJournal(path string, number uint64, entries ...[]byte) error {
	j := &journal{path: path}
	var lines []*journalEntry
	for i, v := range entries {
		lines = append(lines, &journalEntry{number: number + uint64(i), v: v})
	}
	return errors.Join(j.write(lines), j.file.Close())
}

// IsFull reports whether an error means that the disk or a quota is full.
func IsFull(err error) bool { return isFull(err) }

// HolderIn returns the process that holds a lock on the file, according to the content of /proc/locks.
func HolderIn(locks io.Reader, file os.FileInfo) string { return holderIn(locks, file) }
