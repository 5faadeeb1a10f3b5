package boltstore

import (
	"errors"
	"fmt"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// OpenReadOnly opens an existing file like [Open], but never changes it: every write fails. Several processes can open a
// file read-only at the same time. None can while kubejoin serves it: the error then wraps [ErrInUse].
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
	if err := s.read(s.check); err != nil {
		_ = guard(path, s.db.Close) // err is the cause
		return nil, err
	}
	return s, nil
}
