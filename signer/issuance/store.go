package issuance

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// ErrNotFound means that no certificate with this serial number is recorded.
var ErrNotFound = errors.New("not in the issuance record")

// ErrCursor means that Query.After is not the field Next of a page.
var ErrCursor = errors.New("invalid page cursor of the issuance record")

// A Store is a record that can be queried.
type Store interface {
	Log
	// List returns the entries that match, up to the limit of the query. The newest entry comes first. If the
	// query is about the expiration of certificates ([Query.ByEnd]), the certificate that expires first comes
	// first.
	List(ctx context.Context, q Query) (Page, error)
	// Get returns the entry of a certificate by its serial number, in any form that ParseSerial accepts.
	// The error wraps ErrNotFound if there is none.
	Get(ctx context.Context, serial string) (Entry, error)
}

// A Page holds some of the entries that match a query.
type Page struct {
	Entries []Entry
	// Next is the Query.After of the following page; empty if this is the last page.
	Next string
}

// Values for Query.Limit.
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// A Query selects the entries that match every field that is set. The zero Query selects all entries.
type Query struct {
	// TokenID is the bootstrap token that authenticated the request.
	TokenID string
	// Node is the node name in the certificate, or the node that requested it.
	Node      string
	Requester string
	Signer    string
	Outcome   string
	// CA is the pin of the CA that signed the certificate. NotCA selects certificates that this CA did not sign, and
	// certificates whose CA is unknown.
	CA, NotCA string
	// Since excludes entries that were recorded earlier.
	Since time.Time
	// EndsAfter and EndsBefore select issued certificates by their expiration. Certificates that expire exactly
	// at one of these times are excluded.
	EndsAfter, EndsBefore time.Time

	// Limit is the maximum number of entries in a page: zero is DefaultLimit, and more than MaxLimit is
	// MaxLimit.
	Limit int
	// After continues after a previous page, see [Page].
	After string
}

// ByEnd reports whether the query selects certificates by their expiration. Results are then sorted by expiration.
func (q Query) ByEnd() bool { return !q.EndsAfter.IsZero() || !q.EndsBefore.IsZero() }

// Match reports whether the query selects an entry.
func (q Query) Match(e Entry) bool {
	switch {
	case q.TokenID != "" && q.TokenID != e.TokenID,
		q.Node != "" && q.Node != e.Node && e.Requester != tokens.NodeUserPrefix+q.Node,
		q.Requester != "" && q.Requester != e.Requester,
		q.Signer != "" && q.Signer != e.Signer,
		q.Outcome != "" && q.Outcome != e.Outcome,
		q.CA != "" && q.CA != e.CA,
		q.NotCA != "" && (e.Outcome != Issued || q.NotCA == e.CA),
		e.Time.Before(q.Since),
		q.ByEnd() && e.Outcome != Issued,
		!q.EndsAfter.IsZero() && !e.NotAfter.After(q.EndsAfter),
		!q.EndsBefore.IsZero() && !e.NotAfter.Before(q.EndsBefore):
		return false
	}
	return true
}

// maxSerial is the maximum number of hexadecimal digits in a serial number: 20 octets (RFC 5280, section
// 4.1.2.2).
const maxSerial = 40

// ParseSerial parses a hexadecimal serial number as openssl and other tools print it. It accepts colons,
// upper case, leading zeros and the prefix 0x. It returns the form used in entries: only lower-case digits.
func ParseSerial(s string) (string, error) {
	digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(s), "0x"), ":", "")
	digits = strings.TrimLeft(digits, "0")
	if digits == "" || len(digits) > maxSerial || strings.Trim(digits, "0123456789abcdef") != "" {
		return "", fmt.Errorf("invalid serial number %.60q: want 1 to %d hexadecimal digits", s, maxSerial)
	}
	return digits, nil
}
