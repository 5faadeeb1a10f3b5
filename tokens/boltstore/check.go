package boltstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	"go.etcd.io/bbolt"
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
		checkClaims(tx, damaged)
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
		_ = tx.Bucket(revocationsBucket).ForEach(func(k, v []byte) error { // fails only if the callback does
			value, _, err := unversioned(v)
			if err == nil {
				err = decode.Revocation(string(k), value)
			}
			if err != nil {
				damaged(damagedRow(revocationsBucket, k, err))
			}
			return nil
		})
		return tx.Bucket(tokensBucket).ForEach(func(k, v []byte) error {
			if _, err := decodeRow(k, v); err != nil {
				damaged(err)
			}
			return nil
		})
	})
}

// decodeRow decodes the row of a token. Its errors name the key and never contain the value.
func decodeRow(k, v []byte) (r tokens.Record, err error) {
	v, _, err = unversioned(v)
	if err == nil {
		r, err = rows.DecodeRecord(string(k), v)
	}
	if err != nil {
		err = damagedRow(tokensBucket, k, err)
	}
	return r, err
}

// decodeClaim decodes the row of a claim, like decodeRow.
func decodeClaim(k, v []byte) (c tokens.Claim, err error) {
	v, _, err = unversioned(v)
	if err == nil {
		c, err = rows.DecodeClaim(string(k), v)
	}
	if err != nil {
		err = damagedRow(claimsBucket, k, err)
	}
	return c, err
}

func checkClaims(tx *bbolt.Tx, damaged func(error)) {
	holders := map[string]bool{}                                  // keys that claims need
	_ = tx.Bucket(claimsBucket).ForEach(func(k, v []byte) error { // fails only if the callback does
		c, err := decodeClaim(k, v)
		if err != nil {
			damaged(err)
		} else if !c.Released() {
			holders[c.TokenID+"/"+c.Node] = true
		}
		return nil
	})
	_ = tx.Bucket(holdersBucket).ForEach(func(k, _ []byte) error {
		if !holders[string(k)] {
			damaged(damagedRow(holdersBucket, k, errors.New("the token does not hold this claim")))
		}
		delete(holders, string(k))
		return nil
	})
	for _, key := range slices.Sorted(maps.Keys(holders)) {
		damaged(damagedRow(holdersBucket, []byte(key), errors.New("missing in the index of claims")))
	}
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
