package boltstore

import (
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

// rowDB is the [rowstore.DB] in a file. Each folder is a bucket. Before each value are the 8 bytes of its version, which
// the sequence of bucket "tokens" counts. Its reads never lag.
type rowDB struct{ s *Store }

var _ rowstore.DB = rowDB{}

// bucketOf returns the bucket of a key, and the key in it.
func bucketOf(tx *bbolt.Tx, key string) (*bbolt.Bucket, []byte) {
	folder, rest, _ := strings.Cut(key, "/")
	return tx.Bucket([]byte(folder)), []byte(rest)
}

// unversioned returns the value of a row and its version.
func unversioned(v []byte) (value []byte, version string, err error) {
	if len(v) < 8 || binary.BigEndian.Uint64(v) == 0 {
		return nil, "", errors.New("version is missing")
	}
	return v[8:], strconv.FormatUint(binary.BigEndian.Uint64(v), 10), nil
}

// rowOf returns the row of a key, whose Value is valid until the transaction ends.
func (d rowDB) rowOf(key string, v []byte) (row rowstore.Row, err error) {
	row.Key = key
	if v == nil {
		return row, nil
	}
	if row.Value, row.Version, err = unversioned(v); err != nil {
		err = d.Damaged(key, err)
	}
	return row, err
}

// Get implements [rowstore.Reader].
func (d rowDB) Get(ctx context.Context, keys ...string) ([]rowstore.Row, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rows := make([]rowstore.Row, len(keys))
	var damaged error
	err := d.s.read(func(tx *bbolt.Tx) error {
		for i, key := range keys {
			bucket, k := bucketOf(tx, key)
			var err error
			rows[i], err = d.rowOf(key, bucket.Get(k))
			damaged = errors.Join(damaged, err)
			if rows[i].Value != nil {
				rows[i].Value = append([]byte{}, rows[i].Value...)
			}
		}
		return nil
	})
	return rows, errors.Join(err, damaged)
}

// Scan implements [rowstore.Reader].
func (d rowDB) Scan(ctx context.Context, from, to string, visit func(rowstore.Row) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var stopped error
	err := d.s.read(func(tx *bbolt.Tx) error {
		bucket, first := bucketOf(tx, from)
		folder, rows := from[:len(from)-len(first)], bucket.Cursor()
		for k, v := rows.Seek(first); k != nil && stopped == nil; k, v = rows.Next() {
			key := folder + string(k)
			if key >= to {
				break
			}
			var row rowstore.Row
			if row, stopped = d.rowOf(key, v); stopped == nil {
				stopped = visit(row)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return stopped
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
		version, err = d.commit(tx, conditions, changes)
		return err
	}}
	for _, c := range changes {
		w.hints = append(w.hints, d.s.hints[c.Key[:strings.Index(c.Key, "/")+1]])
	}
	err := d.s.write(w)
	return version, err
}

// commit writes nothing before all conditions hold, because the transaction has other changes, too.
func (d rowDB) commit(tx *bbolt.Tx, conditions []rowstore.Condition, changes []rowstore.Change) (string, error) {
	for _, c := range conditions {
		bucket, k := bucketOf(tx, c.Key)
		row, err := d.rowOf(c.Key, bucket.Get(k))
		switch {
		case err != nil:
			return "", err
		case row.Version != c.Version:
			return "", fmt.Errorf("%w: version %q given, %q found", tokens.ErrConflict, c.Version, row.Version)
		}
	}
	n, err := tx.Bucket(tokensBucket).NextSequence()
	for _, c := range changes {
		bucket, k := bucketOf(tx, c.Key)
		switch {
		case err != nil:
		case c.Value == nil:
			err = bucket.Delete(k)
		default:
			err = bucket.Put(k, append(binary.BigEndian.AppendUint64(nil, n), c.Value...))
		}
	}
	return strconv.FormatUint(n, 10), err
}

// MaxChanges implements [rowstore.DB].
func (d rowDB) MaxChanges() int { return math.MaxInt }

// Damaged implements [rowstore.DB].
func (d rowDB) Damaged(key string, err error) error {
	folder, rest, _ := strings.Cut(key, "/")
	return fmt.Errorf("%s: %w", d.s.path, damagedRow([]byte(folder), []byte(rest), err))
}

func damagedRow(bucket, k []byte, err error) error {
	return fmt.Errorf("%w: bucket %q, key %q: %w", ErrDamaged, bucket, k, err)
}

// Watch implements [rowstore.DB].
func (d rowDB) Watch(ctx context.Context, folder string) <-chan struct{} {
	return d.s.hints[folder].Watch(ctx)
}
