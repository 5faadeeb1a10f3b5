package boltstore

import (
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	"go.etcd.io/bbolt"
)

func get(tx *bbolt.Tx, id string) (tokens.Record, error) {
	v := tx.Bucket(tokensBucket).Get([]byte(id))
	if v == nil {
		return tokens.Record{}, fmt.Errorf("token %s: %w", id, tokens.ErrNotFound)
	}
	return decodeRow([]byte(id), v)
}

func put(tx *bbolt.Tx, r tokens.Record) error {
	v, err := rows.EncodeRecord(r)
	if err != nil {
		return err
	}
	return tx.Bucket(tokensBucket).Put([]byte(r.Token.ID()), v)
}

// decodeRow decodes a row that put wrote. Its errors name the key and never contain the value.
func decodeRow(k, v []byte) (tokens.Record, error) {
	r, err := rows.DecodeRecord(string(k), v)
	if err == nil && r.Version == "" {
		err = errNoVersion
	}
	if err != nil {
		return tokens.Record{}, damagedRow(tokensBucket, k, err)
	}
	return r, nil
}

var errNoVersion = errors.New("version is missing")

func damagedRow(bucket, k []byte, err error) error {
	return fmt.Errorf("%w: bucket %q, key %q: %w", ErrDamaged, bucket, k, err)
}
