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
func (s *Store) SetNow(now func() time.Time) { s.sweeper.now = now }

// Appends collects the rows that do appends, and then stores all of them in one transaction.
func (s *Store) Appends(do func(rowstore.DB) error) error {
	c := &collector{DB: rowDB{s}}
	if err := do(c); err != nil {
		return err
	}
	s.writeAll(context.Background(), c.writes)
	var errs error
	for _, w := range c.writes {
		errs = errors.Join(errs, w.err)
	}
	return errs
}

type collector struct {
	rowstore.DB
	writes []*write
}

func (c *collector) Append(_ context.Context, changes []rowstore.Change) error {
	c.writes = append(c.writes, appending(changes))
	return nil
}

// SetMaxSize replaces the limit MaxSize of the record.
func (s *Store) SetMaxSize(bytes int64) { s.sweeper.maxSize = bytes }

// SetMaxDrop replaces maxDrop in this process.
func SetMaxDrop(bytes int64) { maxDrop = bytes }

// InUse returns the number of bytes in use in the file.
func (s *Store) InUse() (n int64) {
	_ = s.read(func(tx *bbolt.Tx) error { n = s.inUse(tx); return nil })
	return n
}

// Fill uses up the free pages of the file, at the end one by one, until the file is full.
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

// IsFull reports whether an error means that the disk or a quota is full.
func IsFull(err error) bool { return isFull(err) }

// HolderIn returns the process that holds a lock on the file, according to the content of /proc/locks.
func HolderIn(locks io.Reader, file os.FileInfo) string { return holderIn(locks, file) }
