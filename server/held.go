package server

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// DefaultUserTokens is how many live tokens one user may have unless something else is said. A token
// takes up to 30 KB of memory.
const DefaultUserTokens = 10_000

// How long held relies on its count: for as long as other replicas may go unnoticed, and where a user
// is refused, until tokens that were deleted or expired are noticed.
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
