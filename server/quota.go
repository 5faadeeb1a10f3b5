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

// How long a count is valid: heldInterval until it counts the tokens of other replicas, and heldRefused, for a user who is
// refused, until it notices deleted and expired tokens.
const (
	heldInterval = 10 * time.Second
	heldRefused  = time.Second
)

// held counts the live tokens of each user. The store is the truth: between two counts it adds what
// this replica makes.
type held struct {
	mu      sync.Mutex
	counted time.Time
	tokens  map[string]int // by tokens.Record.Creator
}

// mayHold returns a problem if the user who creates the token has as many live ones as one user may
// have. Another replica may add some in the meantime, up to those of heldInterval.
func (h *handler) mayHold(ctx context.Context, record tokens.Record, dryRun bool) error {
	who, most := record.Creator, cmp.Or(h.UserTokens, DefaultUserTokens)
	if who == "" {
		return nil
	}
	h.held.mu.Lock()
	defer h.held.mu.Unlock()
	now := time.Now()
	if age := now.Sub(h.held.counted); age > heldInterval || h.held.tokens[who] >= most && age > heldRefused {
		if err := h.countHeld(ctx, now); err != nil {
			return h.unavailable(err)
		}
	}
	if h.held.tokens[who] >= most {
		return newProblem(http.StatusInsufficientStorage, api.ProblemTooManyTokens,
			"this user has made %d tokens that are alive, and %d are allowed; delete some, for example with 'kubejoin token delete', or let some expire", h.held.tokens[who], most)
	}
	if !dryRun {
		h.held.tokens[who]++
	}
	return nil
}

// countHeld counts the live tokens of each user. It gives up the lock while it reads the store, which may
// not answer. If another request has counted meanwhile, that count stays: it has what was made since.
func (h *handler) countHeld(ctx context.Context, now time.Time) error {
	before := h.held.counted
	list := func() ([]tokens.Record, error) {
		h.held.mu.Unlock()
		defer h.held.mu.Lock() // also if the store panics
		ctx, cancel := context.WithTimeout(ctx, viewTimeout)
		defer cancel()
		return h.Tokens.List(ctx)
	}
	all, err := list()
	if err != nil || !h.held.counted.Equal(before) {
		return err
	}
	h.held.counted, h.held.tokens = now, map[string]int{}
	for _, r := range all {
		if r.Creator != "" && !r.Expired(now) {
			h.held.tokens[r.Creator]++
		}
	}
	return nil
}

// bounded is a ClusterInfo that holds a limited number of signatures, as the ConfigMap does.
type bounded interface {
	// Room returns how many more signatures fit, and how many there are. It does not wait.
	Capacity() (free, signatures int)
	// HasSignature reports whether there is a signature by the token of that ID.
	HasSignature(id string) bool
}

// unsigned has the tokens made here whose signatures are still to come.
type unsigned struct {
	mu   sync.Mutex
	made map[string]time.Time
}

// reserve reserves the signature of a token that is about to be made. It returns a problem if cluster-info is full, because the
// client would wait for nothing, or if the user has too many tokens. A dry run reserves nothing.
func (h *handler) reserve(ctx context.Context, record tokens.Record, dryRun bool) error {
	if err := h.mayHold(ctx, record, dryRun); err != nil {
		return err
	}
	info, isBounded := h.ClusterInfo.(bounded)
	if !isBounded || !record.Signing {
		return nil
	}
	h.unsigned.mu.Lock()
	defer h.unsigned.mu.Unlock()
	if h.unsigned.made == nil {
		h.unsigned.made = map[string]time.Time{}
	}
	free, signatures := info.Capacity()
	if len(h.unsigned.made) >= min(free, httplimit.MaxJoinCommands) {
		for id, at := range h.unsigned.made {
			if info.HasSignature(id) || time.Since(at) > h.SignTimeout {
				delete(h.unsigned.made, id)
			}
		}
	}
	if len(h.unsigned.made) >= free {
		return full(signatures)
	}
	if !dryRun {
		h.unsigned.made[record.Token.ID()] = time.Now()
	}
	return nil
}

// unreserve undoes reserve when no token was made.
func (h *handler) unreserve(record tokens.Record) {
	h.unsigned.mu.Lock()
	defer h.unsigned.mu.Unlock()
	delete(h.unsigned.made, record.Token.ID())
}

// ranOut returns a problem if cluster-info is full, which is why a token has no signature, or nil.
func (h *handler) ranOut() *problem {
	if info, isBounded := h.ClusterInfo.(bounded); isBounded {
		if free, signatures := info.Capacity(); free == 0 {
			return full(signatures)
		}
	}
	return nil
}

func full(signatures int) *problem {
	return newProblem(http.StatusInsufficientStorage, api.ProblemFull,
		"cluster-info is full: it holds the signatures of %d tokens, and a ConfigMap takes no more, so that no machine could join with another one. "+
			"Delete tokens or let some expire, or start kubejoin with --advertise HOST:PORT: machines then join through kubejoin, whose cluster-info has no limit", signatures)
}
