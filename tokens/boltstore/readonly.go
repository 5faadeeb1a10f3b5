package boltstore

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// OpenReadOnly opens an existing file like [Open], but never changes it or its journal: every write fails. The entries
// that a crash has left in the journal are only in [Store.Journaled]. Several processes can open a file read-only at the
// same time. None can while kubejoin serves it: the error then wraps [ErrInUse].
func OpenReadOnly(path string) (*Store, error) {
	var db *bbolt.DB
	err := guard(path, func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: openTimeout, OpenFile: openPrivate})
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s: %w by %s: stop it, or check a copy of the file that was made while it was stopped", path, ErrInUse, holder(path))
	} else if err != nil {
		return nil, err
	}
	s := newStore(db, path)
	s.appender.closed = true // refuses entries, and Close writes nothing
	if err := s.read(s.readJournal); err != nil {
		_ = guard(path, s.db.Close) // err is the cause
		return nil, err
	}
	return s, nil
}

// readJournal checks the schema, and reads the entries that a crash has left in the journal.
func (s *Store) readJournal(tx *bbolt.Tx) error {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		return fmt.Errorf("not a kubejoin file: bucket %q is missing", metaBucket)
	}
	if err := checkSchema(meta); err != nil {
		return err
	}
	for _, name := range allBuckets {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: bucket %q is missing", ErrDamaged, name)
		}
	}
	lines, complete, err := readJournal(s.path+"-journal", tx.Bucket(issuedBucket).Sequence())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	s.appender.journaled, s.appender.cut = lines, !complete
	return nil
}

// Journaled calls visit with each change that a crash has left in the journal of a file that is open read-only. The error
// wraps [ErrDamaged] if the journal has something else. [Store.Truncated] reports whether entries are missing.
func (s *Store) Journaled(visit func(rowstore.Change) error) error {
	for _, l := range s.appender.journaled {
		changes, err := l.changes()
		if err != nil {
			return fmt.Errorf("%s-journal: %w", s.path, err)
		}
		for _, c := range changes {
			if err := visit(c); err != nil {
				return err
			}
		}
	}
	return nil
}
