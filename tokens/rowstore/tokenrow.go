package rowstore

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/internal/rows"
)

// record is the JSON of a token. The key of the row is the token ID.
type record struct {
	Secret         string    `json:"secret"`
	Expires        time.Time `json:"expires,omitzero"`
	Signing        bool      `json:"signing"`
	Authentication bool      `json:"authentication"`
	Groups         []string  `json:"groups,omitempty"`
	Description    string    `json:"description,omitempty"`
	Limits         limits    `json:"limits,omitzero"`
	Nodes          []string  `json:"nodes,omitempty"`

	Marks map[string]string `json:"marks,omitempty"`

	Creator string    `json:"creator,omitempty"`
	Created time.Time `json:"created"`
	UID     string    `json:"uid"`
}

// normalizedRecord returns r as decodeRecord will return it.
func normalizedRecord(r tokens.Record) tokens.Record {
	r.Expires = r.Expires.UTC().Truncate(time.Second)
	r.Created = r.Created.UTC().Truncate(time.Second)
	r.Groups = append([]string(nil), r.Groups...)
	r.Nodes = append([]string(nil), r.Nodes...)
	if r.Marks = maps.Clone(r.Marks); len(r.Marks) == 0 {
		r.Marks = nil
	}
	r.Limits.NodeNames = append([]string(nil), r.Limits.NodeNames...)
	r.Problem = nil
	return r
}

// encodeRecord returns the row of a token, without its Version.
func encodeRecord(r tokens.Record) ([]byte, error) {
	if r.Owner != (tokens.Owner{}) {
		return nil, &tokens.FieldError{Field: "owner", Err: fmt.Errorf("%s given, want none: only tokens in Secrets have an owner (%w)", r.Owner, tokens.ErrRefused)}
	}
	v, err := json.Marshal(record{
		Secret:         r.Token.RevealSecret(),
		Expires:        r.Expires,
		Signing:        r.Signing,
		Authentication: r.Authentication,
		Groups:         r.Groups,
		Description:    r.Description,
		Limits:         encodeLimits(r.Limits),
		Nodes:          r.Nodes,
		Marks:          r.Marks,
		Creator:        r.Creator,
		Created:        r.Created,
		UID:            r.UID,
	})
	if err != nil {
		return nil, fmt.Errorf("token %s: encode: %w", r.Token.ID(), err)
	}
	return v, nil
}

// decodeRecord decodes the row of a token, without its Version. Its errors never contain a part of the row.
func decodeRecord(id string, v []byte) (tokens.Record, error) {
	var w record
	if err := rows.Unmarshal(v, &w); err != nil {
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
		Marks:          w.Marks,
		Creator:        w.Creator,
		Created:        w.Created,
		UID:            w.UID,
	}, nil
}

// limits is the JSON of the limits in the row of a token or a claim.
type limits struct {
	MaxNodes            int      `json:"maxNodes,omitempty"`
	NodeNames           []string `json:"nodeNames,omitempty"`
	CertificateDuration int64    `json:"certificateDuration,omitempty"` // seconds
	Replaces            *nodeRef `json:"replaces,omitempty"`
	Role                string   `json:"role,omitempty"`
	Rejoin              string   `json:"rejoin,omitempty"`

	Node tokens.NodeProperties `json:"node,omitzero"`
}

type nodeRef struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

func encodeLimits(l tokens.Limits) limits {
	row := limits{
		MaxNodes:            l.MaxNodes,
		NodeNames:           l.NodeNames,
		CertificateDuration: int64(l.CertificateDuration / time.Second),
		Role:                l.Role,
		Rejoin:              l.Rejoin,
		Node:                l.Node,
	}
	if l.Replaces != (tokens.NodeRef{}) {
		row.Replaces = &nodeRef{Name: l.Replaces.Name, UID: l.Replaces.UID}
	}
	return row
}

// decodeLimits returns an error for limits that Create would have refused.
func decodeLimits(row limits) (tokens.Limits, error) {
	l := tokens.Limits{
		MaxNodes:            row.MaxNodes,
		NodeNames:           row.NodeNames,
		CertificateDuration: time.Duration(row.CertificateDuration) * time.Second,
		Role:                row.Role,
		Rejoin:              row.Rejoin,
		Node:                row.Node,
	}
	overflown := int64(l.CertificateDuration/time.Second) != row.CertificateDuration
	if row.Replaces != nil {
		l.Replaces = tokens.NodeRef{Name: row.Replaces.Name, UID: row.Replaces.UID}
	}
	if overflown || row.Replaces != nil && l.Replaces == (tokens.NodeRef{}) || l.Check() != nil {
		return tokens.Limits{}, errors.New("invalid limits")
	}
	return l, nil
}
