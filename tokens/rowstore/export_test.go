package rowstore

import (
	"context"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// The decoders of rows.
var (
	DecodeRecord = decodeRecord
	DecodeClaim  = decodeClaim
)

const MaxCached = maxCached

// CountDecodes counts the rows of tokens that are decoded from now on.
func (s *Store) CountDecodes() *int {
	n, decode := new(int), s.table.decode
	s.table.decode = func(key string, v []byte) (tokens.Record, error) { *n++; return decode(key, v) }
	return n
}

// Cached returns the number of tokens in the cache.
func (s *Store) Cached() int { return len(s.table.cache) }

// SweepBeyond is [Issued.Sweep] with another maximum of certificates, and without retention.
func (s *Issued) SweepBeyond(ctx context.Context, now time.Time, most int) (Swept, error) {
	return s.sweep(ctx, now, 0, most)
}
