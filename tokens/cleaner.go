package tokens

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// About 800 deletions a second of a Kubernetes API server on two cores: 12,000 tokens that
	// expire together take 15 s, and leave it room for others.
	cleanerDeletes = 8
	// The hints about a burst of new tokens, and about what the cleaner itself has deleted,
	// gather for so long: each look is at all tokens, and nobody waits for a deletion.
	cleanerGap = 500 * time.Millisecond
	// Of so many failures at once the texts are kept.
	cleanerErrors = 10
)

// A Cleaner deletes tokens when they expire. It takes the place of kube-controller-manager's
// token-cleaner, and unlike that one never deletes a token that was renewed meanwhile.
type Cleaner struct {
	// Store is whose tokens are deleted.
	Store Store
	// Sweep is the longest time between two looks at all tokens, within which a clock that was
	// set forward is noticed. Zero is one minute.
	Sweep time.Duration
	// Logger is told of what is deleted and of failures; nil is nobody.
	Logger *slog.Logger
	// Registerer has kubejoin_tokens_expired_deleted_total; nil counts nothing.
	Registerer prometheus.Registerer
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Run deletes until ctx ends, and returns nil then. Several at once on one Store do no harm.
func (c Cleaner) Run(ctx context.Context) error {
	if c.Store == nil {
		return errors.New("token cleaner: no Store given")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	deleted := metrics.Counter(c.Registerer, "kubejoin_tokens_expired_deleted_total", "Bootstrap tokens deleted because they had expired.").WithLabelValues()
	return loop.Loop{
		Name:       "token-cleaner",
		Step:       func(ctx context.Context) (time.Time, error) { return c.step(ctx, deleted) },
		Hint:       c.Store.Watch(ctx),
		Gap:        cleanerGap,
		Sweep:      c.Sweep,
		Logger:     c.Logger,
		Registerer: c.Registerer,
	}.Run(ctx)
}

// step deletes all that has expired and says when the next token will have.
func (c Cleaner) step(ctx context.Context, deleted prometheus.Counter) (time.Time, error) {
	records, err := c.Store.List(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("list tokens: %w", err)
	}
	now := c.Now()
	expired, next := expiry(records, now)
	if !next.IsZero() {
		// In the terms of the timer, which knows nothing of Now.
		next = time.Now().Add(next.Sub(now))
	}

	var (
		todo     = make(chan Record)
		workers  sync.WaitGroup
		mu       sync.Mutex
		errs     []error
		failures int
	)
	for range min(cleanerDeletes, len(expired)) {
		workers.Go(func() {
			for r := range todo {
				// What the store has now may be a renewed token, or be gone. The precondition
				// of Delete leaves the one alone, the other is fine.
				switch err := c.Store.Delete(ctx, r); {
				case err == nil:
					deleted.Inc()
					c.Logger.Info("expired token deleted", "token", r.Token.ID(), "expired", r.Expires)
				case errors.Is(err, ErrNotFound):
				case errors.Is(err, ErrConflict):
					// A change that the list did not have yet: its hint is on the way.
					c.Logger.Debug("expired token has changed, left for the next look", "token", r.Token.ID())
				default:
					mu.Lock()
					if failures++; failures <= cleanerErrors {
						errs = append(errs, fmt.Errorf("delete expired token %s: %w", r.Token.ID(), err))
					}
					mu.Unlock()
				}
			}
		})
	}
	for _, r := range expired {
		todo <- r
	}
	close(todo)
	workers.Wait()
	if more := failures - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more tokens", more))
	}
	return next, errors.Join(errs...)
}

// expiry gives those of the records that are to be deleted at the time now, and when the next
// one is: zero if none ever expires.
func expiry(records []Record, now time.Time) (expired []Record, next time.Time) {
	for _, r := range records {
		switch {
		case r.Expires.IsZero(), errors.Is(r.Problem, ErrDeleting):
		case r.Expired(now):
			expired = append(expired, r)
		case next.IsZero() || r.Expires.Before(next):
			next = r.Expires
		}
	}
	return expired, next
}
