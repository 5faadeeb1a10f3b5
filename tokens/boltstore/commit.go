package boltstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime/debug"

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
	changed := map[*tokens.Hints]bool{}
	err := s.update(func(tx *bbolt.Tx) error {
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
