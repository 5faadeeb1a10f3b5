package configmap

import (
	"context"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// list returns all tokens. The caller must not change them, because a store that caches decoded records shares them.
func (s *signing) list(ctx context.Context) ([]*tokens.Record, error) {
	if cache, ok := s.Tokens.(interface {
		Shared(ctx context.Context) ([]*tokens.Record, error)
	}); ok {
		return cache.Shared(ctx)
	}
	records, err := s.Tokens.List(ctx)
	listed := make([]*tokens.Record, len(records))
	for i := range records {
		listed[i] = &records[i]
	}
	return listed, err
}

// settled has what the last step read, if that step had nothing to write. Most changes to tokens only count a node.
// After such a change, the next step computes no signatures, and compares only the tokens that have changed.
type settled struct {
	version    string // of cluster-info
	kubeconfig string
	records    []*tokens.Record
	until      time.Time // when the next token expires; zero if no token expires
	retired    removed
}

// still reports whether a step that reads this has nothing to write either. If so, it keeps these records.
func (s *settled) still(version, kubeconfig string, records []*tokens.Record, now time.Time) bool {
	if s.version == "" || version != s.version || kubeconfig != s.kubeconfig || len(records) != len(s.records) {
		return false
	}
	until := s.until
	if !until.IsZero() && !now.Before(until) {
		return false
	}
	for i, r := range records {
		before := s.records[i]
		if r == before {
			continue
		}
		if r.Token != before.Token || r.Signing != before.Signing || !r.Created.Equal(before.Created) || r.Expired(now) != before.Expired(now) || s.retired.has(before) {
			return false
		}
		if end := r.Expires; r.Signing && !end.IsZero() && !r.Expired(now) && (until.IsZero() || end.Before(until)) {
			until = end
		}
	}
	s.records, s.until = records, until
	return true
}
