// Package rows encodes tokens and claims as the JSON rows of tokens/rowstore and tokens/etcdstore. It has no versions
// of its own: if a field or its meaning changes, the schema versions of both stores must change too.
package rows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// record is the JSON of a token. Its key is the token ID.
type record struct {
	Secret         string    `json:"secret"`
	Expires        time.Time `json:"expires,omitzero"`
	Signing        bool      `json:"signing"`
	Authentication bool      `json:"authentication"`
	Groups         []string  `json:"groups,omitempty"`
	Description    string    `json:"description,omitempty"`
	Limits         limits    `json:"limits,omitzero"`
	Nodes          []string  `json:"nodes,omitempty"`
	Creator        string    `json:"creator,omitempty"`
	Created        time.Time `json:"created"`
	UID            string    `json:"uid"`
}

// NormalizedRecord returns r as DecodeRecord will return it.
func NormalizedRecord(r tokens.Record) tokens.Record {
	r.Expires = r.Expires.UTC().Truncate(time.Second)
	r.Created = r.Created.UTC().Truncate(time.Second)
	r.Groups = append([]string(nil), r.Groups...)
	r.Nodes = append([]string(nil), r.Nodes...)
	r.Limits.NodeNames = append([]string(nil), r.Limits.NodeNames...)
	r.Problem = nil
	return r
}

// EncodeRecord returns the row of a token, without its Version.
func EncodeRecord(r tokens.Record) ([]byte, error) {
	v, err := json.Marshal(record{
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
	})
	if err != nil {
		return nil, fmt.Errorf("token %s: encode: %w", r.Token.ID(), err)
	}
	return v, nil
}

// DecodeRecord decodes the row of a token, without its Version. Its errors never contain a part of the row.
func DecodeRecord(id string, v []byte) (tokens.Record, error) {
	var w record
	if err := Unmarshal(v, &w); err != nil {
		return tokens.Record{}, err
	}
	token, err := tokens.New(id, w.Secret)
	if err != nil {
		return tokens.Record{}, err
	}
	if w.UID == "" || w.Created.IsZero() {
		return tokens.Record{}, errors.New("uid or created is missing")
	}
	limits, err := decodeLimits(w.Limits)
	if err != nil {
		return tokens.Record{}, err
	}
	if slices.ContainsFunc(w.Nodes, func(name string) bool { return tokens.CheckNodeName(name) != nil }) {
		return tokens.Record{}, errors.New("invalid node name in nodes")
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
	}, nil
}

// Unmarshal decodes one JSON object and refuses unknown fields. Its errors never contain a value.
func Unmarshal(v []byte, row any) error {
	d := json.NewDecoder(bytes.NewReader(v))
	d.DisallowUnknownFields()
	if err := d.Decode(row); err != nil {
		return WithoutValue(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("unexpected data after the JSON object")
	}
	return nil
}

// WithoutValue returns an error of encoding/json without the parts that may contain a secret.
func WithoutValue(err error) error {
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
