// Package boltrecord stores the issuance record in the file of a boltstore.Store. It implements
// [issuance.Store] with rows of that file.
package boltrecord

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// A Record is an [issuance.Store]. [New] creates it.
type Record struct{ rows *boltstore.Issued }

var _ issuance.Store = (*Record)(nil)

// New returns a Record with these rows, which the Issued method of a [boltstore.Store] returns. The Record
// can be used until that store is closed.
func New(rows *boltstore.Issued) *Record { return &Record{rows} }

// Truncated calls [boltstore.Issued.Truncated].
func (r *Record) Truncated() bool { return r.rows.Truncated() }

// Dropped calls [boltstore.Issued.Dropped].
func (r *Record) Dropped() (entries int, last time.Time) { return r.rows.Dropped() }

// Append implements [issuance.Log]. The entry is on the disk when it returns.
func (r *Record) Append(ctx context.Context, e issuance.Entry) error {
	if err := e.Check(); err != nil {
		return fmt.Errorf("issuance record: %w", err)
	}
	v, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("issuance record: encode: %w", err)
	}
	row := boltstore.Row{Time: e.Time, Value: v}
	if e.Outcome == issuance.Issued {
		row.Ends = e.NotAfter
	}
	return r.rows.Append(ctx, row)
}

// decode parses a row that Append wrote.
func decode(row boltstore.Row) (issuance.Entry, error) {
	var e issuance.Entry
	err := row.Decode(&e)
	if err == nil && (e.Check() != nil || !e.Time.Equal(row.Time)) {
		err = row.Damaged(errors.New("invalid issuance entry"))
	}
	return e, err
}

// List implements [issuance.Store]. If no order of the rows helps with the query, it reads all rows, newest
// first. It decodes only those that can match: 100,000 rows take a fraction of a second.
func (r *Record) List(ctx context.Context, q issuance.Query) (issuance.Page, error) {
	var page issuance.Page
	if err := ctx.Err(); err != nil {
		return page, err
	}
	limit := q.Limit
	if limit <= 0 {
		limit = issuance.DefaultLimit
	}
	limit = min(limit, issuance.MaxLimit)
	after, err := hex.DecodeString(q.After)
	if err != nil || len(after) != 0 && len(after) != boltstore.PlaceLen {
		return page, fmt.Errorf("%w: %.80q", issuance.ErrCursor, q.After)
	}
	parts := rawParts(q)
	var last []byte
	visited := 0
	visit := func(place []byte, row boltstore.Row) (bool, error) {
		if visited++; visited%1000 == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		if past(q, row) {
			return false, nil
		}
		for _, part := range parts {
			if !bytes.Contains(row.Value, part) {
				return true, nil
			}
		}
		e, err := decode(row)
		if err != nil {
			return false, err
		}
		if !q.Match(e) {
			return true, nil
		}
		if len(page.Entries) == limit { // the next page has at least this entry
			page.Next = hex.EncodeToString(last)
			return false, nil
		}
		page.Entries, last = append(page.Entries, e), bytes.Clone(place)
		return true, nil
	}
	if q.ByEnd() {
		err = r.rows.SoonestFirst(after, q.EndsAfter, visit)
	} else {
		err = r.rows.NewestFirst(after, visit)
	}
	if err != nil {
		return issuance.Page{}, err
	}
	return page, nil
}

// past reports whether neither the row nor any later one can match.
func past(q issuance.Query, row boltstore.Row) bool {
	if q.ByEnd() {
		return !q.EndsBefore.IsZero() && !row.Ends.Before(q.EndsBefore)
	}
	return row.Time.Before(q.Since)
}

// rawParts returns bytes that the row of each matching entry contains. Searching for them takes a hundredth
// of the time of decoding the row.
func rawParts(q issuance.Query) [][]byte {
	var parts [][]byte
	for name, value := range map[string]string{
		"tokenID": q.TokenID, "requester": q.Requester, "signer": q.Signer, "outcome": q.Outcome,
	} {
		if value == "" {
			continue
		}
		if quoted, err := json.Marshal(value); err == nil {
			parts = append(parts, fmt.Appendf(nil, "%q:%s", name, quoted))
		}
	}
	if quoted, err := json.Marshal(q.Node); err == nil && q.Node != "" {
		parts = append(parts, quoted[1:]) // after "node":" or "requester":"system:node:
	}
	return parts
}

// Get implements [issuance.Store].
func (r *Record) Get(ctx context.Context, serial string) (issuance.Entry, error) {
	var found issuance.Entry
	serial, err := issuance.ParseSerial(serial)
	if err = errors.Join(err, ctx.Err()); err != nil {
		return found, err
	}
	part := fmt.Appendf(nil, `"serial":%q`, serial)
	err = r.rows.NewestFirst(nil, func(_ []byte, row boltstore.Row) (bool, error) {
		if !bytes.Contains(row.Value, part) {
			return true, nil
		}
		e, err := decode(row)
		if err == nil {
			found = e
		}
		return false, err
	})
	if err == nil && found.Serial == "" {
		err = fmt.Errorf("certificate with serial number %s: %w", serial, issuance.ErrNotFound)
	}
	return found, err
}
