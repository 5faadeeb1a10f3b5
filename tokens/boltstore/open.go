package boltstore

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// The file is a bbolt database with these buckets:
//   - "meta": the schema version.
//   - "tokens": tokens by token ID.
//   - "claims": claims by node name.
//   - "holders": an index of the claims of each token. The keys are ID/NODE.
//   - "revocations": the revocations by key.
//   - "ca-rotation": the state of the CA rotation, and the key of its new CA.
//   - "issued": the entries of the issuance record.
//   - "issued-by" and "issued-ends": indexes of "issued".
//   - "unissued": an index of the refusals and failures in "issued". Its sequence is their number.
//   - "reserve": pages that are freed when the disk is full. It may be missing.
//
// Package tokens/rowstore defines the rows of all buckets except "meta" and "reserve", see rowDB.
var (
	metaBucket        = []byte("meta")
	tokensBucket      = []byte("tokens")
	claimsBucket      = []byte("claims")
	holdersBucket     = []byte("holders")
	issuedBucket      = []byte("issued")
	issuedByBucket    = []byte("issued-by")
	issuedEndsBucket  = []byte("issued-ends")
	unissuedBucket    = []byte("unissued")
	revocationsBucket = []byte("revocations")
	rotationsBucket   = []byte("ca-rotation")
	reserveBucket     = []byte("reserve")
	schemaKey         = []byte("schema")
)

// rowBuckets are the buckets of rows, see rowDB.
var rowBuckets = [][]byte{
	tokensBucket, claimsBucket, holdersBucket, revocationsBucket, rotationsBucket,
	issuedBucket, issuedByBucket, issuedEndsBucket, unissuedBucket,
}

// allBuckets are the buckets that every file has.
var allBuckets = append([][]byte{metaBucket}, rowBuckets...)

// unissuedFolder is the folder of the rows of bucket "unissued".
const unissuedFolder = "unissued/"

// Schema 11 has a fingerprint beside each key of an identity.
const schemaVersion = "11"

// openTimeout is how long Open waits for the lock of the file. A program that is stopping releases the lock
// within this time.
const openTimeout = time.Second

var (
	// ErrInUse is wrapped if another process, or another Store in this process, has the file open.
	ErrInUse = errors.New("file is in use")
	// ErrExposed is wrapped if users other than the owner have permissions on the file.
	ErrExposed = errors.New("file is accessible to other users")
	// ErrDamaged is wrapped if the file or one of its rows is not what kubejoin wrote.
	ErrDamaged = errors.New("file is damaged")
)

// Open opens the store in the file at path. It creates the file with mode 0600 if it does not exist.
//
// If the file is in use, the error wraps [ErrInUse] and names the process, where the operating system
// reports it. If other users have permissions on the file, the error wraps [ErrExposed], because the file
// contains secrets.
//
// Open refuses a file that another version of kubejoin wrote in another form.
func Open(path string) (*Store, error) { return OpenRetaining(path, KeepEnded) }

// OpenRetaining is like Open. It also sets how long the store keeps the entry of a certificate after the certificate has
// expired. Open sets [KeepEnded].
func OpenRetaining(path string, retention time.Duration) (*Store, error) {
	var opened *os.File
	var db *bbolt.DB
	err := guard(path, func() (err error) {
		db, err = bbolt.Open(path, 0o600, &bbolt.Options{
			Timeout: openTimeout,
			// After many tokens are deleted at once, the file has many free pages. bbolt finds a free page faster in a map
			// than in an array.
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
			_ = opened.Close() // releases the lock if bbolt has not released it
		}
		return nil, err
	}
	s := newStore(db, path)
	s.sweeper.now, s.sweeper.retention, s.sweeper.maxSize = time.Now, retention, MaxSize
	if err = s.prepare(); err == nil {
		if err = s.update(keepReserve); isFull(err) {
			err = nil
		}
	}
	if err != nil {
		_ = s.Close() // err is the cause, so ignore the error of Close
		return nil, err
	}
	return s, nil
}

// openPrivate opens a file and checks that only its owner has permissions on it. It checks the open file,
// because path may name another file by then.
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
		// Sync the directory. Otherwise the new file may be missing after a power failure, even if its content was synced.
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
		return fmt.Errorf("%w: mode %04o, want 0600; run chmod 600, and replace its tokens because others may have read them", ErrExposed, info.Mode().Perm())
	}
	return nil
}

func syncDir(path string) error {
	if runtime.GOOS == "windows" { // Windows cannot sync directories
		return nil
	}
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// prepare creates the buckets of a new file, and checks a file that exists.
func (s *Store) prepare() error {
	return s.update(func(tx *bbolt.Tx) error {
		if first, _ := tx.Cursor().First(); first == nil {
			if err := create(tx); err != nil {
				return err
			}
		}
		return s.check(tx)
	})
}

func create(tx *bbolt.Tx) error {
	for _, name := range allBuckets {
		if _, err := tx.CreateBucket(name); err != nil {
			return err
		}
	}
	return tx.Bucket(metaBucket).Put(schemaKey, []byte(schemaVersion))
}

// check returns an error for a file with another schema, without a bucket, or with the journal of an earlier kubejoin.
func (s *Store) check(tx *bbolt.Tx) error {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		var others []string
		_ = tx.ForEach(func(name []byte, _ *bbolt.Bucket) error { // fails only if the callback does
			others = append(others, fmt.Sprintf("%q", name))
			return nil
		})
		return fmt.Errorf("not a kubejoin file: found buckets %s, want %q", cmp.Or(strings.Join(others, ", "), "none"), metaBucket)
	}
	if err := checkSchema(meta); err != nil {
		return err
	}
	for _, name := range allBuckets {
		if tx.Bucket(name) == nil {
			return fmt.Errorf("%w: bucket %q is missing", ErrDamaged, name)
		}
	}
	return s.checkJournal()
}

// checkJournal returns an error if an earlier kubejoin has left its journal of the issuance record beside the file. To
// import the journal and remove it, run that earlier kubejoin.
func (s *Store) checkJournal() error {
	journal := s.path + "-journal"
	content, err := os.ReadFile(journal)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(bytes.Trim(content, "\x00")) == 0 { // such a journal has no entries
		return nil
	} else if err != nil {
		return err
	}
	return fmt.Errorf("%s is of an earlier kubejoin, and may have entries of the issuance record that this file lacks: start and stop that version once, or move the journal away to give them up", journal)
}

func checkSchema(meta *bbolt.Bucket) error {
	if v := string(meta.Get(schemaKey)); v != schemaVersion {
		return fmt.Errorf("schema version %.20q, want %q: another version of kubejoin wrote the file; run that version, or move the file away, which loses its tokens, claims, revocations and issuance record", v, schemaVersion)
	}
	return nil
}
