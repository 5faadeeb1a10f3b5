package signerd

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/signer/remote"
)

// maxSeen is the maximum number of orders in a generation of replays, about 20 MB: the orders that the rates of a policy
// allow, and the orders that were in flight when the generation began.
const maxSeen = config.MaxOrders + maxConnections

// replays refuses an order that was seen before. An order is valid for [remote.MaxSkew] before and after its time of
// creation, and only if it was created after this process started. So replays needs no storage on disk.
type replays struct {
	started time.Time

	mu            sync.Mutex
	last, earlier map[[sha256.Size]byte]struct{}
	since         time.Time // when last began
	latest        time.Time // creation time of the latest order so far, including dropped generations
}

// take stores the hash of an order, and returns the reason to refuse it, or nil. A refused client creates a new order and
// retries.
func (s *replays) take(order []byte, made, now time.Time) *web.Problem {
	if made.Before(now.Add(-remote.MaxSkew)) || made.After(now.Add(remote.MaxSkew)) {
		return conflict("the order was made at %s, and the time here is %s; want at most %s between them: set the clocks of both machines", made.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), remote.MaxSkew)
	}
	if made.Before(s.started) {
		return conflict("the order was made at %s, before this process started at %s; retry", made.UTC().Format(time.RFC3339), s.started.UTC().Format(time.RFC3339))
	}
	digest := sha256.Sum256(order)
	s.mu.Lock()
	defer s.mu.Unlock()
	// Twice MaxSkew, because it applies in both directions. An older order means that the clock was set back, and
	// earlier orders may be forgotten.
	if made.Before(s.latest.Add(-2 * remote.MaxSkew)) {
		return conflict("the order was made at %s, and another one at %s: the clock here was set back; correct it, or restart this process", made.UTC().Format(time.RFC3339), s.latest.UTC().Format(time.RFC3339))
	}
	if s.last == nil || now.Sub(s.since) > 2*remote.MaxSkew { // longer than the validity of an order
		s.last, s.earlier, s.since = map[[sha256.Size]byte]struct{}{}, s.last, now
	}
	_, before := s.last[digest]
	_, earlier := s.earlier[digest]
	if before || earlier {
		return conflict("this order was sent before (SHA-256 %x); make a new one", digest[:8])
	}
	if len(s.last) >= maxSeen {
		return unavailable(nil, "too many orders within minutes; retry later")
	}
	s.last[digest] = struct{}{}
	if made.After(s.latest) {
		s.latest = made
	}
	return nil
}

func conflict(format string, args ...any) *web.Problem {
	return web.NewProblem("order-not-new", format, args...)
}
