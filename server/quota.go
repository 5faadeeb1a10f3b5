package server

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// DefaultUserTokens is the default of Server.UserTokens. A token takes up to 30 KB of memory.
const DefaultUserTokens = 10_000

// How long a count is valid. After countInterval a new count includes tokens created by other replicas. For a user at
// the limit it is valid only for countIntervalAtLimit, so that deleted and expired tokens soon free quota.
const (
	countInterval        = 10 * time.Second
	countIntervalAtLimit = time.Second
)

// tokenCounts counts the unexpired tokens of each user. It counts the tokens in the store, and adds those that
// this replica creates until the next count.
type tokenCounts struct {
	mu      sync.Mutex
	counted time.Time
	tokens  map[string]int // by tokens.Record.Creator
}

// checkTokenQuota returns a problem if the user who creates the token has reached Server.UserTokens. With several
// replicas a user can exceed it by what the others create within countInterval. A dry run counts nothing.
func (h *handler) checkTokenQuota(ctx context.Context, record tokens.Record, dryRun bool) error {
	who, most := record.Creator, cmp.Or(h.UserTokens, DefaultUserTokens)
	if who == "" {
		return nil
	}
	h.counts.mu.Lock()
	defer h.counts.mu.Unlock()
	now := time.Now()
	if age := now.Sub(h.counts.counted); age > countInterval || h.counts.tokens[who] >= most && age > countIntervalAtLimit {
		if err := h.recount(ctx, now); err != nil {
			return h.unavailable(err)
		}
	}
	if h.counts.tokens[who] >= most {
		return newProblem(http.StatusInsufficientStorage, api.ProblemTooManyTokens,
			"this user has created %d tokens that have not expired, and at most %d are allowed; delete some with 'kubejoin token delete ID', or wait until some expire", h.counts.tokens[who], most)
	}
	if !dryRun {
		h.counts.tokens[who]++
	}
	return nil
}

// recount counts the unexpired tokens of each user. The caller holds the lock. list releases it while it
// reads the store, which may be slow. If another request has counted meanwhile, that count stays, because it
// includes tokens created since.
func (h *handler) recount(ctx context.Context, now time.Time) error {
	before := h.counts.counted
	list := func() ([]tokens.Record, error) {
		h.counts.mu.Unlock()
		defer h.counts.mu.Lock() // even if the store panics
		ctx, cancel := context.WithTimeout(ctx, viewTimeout)
		defer cancel()
		return h.Tokens.List(ctx)
	}
	all, err := list()
	if err != nil || !h.counts.counted.Equal(before) {
		return err
	}
	h.counts.counted, h.counts.tokens = now, map[string]int{}
	for _, r := range all {
		if r.Creator != "" && !r.Expired(now) {
			h.counts.tokens[r.Creator]++
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

// reserve reserves space in cluster-info for the signature of a new token. It returns a problem if cluster-info is
// full, because no signature would come, or if the user has too many tokens. A dry run reserves nothing.
func (h *handler) reserve(ctx context.Context, record tokens.Record, dryRun bool) error {
	if err := h.checkTokenQuota(ctx, record, dryRun); err != nil {
		return err
	}
	info, isBounded := h.ClusterInfo.(Bounded)
	if !isBounded || !record.Signing {
		return nil
	}
	h.unsigned.mu.Lock()
	defer h.unsigned.mu.Unlock()
	if h.unsigned.created == nil {
		h.unsigned.created = map[string]time.Time{}
	}
	free, signatures := info.Capacity()
	if len(h.unsigned.created) >= min(free, httplimit.MaxJoinCommands) {
		for id, at := range h.unsigned.created {
			if info.HasSignature(id) || time.Since(at) > h.SignTimeout {
				delete(h.unsigned.created, id)
			}
		}
	}
	if len(h.unsigned.created) >= free {
		return fullProblem(signatures)
	}
	if !dryRun {
		h.unsigned.created[record.Token.ID()] = time.Now()
	}
	return nil
}

// unreserve releases the space in cluster-info if the token was not created.
func (h *handler) unreserve(record tokens.Record) {
	h.unsigned.mu.Lock()
	defer h.unsigned.mu.Unlock()
	delete(h.unsigned.created, record.Token.ID())
}

// clusterInfoFull returns a problem if cluster-info is full, which explains a missing signature. Otherwise it returns
// nil.
func (h *handler) clusterInfoFull() *problem {
	if info, isBounded := h.ClusterInfo.(Bounded); isBounded {
		if free, signatures := info.Capacity(); free == 0 {
			return fullProblem(signatures)
		}
	}
	return nil
}

func fullProblem(signatures int) *problem {
	return newProblem(http.StatusInsufficientStorage, api.ProblemFull,
		"cluster-info is full: the ConfigMap holds the signatures of %d tokens and has no space for another one. "+
			"Delete tokens, wait until some expire, or start kubejoin with --advertise HOST:PORT: machines then join through kubejoin, whose cluster-info has no such limit", signatures)
}
