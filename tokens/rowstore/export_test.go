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

// CountDecodes returns a counter of the rows of tokens that the store decodes from now on.
func (s *Store) CountDecodes() *int {
	n, decode := new(int), s.table.decode
	s.table.decode = func(key string, v []byte) (tokens.Record, error) { *n++; return decode(key, v) }
	return n
}

// Cached returns the number of tokens in the cache.
func (s *Store) Cached() int { return len(s.table.cache) }

// SweepBeyond is [Issued.Sweep] with a maximum of most certificates, and without retention.
func (s *Issued) SweepBeyond(ctx context.Context, now time.Time, most int) (Swept, error) {
	return s.sweep(ctx, now, 0, most)
}
