package boltstore

import (
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// DecodeRow reads a row as List does.
func DecodeRow(key, value []byte) (tokens.Record, error) { return decodeRow(key, value) }

// DecodeClaim reads a row as Claims.List does.
func DecodeClaim(key, value []byte) (tokens.Claim, error) { return decodeClaim(key, value) }

// SetNow gives the record another clock.
func (s *Issued) SetNow(now func() time.Time) { s.now = now }

// AppendAll is Append of many in one transaction.
func (s *Issued) AppendAll(rows iter.Seq[Row]) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	var lines []*journalEntry
	for r := range rows {
		l := lineOf(r)
		s.number++
		l.number = s.number
		lines = append(lines, l)
	}
	return s.importAll(lines...)
}

// JournalHalf is how much goes into the journal before it goes on with the other half.
const JournalHalf = journalHalf

// ReadJournal gives the entries of a journal with numbers above known, as Open reads them.
func ReadJournal(path string, known uint64) (entries [][]byte, complete bool, err error) {
	lines, complete, err := readJournal(path, known)
	for _, l := range lines {
		entries = append(entries, l.v)
	}
	return entries, complete, err
}

// SetMaxSize gives the record another bound than MaxSize.
func (s *Issued) SetMaxSize(bytes int64) { s.maxSize = bytes }

// InUse is how many bytes of the file are in use.
func (s *Store) InUse() (n int64) {
	_ = s.read(func(tx *bbolt.Tx) error { n = s.inUse(tx); return nil })
	return n
}

// Fill takes the free pages of the file, one by one, until there is no room for another.
func (s *Store) Fill() error {
	s.commit.Lock()
	defer s.commit.Unlock()
	for i := uint32(0); ; i++ {
		err := s.update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("filler"))
			if err != nil {
				return err
			}
			return b.Put(binary.BigEndian.AppendUint32(nil, i), make([]byte, tx.DB().Info().PageSize*3/4))
		})
		if isFull(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// Break makes every write fail from now on.
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

// WriteJournal makes a journal with one group of entries, of which the first has this number.
func WriteJournal(path string, number uint64, entries ...[]byte) error {
	j := &journal{path: path}
	var lines []*journalEntry
	for i, v := range entries {
		lines = append(lines, &journalEntry{number: number + uint64(i), v: v})
	}
	return errors.Join(j.write(lines), j.file.Close())
}

// IsFull reports whether an error says that the disk or a limit of it is full.
func IsFull(err error) bool { return isFull(err) }

// HolderIn finds the process that holds a file in the content of /proc/locks.
func HolderIn(locks io.Reader, file os.FileInfo) string { return holderIn(locks, file) }
