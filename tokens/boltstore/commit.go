package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// A write is one change that waits for a transaction. do either makes the whole change, or changes nothing and returns an
// error. So several writes can share one transaction.
type write struct {
	do    func(*bbolt.Tx) error
	entry int64           // bytes of the entry of the issuance record that do adds; 0 if it adds none
	hints []*tokens.Hints // to send after the change
	err   error
}

// errNothing rolls back a transaction in which every write failed. A rollback needs no fsync.
var errNothing = errors.New("nothing to write")

// write makes a durable change: it returns after the fsync and after it has sent hints. Changes that wait
// for a running transaction share the next one. write does not use bbolt's Batch, which delays even a
// single change by 10 ms.
func (s *Store) write(w *write) error {
	if err := s.writes.Do(context.Background(), struct{}{}, w, s.writeAll); err != nil {
		return err
	}
	return w.err
}

// writeAll makes all changes, if possible in one transaction.
func (s *Store) writeAll(_ context.Context, all []*write) {
	s.commit.Lock()
	defer s.commit.Unlock()
	left := maxDrop
	s.writeTogether(all, &left)
}

// writeTogether makes all changes in one transaction. For each new entry of the issuance record, the transaction also
// deletes due entries. If the disk is full, writeTogether uses smaller transactions, which need fewer free pages. Before
// each transaction that succeeds, it drops at most left bytes of entries.
func (s *Store) writeTogether(all []*write, left *int64) {
	var changed map[*tokens.Hints]bool
	var out sweepResult
	err := s.updateOrDrop(left, func(tx *bbolt.Tx) (err error) {
		changed, out = map[*tokens.Hints]bool{}, sweepResult{}
		done, entries, size := 0, 0, int64(0)
		for _, w := range all {
			if w.err = w.do(tx); w.err != nil {
				continue
			}
			done++
			if w.entry > 0 {
				entries, size = entries+1, size+w.entry
			}
			for _, h := range w.hints {
				changed[h] = true
			}
		}
		if done == 0 {
			return errNothing
		}
		if entries > 0 {
			out, err = s.sweeper.sweep(tx, sweptForOne*entries, s.inUse(tx)+size-s.sweeper.maxSize)
		}
		return err
	})
	if half := len(all) / 2; half > 0 && isFull(err) {
		s.writeTogether(all[:half], left)
		s.writeTogether(all[half:], left)
		return
	}
	if errors.Is(err, errNothing) {
		err = nil
	}
	for _, w := range all {
		if err != nil {
			w.err = err
		}
	}
	if err == nil {
		s.sweeper.addDropped(out)
		*left = maxDrop
	}
	for hints := range changed {
		hints.Send()
	}
}

// updateOrDrop is like update, but if the disk is full, it drops up to left bytes of entries of the issuance record and
// retries.
func (s *Store) updateOrDrop(left *int64, do func(*bbolt.Tx) error) error {
	err := s.update(do)
	// Even a deletion needs free pages, and there may be none. So free the reserve first.
	if !isFull(err) || s.update(giveUpReserve) != nil {
		return err
	}
	for size := firstDrop; size >= minDrop && *left > 0; {
		var out sweepResult
		if s.update(func(tx *bbolt.Tx) (err error) {
			out, err = s.sweeper.sweep(tx, 0, size)
			return err
		}) != nil {
			size /= 2
			continue
		}
		s.sweeper.addDropped(out)
		*left -= out.bytes
		if out.bytes < size { // no more entries
			*left = 0
		}
		size *= 2
		if isFull(err) {
			err = s.update(do)
		}
		if !isFull(err) && !isFull(s.update(keepReserve)) { // refill the reserve for the next time that the disk is full
			break
		}
	}
	return err
}

// firstDrop is how many bytes of entries updateOrDrop drops in its first transaction, and minDrop the least in any
// transaction. A dropped entry has a row in each index, often alone on its page. So a large transaction needs more free
// pages than a full file has, even with the reserve.
const (
	firstDrop int64 = 4 << 10
	minDrop   int64 = 256
)

// maxDrop is the maximum of bytes of entries that the store drops until a transaction succeeds. Dropping may not help:
// pages of dropped entries stay in use while an earlier read transaction is open.
var maxDrop int64 = 8 << 20

// reservePages is the number of pages in the reserve, which makes it possible to drop entries when the disk
// is full.
const reservePages = 128

// keepReserve creates the reserve unless it exists. Each of its values takes one page.
func keepReserve(tx *bbolt.Tx) error {
	if tx.Bucket(reserveBucket) != nil {
		return nil
	}
	b, err := tx.CreateBucket(reserveBucket)
	for i := range reservePages {
		if err == nil {
			err = b.Put([]byte{byte(i)}, make([]byte, tx.DB().Info().PageSize*3/4))
		}
	}
	return err
}

func giveUpReserve(tx *bbolt.Tx) error {
	if tx.Bucket(reserveBucket) == nil {
		return nil
	}
	return tx.DeleteBucket(reserveBucket)
}

func (s *Store) freePages() int {
	stats := s.db.Stats()
	return stats.FreePageN + stats.PendingPageN
}

// inUse returns how many bytes of the file are in use in a transaction.
func (s *Store) inUse(tx *bbolt.Tx) int64 {
	return tx.Size() - int64(s.freePages())*int64(s.db.Info().PageSize)
}

// isFull reports whether an error means that the disk is full. If the file cannot grow, bbolt does not wrap the cause, but
// only adds its text.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) ||
		err != nil && strings.Contains(err.Error(), "file resize error: ")
}

// update runs a write transaction. The caller must hold commit. After a panic in a transaction, another
// transaction or Close may block forever in bbolt. So update sets broken, and both return it instead.
func (s *Store) update(do func(*bbolt.Tx) error) error {
	if s.broken != nil {
		return s.broken
	}
	err := guard(s.path, func() error { return s.db.Update(do) })
	if errors.Is(err, ErrDamaged) {
		s.broken = err
	}
	return err
}

func (s *Store) read(do func(*bbolt.Tx) error) error {
	return guard(s.path, func() error { return s.db.View(do) })
}

// guard returns an error that wraps ErrDamaged and names the file if do panics or reads beyond the memory map of the file,
// as bbolt does with a damaged file. guard also adds the path to other errors.
func guard(path string, do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %w: %v", path, ErrDamaged, p)
		}
	}()
	err = do()
	if named := (*fs.PathError)(nil); err != nil && !errors.As(err, &named) {
		return fmt.Errorf("%s: %w", path, err)
	}
	return err
}
