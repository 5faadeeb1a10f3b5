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

// A write is one change that waits for a transaction. Either do makes its whole change, or it changes
// nothing and returns an error. So several writes can share one transaction.
type write struct {
	do    func(*bbolt.Tx) error
	hints []*tokens.Hints // to send after the change
	err   error
}

// errNothing rolls back a transaction in which every write failed, which saves its fsync.
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

// writeAll makes all changes in one transaction.
func (s *Store) writeAll(_ context.Context, all []*write) {
	s.commit.Lock()
	defer s.commit.Unlock()
	var changed map[*tokens.Hints]bool
	err := s.updateOrDrop(func(tx *bbolt.Tx) error {
		changed = map[*tokens.Hints]bool{}
		done := 0
		for _, w := range all {
			if w.err = w.do(tx); w.err != nil {
				continue
			}
			done++
			for _, h := range w.hints {
				changed[h] = true
			}
		}
		if done == 0 {
			return errNothing
		}
		return nil
	})
	if errors.Is(err, errNothing) {
		err = nil
	}
	for _, w := range all {
		if err != nil {
			w.err = err
		}
	}
	for hints := range changed {
		hints.Send()
	}
}

// updateOrDrop is like update, but if the disk is full, it drops entries of the issuance record and
// retries.
func (s *Store) updateOrDrop(do func(*bbolt.Tx) error) error {
	err := s.update(do)
	// Even a deletion needs free pages, and there may be none. So free the reserve first.
	if !isFull(err) || s.update(giveUpReserve) != nil {
		return err
	}
	for size, left := firstDrop, maxDrop; size >= minDrop && left > 0; {
		var out sweepResult
		if s.update(func(tx *bbolt.Tx) (err error) {
			out, err = s.appender.sweep(tx, 0, size)
			return err
		}) != nil {
			size /= 2
			continue
		}
		s.appender.addDropped(out)
		left -= out.bytes
		if out.bytes < size { // it was the last entry
			left = 0
		}
		size *= 2
		if isFull(err) {
			err = s.update(do)
		}
		if !isFull(err) && !isFull(s.update(keepReserve)) { // the next full disk needs the reserve again
			break
		}
	}
	return err
}

// How many bytes of entries updateOrDrop drops in its first transaction, and at least in a transaction. An entry has a
// row in each index, often the only one of its page that is dropped. So a large transaction needs more free pages than a
// full file has, even with the reserve.
const (
	firstDrop int64 = 4 << 10
	minDrop   int64 = 256
)

// maxDrop is how many bytes of entries updateOrDrop drops at most. Pages of dropped entries stay in use while a read
// transaction that began before is open.
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

// isFull reports whether an error means that the disk is full. If the file cannot grow, the error of bbolt
// has the cause only as text, not wrapped.
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

// guard returns an error that wraps ErrDamaged and names the file if do panics or reads beyond the memory
// map of the file. That is how bbolt reports a damaged file. guard also adds the path to other errors.
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
