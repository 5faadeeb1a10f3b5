package issuance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// ErrNotFound is wrapped where no certificate of a serial number is recorded.
var ErrNotFound = errors.New("not in the issuance record")

// ErrCursor is wrapped where Query.After is not the Next of a page.
var ErrCursor = errors.New("not a place in the issuance record")

// A Store is a record that can be asked.
type Store interface {
	Log
	// List gives the entries that match, at most as many as the query's limit: the newest
	// first, or, of a query about when certificates end, the one that ends first.
	List(ctx context.Context, q Query) (Page, error)
	// Get gives the entry of a certificate by its serial number, in any form that ParseSerial
	// reads. The error wraps ErrNotFound if there is none.
	Get(ctx context.Context, serial string) (Entry, error)
}

// A Page is some of the entries that match a query.
type Page struct {
	Entries []Entry
	// Next is the Query.After of the page that comes after this one; empty if this is the last.
	Next string
}

// Limits of Query.Limit.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// A Query says which entries are wanted: those that match every field that is set. The zero Query
// is all.
type Query struct {
	// TokenID is the bootstrap token that was asked with.
	TokenID string
	// Node is the node that a certificate names, or that asked for it.
	Node      string
	Requester string
	Signer    string
	Outcome   string
	// Since leaves out what was recorded before.
	Since time.Time
	// EndsAfter and EndsBefore are about certificates that were issued: when they end. Both
	// themselves are left out.
	EndsAfter, EndsBefore time.Time

	// Limit is the most entries of a page: zero is DefaultLimit, MaxLimit is the most.
	Limit int
	// After goes on behind a page, see [Page].
	After string
}

// ByEnd reports whether the query is about when certificates end, and answered in that order.
func (q Query) ByEnd() bool { return !q.EndsAfter.IsZero() || !q.EndsBefore.IsZero() }

// Match reports whether the query selects an entry.
func (q Query) Match(e Entry) bool {
	switch {
	case q.TokenID != "" && q.TokenID != e.TokenID,
		q.Node != "" && q.Node != e.Node && e.Requester != tokens.NodeUserPrefix+q.Node,
		q.Requester != "" && q.Requester != e.Requester,
		q.Signer != "" && q.Signer != e.Signer,
		q.Outcome != "" && q.Outcome != e.Outcome,
		e.Time.Before(q.Since),
		q.ByEnd() && e.Outcome != Issued,
		!q.EndsAfter.IsZero() && !e.NotAfter.After(q.EndsAfter),
		!q.EndsBefore.IsZero() && !e.NotAfter.Before(q.EndsBefore):
		return false
	}
	return true
}

// maxSerial is the most hexadecimal digits of a serial number: 20 octets (RFC 5280, section
// 4.1.2.2).
const maxSerial = 40

// ParseSerial reads a serial number in hexadecimal as openssl and others print it, with colons, in
// capitals, with zeros or 0x before it, and gives it as entries have it: lower case digits alone.
func ParseSerial(s string) (string, error) {
	digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(s), "0x"), ":", "")
	digits = strings.TrimLeft(digits, "0")
	if digits == "" || len(digits) > maxSerial || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", fmt.Errorf("serial number %.60q: want 1 to %d hexadecimal digits", s, maxSerial)
	}
	return digits, nil
}
