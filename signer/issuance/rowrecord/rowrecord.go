// Package rowrecord stores the issuance record in a file, in etcd or in memory. It implements [issuance.Store] with the
// rows of tokens/rowstore.
package rowrecord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore"
)

// A Record is an [issuance.Store]. [New] creates it.
type Record struct {
	rows         *rowstore.Issued
	certificates bool
}

var _ issuance.Store = (*Record)(nil)

// New returns a Record with these rows, which the Issued method of a store returns.
func New(rows *rowstore.Issued) *Record { return &Record{rows, true} }

// NewWithoutCertificates is like New for a record in etcd. Its entries have fingerprints but no certificates, so that a
// million entries fit into etcd.
func NewWithoutCertificates(rows *rowstore.Issued) *Record { return &Record{rows, false} }

// Append implements [issuance.Log]. When it returns, the entry is on the disk, or a majority of the etcd members has
// it.
func (r *Record) Append(ctx context.Context, e issuance.Entry) error {
	if err := e.Check(); err != nil {
		return fmt.Errorf("issuance record: %w", err)
	}
	row, err := encode(e, r.certificates)
	if err != nil {
		return fmt.Errorf("issuance record: encode: %w", err)
	}
	return r.rows.Append(ctx, row)
}

// encode returns the row of an entry.
func encode(e issuance.Entry, certificates bool) (row rowstore.IssuedRow, err error) {
	if !certificates {
		e.Certificate = ""
	}
	row = rowstore.IssuedRow{Time: e.Time}
	for _, node := range slices.Compact([]string{e.Node, nodeOf(e.Requester)}) {
		if isName(node) {
			row.Names = append(row.Names, "node/"+node)
		}
	}
	if tokens.CheckID(e.TokenID) == nil {
		row.Names = append(row.Names, "token/"+e.TokenID)
	}
	if e.Outcome == issuance.Issued {
		row.Ends = e.NotAfter
		row.Names = append(row.Names, "serial/"+e.Serial)
	} else {
		row.Names = append(row.Names, "outcome/"+e.Outcome)
	}
	row.Value, err = json.Marshal(e)
	return row, err
}

// isName reports whether entries are indexed by this node name. A longer text is not a node name.
func isName(node string) bool {
	return node != "" && len(node) <= 253 && !strings.ContainsAny(node, "/\n")
}

// nodeOf returns the node name of a user; empty if the user is not a node.
func nodeOf(user string) string {
	node, found := strings.CutPrefix(user, tokens.NodeUserPrefix)
	if !found {
		return ""
	}
	return node
}

// nameOf returns an index name whose entries include all matches of the query. If several names qualify, it returns the
// name with the fewest entries; if none does, an empty text.
func nameOf(q issuance.Query) string {
	id := q.TokenID
	if id == "" {
		id = tokens.IDOfUser(q.Requester)
	}
	// Entries are not indexed by an invalid node name.
	switch node := nodeOf(q.Requester); {
	case isName(q.Node):
		return "node/" + q.Node
	case isName(node):
		return "node/" + node
	case tokens.CheckID(id) == nil:
		return "token/" + id
	case q.Outcome == issuance.Refused, q.Outcome == issuance.Failed:
		return "outcome/" + q.Outcome
	}
	return ""
}

// List implements [issuance.Store]. If the query has a node, a token, or an outcome without a certificate, List reads only
// their entries. Otherwise it reads all entries since a time, or all certificates that end in a period.
func (r *Record) List(ctx context.Context, q issuance.Query) (issuance.Page, error) {
	var page issuance.Page
	limit := q.Limit
	if limit <= 0 {
		limit = issuance.DefaultLimit
	}
	limit = min(limit, issuance.MaxLimit)
	if !validCursor(q) {
		return page, fmt.Errorf("%w: %.80q", issuance.ErrCursor, q.After)
	}
	name, last := nameOf(q), ""
	visit := func(place string, value []byte) (bool, error) {
		e, err := r.decode(place, value)
		if err != nil {
			return false, err
		}
		if q.ByEnd() && !q.EndsBefore.IsZero() && !e.NotAfter.Before(q.EndsBefore) {
			return false, nil // all later rows expire later
		}
		if !q.Match(e) {
			return true, nil
		}
		if len(page.Entries) == limit { // the next page has at least this entry
			page.Next = last
			return false, nil
		}
		page.Entries, last = append(page.Entries, e), place
		return true, nil
	}
	var err error
	if q.ByEnd() {
		err = r.rows.SoonestFirst(ctx, name, q.After, q.EndsAfter, limit+1, visit)
	} else {
		err = r.rows.NewestFirst(ctx, name, q.After, q.Since, limit+1, visit)
	}
	if err != nil {
		return issuance.Page{}, err
	}
	return page, nil
}

// validCursor reports whether After may be the Next of a page of the same query.
func validCursor(q issuance.Query) bool {
	want := rowstore.PlaceLen
	if q.ByEnd() {
		want = rowstore.EndsPlaceLen
	}
	return q.After == "" || len(q.After) == want && !strings.ContainsFunc(q.After, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	})
}

// Get implements [issuance.Store].
func (r *Record) Get(ctx context.Context, serial string) (found issuance.Entry, err error) {
	serial, err = issuance.ParseSerial(serial)
	if err != nil {
		return found, err
	}
	err = r.rows.NewestFirst(ctx, "serial/"+serial, "", time.Time{}, 1, func(place string, value []byte) (bool, error) {
		found, err = r.decode(place, value)
		return false, err
	})
	if err == nil && found.Serial == "" {
		err = fmt.Errorf("certificate with serial number %s: %w", serial, issuance.ErrNotFound)
	}
	return found, err
}

// decode parses an entry that Append wrote. Its errors contain no part of the entry.
func (r *Record) decode(place string, value []byte) (issuance.Entry, error) {
	e, err := decode(value)
	if err != nil {
		err = r.rows.Damaged(place[len(place)-rowstore.PlaceLen:], err)
	}
	return e, err
}

func decode(value []byte) (e issuance.Entry, err error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if d.Decode(&e) != nil || e.Check() != nil {
		return e, errors.New("invalid issuance entry")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return e, errors.New("unexpected data after the issuance entry")
	}
	return e, nil
}

// Decode returns the entry of a value that Append wrote, and its row in a record with or without certificates. A check of
// the store compares the row with the indexes. The errors never contain the value.
func Decode(value []byte, certificates bool) (e issuance.Entry, row rowstore.IssuedRow, err error) {
	if e, err = decode(value); err == nil {
		row, err = encode(e, certificates)
	}
	return e, row, err
}
