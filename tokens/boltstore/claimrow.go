package boltstore

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
	"go.etcd.io/bbolt"
)

func getClaim(tx *bbolt.Tx, node string) (tokens.Claim, error) {
	v := tx.Bucket(claimsBucket).Get([]byte(node))
	if v == nil {
		return tokens.Claim{}, fmt.Errorf("claim %s: %w", node, tokens.ErrNotFound)
	}
	return decodeClaim([]byte(node), v)
}

// claimsOf returns the claims of a token, sorted by node name. It reads them through the cache known,
// because for each node that joins, the signer reads all claims of the token. The claims share their slices
// with the cache.
func claimsOf(tx *bbolt.Tx, id string, known *listing[tokens.Claim]) ([]tokens.Claim, error) {
	var all []tokens.Claim
	prefix := []byte(id + "/")
	holders := tx.Bucket(holdersBucket).Cursor()
	for k, _ := holders.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = holders.Next() {
		node := k[len(prefix):]
		// If the row is missing, decodeClaim returns ErrDamaged.
		c, err := known.one(node, tx.Bucket(claimsBucket).Get(node), decodeClaim)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// putClaim writes a claim that replaces before. For a new claim, before is the zero Claim.
func putClaim(tx *bbolt.Tx, before, c tokens.Claim) error {
	v, err := rows.EncodeClaim(c)
	if err != nil {
		return err
	}
	holders := tx.Bucket(holdersBucket)
	if !before.Released() {
		if err := holders.Delete(holderKey(before)); err != nil {
			return err
		}
	}
	if !c.Released() {
		if err := holders.Put(holderKey(c), nil); err != nil {
			return err
		}
	}
	return tx.Bucket(claimsBucket).Put([]byte(c.Node), v)
}

func deleteClaim(tx *bbolt.Tx, c tokens.Claim) error {
	return errors.Join(tx.Bucket(holdersBucket).Delete(holderKey(c)), tx.Bucket(claimsBucket).Delete([]byte(c.Node)))
}

func holderKey(c tokens.Claim) []byte { return []byte(c.TokenID + "/" + c.Node) }

// decodeClaim decodes a row that putClaim wrote. Its errors name the key and never contain the value.
func decodeClaim(k, v []byte) (tokens.Claim, error) {
	c, err := rows.DecodeClaim(string(k), v)
	if err == nil && c.Version == "" {
		err = errNoVersion
	}
	if err != nil {
		return tokens.Claim{}, damagedRow(claimsBucket, k, err)
	}
	return c, nil
}
