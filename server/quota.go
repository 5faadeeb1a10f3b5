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

// DefaultUserTokens is how many live tokens one user may have by default. A token takes up to 30 KB of memory.
const DefaultUserTokens = 10_000

// How long a count is valid: countInterval until it counts the tokens of other replicas, and countIntervalAtLimit, for a user who is
// refused, until it notices deleted and expired tokens.
const (
	countInterval        = 10 * time.Second
	countIntervalAtLimit = time.Second
)

// counts counts the live tokens of each user. The store is the truth: between two counts it adds what
// this replica makes.
type tokenCounts struct {
	mu      sync.Mutex
	counted time.Time
	tokens  map[string]int // by tokens.Record.Creator
}

// checkTokenQuota returns a problem if the user who creates the token has as many live ones as one user may
// have. Another replica may add some in the meantime, up to those of countInterval.
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
			"this user has made %d tokens that are alive, and %d are allowed; delete some, for example with 'kubejoin token delete', or let some expire", h.counts.tokens[who], most)
	}
	if !dryRun {
		h.counts.tokens[who]++
	}
	return nil
}

// recount counts the live tokens of each user. It gives up the lock while it reads the store, which may
// not answer. If another request has counted meanwhile, that count stays: it has what was made since.
func (h *handler) recount(ctx context.Context, now time.Time) error {
	before := h.counts.counted
	list := func() ([]tokens.Record, error) {
		h.counts.mu.Unlock()
		defer h.counts.mu.Lock() // also if the store panics
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

// Bounded is a ClusterInfo that holds a limited number of signatures, as the ConfigMap does.
type Bounded interface {
	// Room returns how many more signatures fit, and how many there are. It does not wait.
	Capacity() (free, signatures int)
	// HasSignature reports whether there is a signature by the token of that ID.
	HasSignature(id string) bool
}

// pendingSignatures has the tokens made here whose signatures are still to come.
type pendingSignatures struct {
	mu      sync.Mutex
	created map[string]time.Time
}

// reserve reserves the signature of a token that is about to be made. It returns a problem if cluster-info is full, because the
// client would wait for nothing, or if the user has too many tokens. A dry run reserves nothing.
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

// unreserve undoes reserve when no token was made.
func (h *handler) unreserve(record tokens.Record) {
	h.unsigned.mu.Lock()
	defer h.unsigned.mu.Unlock()
	delete(h.unsigned.created, record.Token.ID())
}

// clusterInfoFull returns a problem if cluster-info is full, which is why a token has no signature, or nil.
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
		"cluster-info is full: it holds the signatures of %d tokens, and a ConfigMap takes no more, so that no machine could join with another one. "+
			"Delete tokens or let some expire, or start kubejoin with --advertise HOST:PORT: machines then join through kubejoin, whose cluster-info has no limit", signatures)
}
