// Package etcdrecord stores the issuance record in etcd. It implements [issuance.Store] with the rows of a
// tokens/etcdstore. Entries are without certificates, which have their fingerprints, so that a million of them fit into
// etcd.
package etcdrecord

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
)

// A Record is an [issuance.Store]. [New] creates it.
type Record struct {
	rows *etcdstore.Issued

	mu      sync.Mutex
	dropped int
	last    time.Time // when the last entry was dropped
}

var _ issuance.Store = (*Record)(nil)

// New returns a Record with these rows, which the Issued method of an [etcdstore.Store] returns. The Record can be used
// until that store is closed.
func New(rows *etcdstore.Issued) *Record { return &Record{rows: rows} }

// Sweep deletes the entries of certificates that ended longer than retention before now, old refusals and failures, and
// what is beyond the bounds of the record. One replica at a time should call it.
func (r *Record) Sweep(ctx context.Context, now time.Time, retention time.Duration) error {
	out, err := r.rows.Sweep(ctx, now, retention)
	r.mu.Lock()
	defer r.mu.Unlock()
	if out.Dropped > 0 {
		r.dropped, r.last = r.dropped+out.Dropped, now
	}
	return err
}

// Dropped returns how many entries this Record has dropped before they were due, and when it dropped the last one.
func (r *Record) Dropped() (entries int, last time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dropped, r.last
}

// maxIndexed is the maximum length of a node name that an entry can be found by. A longer one is no node name.
const maxIndexed = 253

// Append implements [issuance.Log]. A majority of the members of etcd has the entry when it returns.
func (r *Record) Append(ctx context.Context, e issuance.Entry) error {
	if err := e.Check(); err != nil {
		return fmt.Errorf("issuance record: %w", err)
	}
	e.Certificate = ""
	value, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("issuance record: encode: %w", err)
	}
	return r.rows.Append(ctx, rowOf(e, value))
}

// rowOf returns the row of an entry, with the keys of its indexes.
func rowOf(e issuance.Entry, value []byte) etcdstore.IssuedRow {
	row := etcdstore.IssuedRow{Time: e.Time, Value: value, Serial: e.Serial}
	if e.Outcome == issuance.Issued {
		row.Ends = e.NotAfter
	}
	for _, node := range []string{e.Node, nodeOf(e.Requester)} {
		if node != "" && len(node) <= maxIndexed && !strings.ContainsAny(node, "/\n") {
			row.Nodes = append(row.Nodes, node)
		}
	}
	if tokens.CheckID(e.TokenID) == nil {
		row.TokenID = e.TokenID
	}
	return row
}

// nodeOf returns the node of a user; empty for other users.
func nodeOf(user string) string {
	node, found := strings.CutPrefix(user, tokens.NodeUserPrefix)
	if !found {
		return ""
	}
	return node
}

// indexOf returns the index with the fewest entries that has all that match.
func indexOf(q issuance.Query) (index etcdstore.Index, none bool) {
	node := q.Node
	if node == "" {
		node = nodeOf(q.Requester)
	}
	id := q.TokenID
	if id == "" {
		id = tokens.IDOfUser(q.Requester)
	}
	switch {
	case node != "":
		return etcdstore.IssuedOfNode(node), len(node) > maxIndexed || strings.ContainsAny(node, "/\n")
	case id != "":
		return etcdstore.IssuedOfToken(id), tokens.CheckID(id) != nil
	case q.Outcome == issuance.Refused, q.Outcome == issuance.Failed:
		return etcdstore.Unissued(), false
	}
	return etcdstore.AllIssued(), false
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
	index, none := indexOf(q)
	if none {
		return page, nil
	}
	last := ""
	visit := func(place string, value []byte) (bool, error) {
		e, err := decode(place, value)
		if err != nil {
			return false, err
		}
		if q.ByEnd() && !q.EndsBefore.IsZero() && !e.NotAfter.Before(q.EndsBefore) {
			return false, nil // all others end later
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
		err = r.rows.SoonestFirst(ctx, index, q.After, q.EndsAfter, visit)
	} else {
		err = r.rows.NewestFirst(ctx, index, q.After, q.Since, visit)
	}
	if err != nil {
		return issuance.Page{}, err
	}
	return page, nil
}

// validCursor reports whether After may be the Next of a page of the same query.
func validCursor(q issuance.Query) bool {
	want := etcdstore.PlaceLen
	if q.ByEnd() {
		want = etcdstore.EndsPlaceLen
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
	err = r.rows.NewestFirst(ctx, etcdstore.IssuedOfSerial(serial), "", time.Time{}, func(place string, value []byte) (bool, error) {
		found, err = decode(place, value)
		return false, err
	})
	if err == nil && found.Serial == "" {
		err = fmt.Errorf("certificate with serial number %s: %w", serial, issuance.ErrNotFound)
	}
	return found, err
}

// decode parses an entry that Append wrote. Its errors never contain the entry.
func decode(place string, value []byte) (issuance.Entry, error) {
	e, _, err := Decode(value)
	if err != nil {
		err = fmt.Errorf("issuance record: %w: entry %s", etcdstore.ErrDamaged, place)
	}
	return e, err
}

// Decode returns the entry of a value that Append wrote, and the row that Append wrote it with. A check of the store
// compares the row with the indexes. The errors never contain the value.
func Decode(value []byte) (e issuance.Entry, row etcdstore.IssuedRow, err error) {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if d.Decode(&e) != nil || e.Check() != nil {
		return e, row, errors.New("invalid issuance entry")
	}
	return e, rowOf(e, value), nil
}
