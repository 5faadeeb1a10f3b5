package boltstore

import (
	"errors"
	"fmt"
	"io/fs"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// OpenReadOnly opens an existing file like [Open], but never changes it or its journal: every write fails. The entries
// that a crash has left in the journal are only in [Issued.Journaled]. Several processes can open a file read-only at the
// same time. None can while kubejoin serves it: the error then wraps [ErrInUse].
//
// It refuses a file that Open would have to convert.
func OpenReadOnly(path string) (*Store, error) {
	s := &Store{path: path}
	err := guard(path, func() (err error) {
		s.db, err = bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: openTimeout, OpenFile: openPrivate})
		return err
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%s: %w by %s: stop it, or check a copy of the file that was made while it was stopped", path, ErrInUse, holder(path))
	} else if err != nil {
		return nil, err
	}
	s.claims.store, s.revocations.store, s.issued.store = s, s, s
	s.issued.closed = true // refuses entries, and Close writes nothing
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
	if v := string(meta.Get(schemaKey)); v != schemaVersion {
		return fmt.Errorf("schema version %.20q, want %q: if an earlier kubejoin wrote the file, start this kubejoin with it once, which converts it", v, schemaVersion)
	}
	for _, name := range allBuckets {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: bucket %q is missing", ErrDamaged, name)
		}
	}
	s.issued.journal.path = s.path + "-journal"
	lines, complete, err := readJournal(s.issued.journal.path, tx.Bucket(issuedBucket).Sequence())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s.issued.journaled, s.issued.cut = lines, !complete
	return err
}

// Journaled returns the entries that a crash has left in the journal of a file that is open read-only.
func (s *Issued) Journaled() (rows []Row) {
	for _, l := range s.journaled {
		rows = append(rows, l.row())
	}
	return rows
}

// row returns the row of a line. An invalid line has a row without time.
func (l *journalEntry) row() Row {
	r, err := readRow(l.v)
	if err != nil {
		r = Row{Value: l.v}
	}
	r.key = timeKey(r.Time, l.number)
	return r
}
