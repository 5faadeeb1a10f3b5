package boltstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"go.etcd.io/bbolt"
)

// row is the JSON of a token in the file. Its key is the token ID. If its fields or their meaning change,
// schemaVersion must change too.
type row struct {
	Secret         string    `json:"secret"`
	Expires        time.Time `json:"expires,omitzero"`
	Signing        bool      `json:"signing"`
	Authentication bool      `json:"authentication"`
	Groups         []string  `json:"groups,omitempty"`
	Description    string    `json:"description,omitempty"`
	Limits         limitsRow `json:"limits,omitzero"`
	Nodes          []string  `json:"nodes,omitempty"`
	Creator        string    `json:"creator,omitempty"`
	Created        time.Time `json:"created"`
	UID            string    `json:"uid"`
	Version        uint64    `json:"version"`
}

// normalizedRecord returns r as decodeRow will return it.
func normalizedRecord(r tokens.Record) tokens.Record {
	r.Expires = r.Expires.UTC().Truncate(time.Second)
	r.Created = r.Created.UTC().Truncate(time.Second)
	r.Groups = append([]string(nil), r.Groups...)
	r.Nodes = append([]string(nil), r.Nodes...)
	r.Limits.NodeNames = append([]string(nil), r.Limits.NodeNames...)
	r.Problem = nil
	return r
}

func get(tx *bbolt.Tx, id string) (tokens.Record, error) {
	v := tx.Bucket(tokensBucket).Get([]byte(id))
	if v == nil {
		return tokens.Record{}, fmt.Errorf("token %s: %w", id, tokens.ErrNotFound)
	}
	return decodeRow([]byte(id), v)
}

func put(tx *bbolt.Tx, r tokens.Record) error {
	version, err := strconv.ParseUint(r.Version, 10, 64)
	if err != nil {
		return fmt.Errorf("token %s: version: %w", r.Token.ID(), err)
	}
	v, err := json.Marshal(row{
		Secret:         r.Token.RevealSecret(),
		Expires:        r.Expires,
		Signing:        r.Signing,
		Authentication: r.Authentication,
		Groups:         r.Groups,
		Description:    r.Description,
		Limits:         encodeLimits(r.Limits),
		Nodes:          r.Nodes,
		Creator:        r.Creator,
		Created:        r.Created,
		UID:            r.UID,
		Version:        version,
	})
	if err != nil {
		return fmt.Errorf("token %s: encode: %w", r.Token.ID(), err)
	}
	return tx.Bucket(tokensBucket).Put([]byte(r.Token.ID()), v)
}

// decodeRow decodes a row that put wrote. Its errors name the key and never contain the value.
func decodeRow(k, v []byte) (tokens.Record, error) {
	damaged := func(err error) (tokens.Record, error) {
		return tokens.Record{}, fmt.Errorf("%w: bucket %q, key %q: %w", ErrDamaged, tokensBucket, k, err)
	}
	var w row
	if err := unmarshal(v, &w); err != nil {
		return damaged(err)
	}
	token, err := tokens.New(string(k), w.Secret)
	if err != nil {
		return damaged(err)
	}
	if w.UID == "" || w.Version == 0 || w.Created.IsZero() {
		return damaged(errors.New("uid, version or created is missing"))
	}
	limits, err := decodeLimits(w.Limits)
	if err != nil {
		return damaged(err)
	}
	if slices.ContainsFunc(w.Nodes, func(name string) bool { return tokens.CheckNodeName(name) != nil }) {
		return damaged(errors.New("invalid node name in nodes"))
	}
	return tokens.Record{
		Token:          token,
		Expires:        w.Expires,
		Signing:        w.Signing,
		Authentication: w.Authentication,
		Groups:         w.Groups,
		Description:    w.Description,
		Limits:         limits,
		Nodes:          w.Nodes,
		Creator:        w.Creator,
		Created:        w.Created,
		UID:            w.UID,
		Version:        strconv.FormatUint(w.Version, 10),
	}, nil
}

// unmarshal decodes one JSON object and refuses unknown fields. Its errors never contain a value.
func unmarshal(v []byte, row any) error {
	d := json.NewDecoder(bytes.NewReader(v))
	d.DisallowUnknownFields()
	if err := d.Decode(row); err != nil {
		return withoutValue(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the JSON object")
	}
	return nil
}

// withoutValue returns an error of encoding/json without the parts that may contain a secret.
func withoutValue(err error) error {
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	switch {
	case errors.As(err, &syntax):
		return fmt.Errorf("invalid JSON at byte %d", syntax.Offset)
	case errors.As(err, &kind):
		return fmt.Errorf("field %q has the wrong type", kind.Field)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("unexpected end of JSON")
	}
	return errors.New("want a JSON object with known fields only, and times in RFC 3339")
}
