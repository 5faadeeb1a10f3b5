package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// Decoders decode rows whose meaning other packages define. Their errors must not contain values.
type Decoders struct {
	Entry      func(Row) error
	Revocation func(key string, value []byte) error
}

// Check reads the whole file, and calls damaged with each row that cannot be decoded, and with each key of an index that
// is missing or has no row. Each error that damaged gets names the row.
func (s *Store) Check(ctx context.Context, decode Decoders, damaged func(error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.issued.walk(func(r record) error {
		tx := r.entries.Tx()
		last := tx.Bucket(tokensBucket).Sequence()
		scan := func(folder string, visit func(key string, value []byte)) error {
			bucket := []byte(strings.TrimSuffix(folder, "/"))
			return tx.Bucket(bucket).ForEach(func(k, v []byte) error {
				value, err := checkVersion(v, last)
				if err != nil {
					damaged(damagedRow(bucket, k, err))
				} else {
					visit(folder+string(k), value)
				}
				return ctx.Err()
			})
		}
		if err := rowstore.Check(scan, decode.Revocation, func(key string, err error) {
			bucket, k, _ := strings.Cut(key, "/")
			damaged(damagedRow([]byte(bucket), []byte(k), err))
		}); err != nil {
			return err
		}
		if err := checkRecord(ctx, r, decode.Entry, damaged); err != nil {
			return err
		}
		for _, l := range s.issued.journaled {
			if err := decode.Entry(l.row()); err != nil {
				damaged(err)
			}
		}
		if s.issued.cut {
			damaged(fmt.Errorf("%w: entries at the end of %s are missing or damaged", ErrDamaged, s.issued.journal.path))
		}
		return nil
	})
}

// checkVersion returns the value of a row, and an error if its version is after the last one. A later commit would use
// such a version again.
func checkVersion(v []byte, last uint64) ([]byte, error) {
	value, version, err := unversioned(v)
	if err == nil && binary.BigEndian.Uint64(v) > last {
		err = fmt.Errorf("version %s is after %d, which is the last one", version, last)
	}
	return value, err
}

// checkRecord checks that each entry of the record is valid and in its index, and that each key of an index has an entry.
func checkRecord(ctx context.Context, r record, decode func(Row) error, damaged func(error)) error {
	if err := r.entries.ForEach(func(k, v []byte) error {
		row, err := readRow(v)
		if err == nil && (len(k) != PlaceLen || !timeOf(k).Equal(row.Time)) {
			err = errors.New("the time in the key is not that of the entry")
		}
		if err != nil {
			damaged(Row{key: k}.Damaged(err))
			return ctx.Err()
		}
		row.key = k
		if err := decode(row); err != nil {
			damaged(err)
		}
		bucket, key, value := indexOf(k, row)
		if at, entry := r.entries.Tx().Bucket(bucket).Cursor().Seek(key); !bytes.Equal(at, key) || !bytes.Equal(entry, value) {
			damaged(Row{key: k}.Damaged(fmt.Errorf("the entry is not in bucket %q", bucket)))
		}
		return ctx.Err()
	}); err != nil {
		return err
	}
	for _, bucket := range [][]byte{endsBucket, unissuedBucket} {
		if err := r.entries.Tx().Bucket(bucket).ForEach(func(k, entry []byte) error {
			if bytes.Equal(bucket, unissuedBucket) {
				entry = k
			}
			v := r.entries.Get(entry)
			row, err := readRow(v)
			if v != nil && err != nil {
				return ctx.Err() // reported above
			}
			if want, key, _ := indexOf(entry, row); v == nil || !bytes.Equal(want, bucket) || !bytes.Equal(key, k) {
				damaged(fmt.Errorf("%w: bucket %q, key %x: no entry of the issuance record belongs to this key of an index", ErrDamaged, bucket, k))
			}
			return ctx.Err()
		}); err != nil {
			return err
		}
	}
	return nil
}

// indexOf returns the index of a valid entry, and its key and value there.
func indexOf(entry []byte, r Row) (bucket, key, value []byte) {
	if l := lineOf(r); l.ends != nil && len(entry) == PlaceLen {
		return endsBucket, slices.Concat(l.ends[:8], entry[8:]), entry
	}
	return unissuedBucket, entry, nil
}
