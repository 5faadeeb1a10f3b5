package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
	"go.etcd.io/bbolt"
)

// rowDB is the [rowstore.DB] in a file. Each folder is a bucket. Each stored value begins with 8 bytes: its version. The
// sequence of bucket "tokens" provides the versions. Reads never lag behind writes.
type rowDB struct{ s *Store }

var _ rowstore.DB = rowDB{}

// read calls do with a transaction.
func (d rowDB) read(ctx context.Context, do func(transaction) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var stopped error
	if err := d.s.read(func(tx *bbolt.Tx) error {
		stopped = do(transaction{tx: tx, damaged: d.Damaged})
		return nil
	}); err != nil {
		return err
	}
	return stopped
}

// Get implements [rowstore.Reader].
func (d rowDB) Get(ctx context.Context, keys ...string) (rows []rowstore.Row, err error) {
	err = d.read(ctx, func(t transaction) error {
		rows, err = t.Get(ctx, keys...)
		for i := range rows {
			rows[i].Value = bytes.Clone(rows[i].Value)
		}
		return err
	})
	return rows, err
}

// Scan implements [rowstore.Reader].
func (d rowDB) Scan(ctx context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	return d.read(ctx, func(t transaction) error { return t.Scan(ctx, keys, visit) })
}

// Count implements [rowstore.Reader].
func (d rowDB) Count(ctx context.Context, folder string) (n int, err error) {
	err = d.read(ctx, func(t transaction) error {
		n, err = t.Count(ctx, folder)
		return err
	})
	return n, err
}

// View implements [rowstore.DB].
func (d rowDB) View(ctx context.Context, damaged func(key string, err error), do func(rowstore.Reader) error) error {
	return d.read(ctx, func(t transaction) error {
		t.report = damaged
		return do(t)
	})
}

// Cached implements [rowstore.DB].
func (d rowDB) Cached() rowstore.Reader { return d }

// Commit implements [rowstore.DB]. When it returns, the changes are on the disk.
func (d rowDB) Commit(ctx context.Context, conditions []rowstore.Condition, changes []rowstore.Change) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	var version string
	w := &write{do: func(tx *bbolt.Tx) (err error) {
		version, err = transaction{tx: tx, damaged: d.Damaged}.commit(conditions, changes)
		return err
	}}
	for _, c := range changes {
		w.hints = append(w.hints, d.s.hints[c.Key[:strings.Index(c.Key, "/")+1]])
	}
	err := d.s.write(w)
	return version, err
}

// Append implements [rowstore.DB]. When it returns, the rows are on the disk. It sends no hints.
func (d rowDB) Append(ctx context.Context, changes []rowstore.Change) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return d.s.write(appending(changes))
}

// appending returns the write that adds an entry of the issuance record.
func appending(changes []rowstore.Change) *write {
	w := &write{do: func(tx *bbolt.Tx) error {
		_, err := transaction{tx: tx}.commit(nil, changes)
		return err
	}}
	for _, c := range changes {
		w.entry += int64(len(c.Key) + len(c.Value))
	}
	return w
}

// MaxChanges implements [rowstore.DB].
func (d rowDB) MaxChanges() int { return math.MaxInt }

// Damaged implements [rowstore.DB].
func (d rowDB) Damaged(key string, err error) error {
	bucket, k, _ := strings.Cut(key, "/")
	return fmt.Errorf("%s: %w: bucket %q, key %q: %w", d.s.path, ErrDamaged, bucket, k, err)
}

// Watch implements [rowstore.DB].
func (d rowDB) Watch(ctx context.Context, folder string) <-chan struct{} {
	return d.s.hints[folder].Watch(ctx)
}

// A transaction reads and writes rows in a transaction of bbolt. Values that it returns are valid until the transaction ends.
type transaction struct {
	tx      *bbolt.Tx
	damaged func(key string, err error) error
	report  func(key string, err error) // see [rowstore.DB.View]; nil outside View
}

// bucketOf returns the bucket of a key, and the key in it.
func (t transaction) bucketOf(key string) (*bbolt.Bucket, []byte) {
	folder, rest, _ := strings.Cut(key, "/")
	return t.tx.Bucket([]byte(folder)), []byte(rest)
}

// rowOf returns the row of a key. If t has report, a version greater than the last version is an error: a later commit
// would use it again.
func (t transaction) rowOf(key string, v []byte) (rowstore.Row, error) {
	if v == nil {
		return rowstore.Row{}, nil
	}
	if len(v) < 8 || binary.BigEndian.Uint64(v) == 0 {
		return rowstore.Row{}, errors.New("version is missing")
	}
	version := binary.BigEndian.Uint64(v)
	if last := t.tx.Bucket(tokensBucket).Sequence(); t.report != nil && version > last {
		return rowstore.Row{}, fmt.Errorf("version %d is after %d, which is the last one", version, last)
	}
	return rowstore.Row{Key: key, Value: v[8:], Version: strconv.FormatUint(version, 10)}, nil
}

// get returns the row of a key.
func (t transaction) get(key string) (rowstore.Row, error) {
	bucket, k := t.bucketOf(key)
	row, err := t.rowOf(key, bucket.Get(k))
	switch {
	case err != nil && t.report != nil:
		t.report(key, err)
		return rowstore.Row{}, nil
	case err != nil:
		err = t.damaged(key, err)
	}
	return row, err
}

// Get implements [rowstore.Reader].
func (t transaction) Get(_ context.Context, keys ...string) ([]rowstore.Row, error) {
	rows := make([]rowstore.Row, len(keys))
	var errs error
	for i, key := range keys {
		var err error
		rows[i], err = t.get(key)
		errs = errors.Join(errs, err)
	}
	return rows, errs
}

// Scan implements [rowstore.Reader].
func (t transaction) Scan(_ context.Context, keys rowstore.Range, visit func(rowstore.Row) error) error {
	bucket, first := t.bucketOf(keys.From)
	folder, rows, visited := keys.From[:len(keys.From)-len(first)], bucket.Cursor(), 0
	for k, v := rows.Seek(first); k != nil; k, v = rows.Next() {
		key := folder + string(k)
		if key >= keys.To {
			break
		}
		row, err := t.rowOf(key, v)
		switch {
		case err != nil && t.report != nil:
			t.report(key, err)
			continue
		case err != nil:
			return t.damaged(key, err)
		}
		if err := visit(row); err != nil {
			return err
		}
		if visited++; visited == keys.Limit {
			break
		}
	}
	return nil
}

// Count implements [rowstore.Reader].
func (t transaction) Count(_ context.Context, folder string) (n int, err error) {
	bucket, _ := t.bucketOf(folder)
	return n, bucket.ForEach(func(_, _ []byte) error { n++; return nil })
}

// commit checks all conditions before it writes, because other changes share the transaction and a failed commit must
// change nothing.
func (t transaction) commit(conditions []rowstore.Condition, changes []rowstore.Change) (string, error) {
	for _, c := range conditions {
		row, err := t.get(c.Key)
		switch {
		case err != nil:
			return "", err
		case row.Version != c.Version:
			return "", fmt.Errorf("%w: version %q given, %q found", tokens.ErrConflict, c.Version, row.Version)
		}
	}
	n, err := t.nextVersion()
	if err == nil {
		err = t.set(n, changes)
	}
	return strconv.FormatUint(n, 10), err
}

func (t transaction) nextVersion() (uint64, error) { return t.tx.Bucket(tokensBucket).NextSequence() }

// set makes changes, and gives the rows this version.
func (t transaction) set(version uint64, changes []rowstore.Change) error {
	for _, c := range changes {
		bucket, k := t.bucketOf(c.Key)
		if err := t.recount(bucket, k, c); err != nil {
			return err
		}
		var err error
		if c.Value == nil {
			err = bucket.Delete(k)
		} else {
			v := make([]byte, 0, 8+len(c.Value))
			err = bucket.Put(k, append(binary.BigEndian.AppendUint64(v, version), c.Value...))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// recount updates the sequence of bucket "unissued" before a change. The sequence is the number of rows in the bucket.
func (t transaction) recount(bucket *bbolt.Bucket, k []byte, c rowstore.Change) error {
	if !strings.HasPrefix(c.Key, unissuedFolder) {
		return nil
	}
	switch exists := bucket.Get(k) != nil; {
	case !exists && c.Value != nil:
		return bucket.SetSequence(bucket.Sequence() + 1)
	case exists && c.Value == nil:
		return bucket.SetSequence(bucket.Sequence() - 1)
	}
	return nil
}
