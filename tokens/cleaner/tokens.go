package cleaner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxDeletes limits concurrent deletions. With 8, a Kubernetes API server on two cores deletes about
	// 800 tokens a second and still serves other clients. So 12,000 tokens that expire together take 15 s.
	maxDeletes = 8
	// tokensGap merges the hints from a burst of new tokens, and from the cleaner's own deletions. Every step lists all
	// tokens, and no deletion is urgent.
	tokensGap = 500 * time.Millisecond
	// maxErrors limits how many errors of one step are logged in full.
	maxErrors = 10
)

// Tokens deletes tokens when they expire. It replaces the token-cleaner of kube-controller-manager.
// Unlike that controller, it never deletes a token that was renewed in the meantime.
type Tokens struct {
	// Store keeps the tokens.
	Store tokens.Store
	// Sweep is the longest time between two lists of all tokens. So it is also the longest time until
	// Tokens notices that the clock was set forward. Zero means one minute.
	Sweep time.Duration
	// Logger logs deletions and failures; nil logs nothing.
	Logger *slog.Logger
	// Registerer gets kubejoin_tokens_expired_deleted_total and the metrics of the loop with
	// loop="token-cleaner"; nil registers no metrics.
	Registerer prometheus.Registerer
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Run deletes expired tokens until ctx ends, then returns nil. Several may run on one Store.
func (c Tokens) Run(ctx context.Context) error {
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
		Gap:        tokensGap,
		Sweep:      c.Sweep,
		Logger:     c.Logger,
		Registerer: c.Registerer,
	}.Run(ctx)
}

// step deletes all expired tokens and returns when the next token expires.
func (c Tokens) step(ctx context.Context, deleted prometheus.Counter) (time.Time, error) {
	records, err := c.Store.List(ctx)
	if err != nil {
		return time.Time{}, fmt.Errorf("list tokens: %w", err)
	}
	now := c.Now()
	expired, next := expiry(records, now)
	if !next.IsZero() {
		// The timer follows time.Now, not c.Now.
		next = time.Now().Add(next.Sub(now))
	}

	var (
		todo     = make(chan tokens.Record)
		workers  sync.WaitGroup
		mu       sync.Mutex
		errs     []error
		failures int
	)
	for range min(maxDeletes, len(expired)) {
		workers.Go(func() {
			for r := range todo {
				// The token may have been renewed or deleted since the list. Delete does not delete a renewed token.
				switch err := c.Store.Delete(ctx, r); {
				case err == nil:
					deleted.Inc()
					c.Logger.Info("expired token deleted", "token", r.Token.ID(), "expired", r.Expires)
				case errors.Is(err, tokens.ErrNotFound):
				case errors.Is(err, tokens.ErrConflict):
					// The list was stale. A hint about the change will start another step.
					c.Logger.Debug("expired token has changed, not deleted now", "token", r.Token.ID())
				default:
					mu.Lock()
					if failures++; failures <= maxErrors {
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

// expiry returns the records that have expired at now, and when the next one expires. next is zero if
// no other record expires.
func expiry(records []tokens.Record, now time.Time) (expired []tokens.Record, next time.Time) {
	for _, r := range records {
		switch {
		case r.Expires.IsZero(), errors.Is(r.Problem, tokens.ErrDeleting):
		case r.Expired(now):
			expired = append(expired, r)
		case next.IsZero() || r.Expires.Before(next):
			next = r.Expires
		}
	}
	return expired, next
}
