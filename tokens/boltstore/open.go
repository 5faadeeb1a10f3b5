package boltstore

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The file is a bbolt database. Bucket "meta" says which schema it has; bucket "tokens" has one
// row for each token, under its ID; bucket "claims" one for each claim, under its node name;
// bucket "holders" has the keys ID/NODE of all claims and no values, to find those of a token.
// Bucket "issued" has the issuance record in the order of time; bucket "ends" the keys of what was
// issued in the order of when it ends; bucket "unissued" those of the rest, and how many they are.
// Bucket "reserve" holds pages for when the disk is full; it may be missing.
var (
	metaBucket     = []byte("meta")
	tokensBucket   = []byte("tokens")
	claimsBucket   = []byte("claims")
	holdersBucket  = []byte("holders")
	issuedBucket   = []byte("issued")
	endsBucket     = []byte("ends")
	unissuedBucket = []byte("unissued")
	reserveBucket  = []byte("reserve")
	schemaKey      = []byte("schema")
)

// Schema 1 had tokens without limits, and no claims; schema 2 had no issuance record, schema 3
// no journal beside the file, schema 4 claims without a past, and schema 5 tokens without a creator.
// What they wrote is good in schema 6.
const schemaVersion = "6"

var schemasBefore = []string{"1", "2", "3", "4", "5"}

// A program that is stopping lets go of the file within this time.
const openTimeout = time.Second

var (
	// ErrInUse is wrapped when another process, or another Store of this one, has the file
	// open.
	ErrInUse = errors.New("file is in use")
	// ErrExposed is wrapped when others than the owner of the file may read or write it.
	ErrExposed = errors.New("file is open to others")
	// ErrDamaged is wrapped when the file or a row of it is not what was written.
	ErrDamaged = errors.New("file is damaged")
)

// Open opens the store in the file at path, or makes it there with mode 0600. The error says
// who holds the file where the operating system tells, and wraps [ErrInUse] then. A file that
// others may read is refused with [ErrExposed]: it holds secrets. One that an earlier version of
// kubejoin has written is of no use to that version any more.
func Open(path string) (*Store, error) {
	var opened *os.File
	var db *bbolt.DB
	err := guard(path, func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout: openTimeout,
			// The map scales to many free pages, as a burst of deleted tokens leaves them.
			FreelistType: bbolt.FreelistMapType,
			OpenFile: func(path string, flag int, mode os.FileMode) (*os.File, error) {
				f, err := openPrivate(path, flag, mode)
				opened = f
				return f, err
			},
		})
		return err
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("%s: %w by %s", path, ErrInUse, holder(path))
	case err != nil:
		if opened != nil {
			_ = opened.Close() // lets go of the lock if bbolt did not come so far
		}
		return nil, err
	}
	s := &Store{db: db, path: path}
	s.claims.store, s.issued.store, s.issued.now, s.issued.maxSize = s, s, time.Now, MaxSize
	if err = s.prepare(); err == nil {
		err = s.issued.replay()
	}
	if err == nil {
		if err = s.update(keepReserve); isFull(err) {
			err = nil
		}
	}
	if err != nil {
		_ = s.Close() // err says what is wrong
		return nil, err
	}
	return s, nil
}

// openPrivate looks at the file that is open, not at one that may take its name.
func openPrivate(path string, flag int, mode os.FileMode) (*os.File, error) {
	_, err := os.Stat(path)
	created := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	if err := checkPrivate(f); err != nil {
		_ = f.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if created {
		// Without this the file itself may be gone after a power failure, whatever was
		// synced into it.
		if err := syncDir(filepath.Dir(path)); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return f, nil
}

func checkPrivate(f *os.File) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("not a regular file but %s", info.Mode().Type())
	case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: mode %04o, want 0600 (chmod 600, and consider the tokens in it known)", ErrExposed, info.Mode().Perm())
	}
	return nil
}

func syncDir(path string) error {
	if runtime.GOOS == "windows" { // has no such thing
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// prepare creates the buckets of a new file and updates the schema version of a file with an earlier
// schema. It returns an error for any other file.
func (s *Store) prepare() error {
	return s.update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		if meta == nil {
			var others []string
			_ = tx.ForEach(func(name []byte, _ *bbolt.Bucket) error { // fails only if the callback does
				others = append(others, fmt.Sprintf("%q", name))
				return nil
			})
			if len(others) > 0 {
				return fmt.Errorf("not a kubejoin file: found buckets %s, want %q", strings.Join(others, ", "), metaBucket)
			}
			var err error
			if meta, err = tx.CreateBucket(metaBucket); err != nil {
				return err
			}
			if err := meta.Put(schemaKey, []byte(schemaVersion)); err != nil {
				return err
			}
		}
		switch v := string(meta.Get(schemaKey)); {
		case v == schemaVersion:
		case slices.Contains(schemasBefore, v):
			if err := meta.Put(schemaKey, []byte(schemaVersion)); err != nil {
				return err
			}
		default:
			return fmt.Errorf("schema version %q, want %q: written by another version of kubejoin", v, schemaVersion)
		}
		for _, name := range [][]byte{tokensBucket, claimsBucket, holdersBucket, issuedBucket, endsBucket, unissuedBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}
