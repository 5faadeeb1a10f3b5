package mint

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// DefaultUserTokens is the default of Minter.UserTokens. A token takes up to 30 KB of memory.
const DefaultUserTokens = 10_000

// How long a count is valid. A new count after countInterval includes tokens that other replicas created. For a user
// at the limit, a count is valid only for countIntervalAtLimit, so that deleted and expired tokens soon free quota.
const (
	countInterval        = 10 * time.Second
	countIntervalAtLimit = time.Second
)

// tokenCounts counts the unexpired tokens of each user. It counts the tokens in the store, and adds the tokens
// that this replica creates until the next count.
type tokenCounts struct {
	mu      sync.Mutex
	counted time.Time
	tokens  map[string]int // by tokens.Record.Creator
}

// checkTokenQuota returns an error if the user who creates the token has reached UserTokens. With several
// replicas, a user can exceed the quota by the number of tokens that the other replicas create within
// countInterval. A dry run does not increment the count.
func (m *Minter) checkTokenQuota(ctx context.Context, c Creation) error {
	who, most := c.Record.Creator, cmp.Or(m.UserTokens, DefaultUserTokens)
	if who == "" || m.UserTokens < 0 {
		return nil
	}
	m.counts.mu.Lock()
	defer m.counts.mu.Unlock()
	now := time.Now()
	if age := now.Sub(m.counts.counted); age > countInterval || m.counts.tokens[who] >= most && age > countIntervalAtLimit {
		if err := m.recount(ctx, now); err != nil {
			return StoreError(err)
		}
	}
	if m.counts.tokens[who] >= most {
		return errorf(TooManyTokens, "this user has created %d tokens that have not expired, and at most %d are allowed; delete those that no machine still joins with ('kubejoin token delete ID'), or wait until some expire", m.counts.tokens[who], most)
	}
	if !c.DryRun {
		m.counts.tokens[who]++
	}
	return nil
}

// recount counts the unexpired tokens of each user. The caller holds the lock. list releases it while it reads
// the store, which may be slow. If another request has counted meanwhile, recount keeps that count, because it
// includes tokens created since.
func (m *Minter) recount(ctx context.Context, now time.Time) error {
	before := m.counts.counted
	list := func() ([]tokens.Record, error) {
		m.counts.mu.Unlock()
		defer m.counts.mu.Lock() // even if the store panics
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		return m.Tokens.List(ctx)
	}
	all, err := list()
	if err != nil || !m.counts.counted.Equal(before) {
		return err
	}
	m.counts.counted, m.counts.tokens = now, map[string]int{}
	for _, r := range all {
		if r.Creator != "" && !r.Expired(now) {
			m.counts.tokens[r.Creator]++
		}
	}
	return nil
}

// A Bounded is a ClusterInfo that can hold only a limited number of signatures, for example the ConfigMap.
type Bounded interface {
	// Capacity returns how many more signatures fit, and how many there are. It does not block.
	Capacity() (free, signatures int)
	// HasSignature reports whether there is a signature by the token of that ID.
	HasSignature(id string) bool
}

// pendingSignatures has the tokens created by this replica whose signatures are still missing, with the time of
// creation.
type pendingSignatures struct {
	mu      sync.Mutex
	created map[string]time.Time
}

// If more than maxUnsigned signatures are pending, reserve drops entries that are no longer pending.
const maxUnsigned = 512

// reserve reserves space in cluster-info for the signature of a new token. It returns an error if cluster-info is
// full, because the signature would not fit, or if the user has too many tokens. A dry run reserves nothing.
func (m *Minter) reserve(ctx context.Context, c Creation) error {
	if err := m.checkTokenQuota(ctx, c); err != nil {
		return err
	}
	info, isBounded := m.ClusterInfo.(Bounded)
	if !isBounded || !c.Record.Signing {
		return nil
	}
	m.unsigned.mu.Lock()
	defer m.unsigned.mu.Unlock()
	if m.unsigned.created == nil {
		m.unsigned.created = map[string]time.Time{}
	}
	free, signatures := info.Capacity()
	if len(m.unsigned.created) >= min(free, maxUnsigned) {
		for id, at := range m.unsigned.created {
			if info.HasSignature(id) || time.Since(at) > m.signTimeout() {
				delete(m.unsigned.created, id)
			}
		}
	}
	if len(m.unsigned.created) >= free {
		return fullError(signatures)
	}
	if !c.DryRun {
		m.unsigned.created[c.Record.Token.ID()] = time.Now()
	}
	return nil
}

// unreserve releases the space in cluster-info if the token was not created.
func (m *Minter) unreserve(record tokens.Record) {
	m.unsigned.mu.Lock()
	defer m.unsigned.mu.Unlock()
	delete(m.unsigned.created, record.Token.ID())
}

// full returns an error if cluster-info is full, which explains a missing signature. Otherwise it returns nil.
func (m *Minter) full() *Error {
	if info, isBounded := m.ClusterInfo.(Bounded); isBounded {
		if free, signatures := info.Capacity(); free == 0 {
			return fullError(signatures)
		}
	}
	return nil
}
