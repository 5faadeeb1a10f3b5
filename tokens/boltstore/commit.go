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

// A write is one change that waits for a transaction. Either do changes nothing and returns an
// error, or it makes its change; that is why several can be in one transaction without harm to
// each other.
type write struct {
	do    func(*bbolt.Tx) error
	hints *tokens.Hints // of what do changes
	err   error
}

// errNothing spares the fsync of a transaction in which every write was refused.
var errNothing = errors.New("nothing to write")

// write makes a change durable: it returns after the fsync, when hints have been sent. Changes
// that wait while another transaction is being written go into the next one together. (bbolt's
// own Batch makes a lone change wait 10 ms for company.)
func (s *Store) write(hints *tokens.Hints, do func(*bbolt.Tx) error) error {
	w := &write{do: do, hints: hints}
	if err := s.writes.Do(context.Background(), struct{}{}, w, s.writeAll); err != nil {
		return err
	}
	return w.err
}

// writeAll is one transaction for all of them.
func (s *Store) writeAll(_ context.Context, all []*write) {
	s.commit.Lock()
	defer s.commit.Unlock()
	var changed map[*tokens.Hints]bool
	err := s.updateOrDrop(func(tx *bbolt.Tx) error {
		changed = map[*tokens.Hints]bool{}
		for _, w := range all {
			switch w.err = w.do(tx); {
			case w.err == nil:
				changed[w.hints] = true
			case errors.Is(w.err, ErrDamaged): // guard sees only what ends the transaction
				w.err = fmt.Errorf("%s: %w", s.path, w.err)
			}
		}
		if len(changed) == 0 {
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
	for size, more := minDrop, true; more && size <= maxDrop; size *= 2 {
		var out sweepResult
		sweepErr := s.update(func(tx *bbolt.Tx) (err error) {
			out, err = recordIn(tx).sweep(s.issued.now(), 0, size)
			return err
		})
		if sweepErr == nil {
			s.issued.addDropped(out)
			more = out.bytes >= size
		} // otherwise the free pages may be fragmented: retry with more entries
		if isFull(err) {
			err = s.update(do)
		}
		if !isFull(err) && !isFull(s.update(keepReserve)) { // the next full disk needs the reserve again
			break
		}
	}
	return err
}

// How many bytes of entries are dropped at first, and at most. The first are few, because deleting them must not
// need more free pages than the reserve has. A reader holds on to the room that they had for as long as it reads.
const (
	minDrop int64 = 16 << 10
	maxDrop int64 = 4 << 20
)

// reservePages are kept so that entries can be dropped when the disk is full.
const reservePages = 64

// keepReserve makes the reserve of values that take a page each.
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

// inUse is how many bytes of the file are in use in a transaction.
func (s *Store) inUse(tx *bbolt.Tx) int64 {
	return tx.Size() - int64(s.freePages())*int64(s.db.Info().PageSize)
}

// isFull reports whether an error says that there is no room on the disk. Of the one that a file cannot
// grow bbolt keeps the text alone.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) ||
		err != nil && strings.Contains(err.Error(), "file resize error: ")
}

// update is a transaction that writes, for the holder of commit. After a panic in the middle of
// one bbolt may wait for itself for ever: there is no other, and no Close.
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

// guard turns bbolt's way to report a damaged file into an error that names the file: it
// panics, or reads beyond the end of its memory map.
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
