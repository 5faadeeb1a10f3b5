package boltstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// claimRow is the JSON of a claim in the file. Its key is the node name. If its fields or their meaning
// change, schemaVersion must change too.
type claimRow struct {
	TokenID  string    `json:"tokenID"`
	TokenUID string    `json:"tokenUID,omitempty"`
	Limits   limitsRow `json:"limits,omitzero"`
	Keys     []string  `json:"keys,omitempty"`
	Requests []string  `json:"requests,omitempty"`
	NodeUID  string    `json:"nodeUID,omitempty"`

	Pending     bool   `json:"pending,omitempty"`
	ReadyBefore string `json:"readyBefore,omitempty"`
	ReadyAgain  bool   `json:"readyAgain,omitempty"`

	Past     pastRow         `json:"past,omitzero"`
	Identity tokens.Identity `json:"identity,omitzero"`

	Created time.Time `json:"created"`
	UID     string    `json:"uid"`
	Version uint64    `json:"version"`
}

// pastRow is the Past in the row of a claim.
type pastRow struct {
	Until               time.Time `json:"until"`
	CertificateDuration int64     `json:"certificateDuration,omitempty"` // seconds
}

// normalizedClaim returns c as decodeClaim will return it.
func normalizedClaim(c tokens.Claim) tokens.Claim {
	c.Created = c.Created.UTC().Truncate(time.Second)
	c.Past.Until = c.Past.Until.UTC()
	c.Identity = normalizedIdentity(c.Identity)
	c.Keys = append([]string(nil), c.Keys...)
	c.Requests = append([]string(nil), c.Requests...)
	c.Limits.NodeNames = append([]string(nil), c.Limits.NodeNames...)
	return c
}

func normalizedIdentity(i tokens.Identity) tokens.Identity {
	i.NotAfter, i.Challenge, i.TokenExpires = i.NotAfter.UTC(), i.Challenge.UTC(), i.TokenExpires.UTC()
	i.Keys, i.Rejoins = append([]string(nil), i.Keys...), append([]time.Time(nil), i.Rejoins...)
	for at, t := range i.Rejoins {
		i.Rejoins[at] = t.UTC()
	}
	return i
}

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
	version, err := strconv.ParseUint(c.Version, 10, 64)
	if err != nil {
		return fmt.Errorf("claim %s: version: %w", c.Node, err)
	}
	v, err := json.Marshal(claimRow{
		TokenID:  c.TokenID,
		TokenUID: c.TokenUID,
		Limits:   encodeLimits(c.Limits),
		Keys:     c.Keys,
		Requests: c.Requests,
		NodeUID:  c.NodeUID,

		Pending:     c.Pending,
		ReadyBefore: c.ReadyBefore,
		ReadyAgain:  c.ReadyAgain,

		Past:     pastRow{c.Past.Until, int64(c.Past.CertificateDuration / time.Second)},
		Identity: c.Identity,
		Created:  c.Created,
		UID:      c.UID,
		Version:  version,
	})
	if err != nil {
		return fmt.Errorf("claim %s: encode: %w", c.Node, err)
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
	damaged := func(err error) (tokens.Claim, error) {
		return tokens.Claim{}, fmt.Errorf("%w: bucket %q, key %q: %w", ErrDamaged, claimsBucket, k, err)
	}
	var w claimRow
	if err := unmarshal(v, &w); err != nil {
		return damaged(err)
	}
	if w.UID == "" || w.Version == 0 || w.Created.IsZero() {
		return damaged(errors.New("uid, version or created is missing"))
	}
	limits, err := decodeLimits(w.Limits)
	if err != nil {
		return damaged(err)
	}
	c := tokens.Claim{
		Node:     string(k),
		TokenID:  w.TokenID,
		TokenUID: w.TokenUID,
		Limits:   limits,
		Keys:     w.Keys,
		Requests: tokens.NewestRequests(w.Requests),
		NodeUID:  w.NodeUID,

		Pending:     w.Pending,
		ReadyBefore: w.ReadyBefore,
		ReadyAgain:  w.ReadyAgain,

		Past:     tokens.ReleasedClaim{Until: w.Past.Until, CertificateDuration: time.Duration(w.Past.CertificateDuration) * time.Second},
		Identity: w.Identity,
		Created:  w.Created,
		UID:      w.UID,
		Version:  strconv.FormatUint(w.Version, 10),
	}
	if c.Check() != nil || int64(c.Past.CertificateDuration/time.Second) != w.Past.CertificateDuration {
		return damaged(errors.New("invalid claim"))
	}
	return c, nil
}
