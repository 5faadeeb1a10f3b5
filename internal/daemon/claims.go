package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// namespaceLook is how often kubejoin checks that it can create claims. While it cannot, it checks every namespaceRetry.
	namespaceLook, namespaceRetry = time.Minute, 5 * time.Second
	namespaceTimeout              = 10 * time.Second
)

// claimSpace tracks whether claims can be created. Without claims, no machine can join with a limited token.
type claimSpace struct {
	log    *slog.Logger
	events events
	ready  func(context.Context) error // calls the API server

	mu      sync.Mutex
	problem error // the error that readiness and warnings show
}

// watchClaims reports why kubejoin cannot create claims: in readiness, in the log and as a warning about limited
// tokens. It watches only claims in Leases, which need a namespace.
func (s *service) watchClaims(claims tokens.Claims, events events) {
	leases, ok := claims.(*secretstore.Claims)
	if !ok {
		return
	}
	space := &claimSpace{log: s.log, events: events, ready: leases.Ready}
	s.goBackground(loop.Loop{Name: "claims", Sweep: namespaceLook, Step: space.look, Logger: s.log, Registerer: s.registry}.Run)
	s.check("claims", func(context.Context) error { return space.get() })
	s.warnOf(func(_ context.Context, made tokens.Record) string {
		if err := space.get(); err != nil && !made.Limits.IsZero() {
			return "no machine can join with this token yet: " + err.Error()
		}
		return ""
	})
}

// look checks once and logs changes. It ignores temporary errors, for example of an unavailable API server, because
// other checks report them.
func (c *claimSpace) look(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	err := c.ready(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.problem
	switch {
	case err == nil:
		c.problem = nil
	case errors.Is(err, secretstore.ErrNoNamespace):
		c.problem = err
	case apierrors.IsForbidden(err):
		c.problem = errors.New("kubejoin may not create Leases in " + secretstore.ClaimNamespace + "; see the log")
	}
	switch {
	case c.problem == nil && before != nil:
		c.log.Info("claims of node names can be created again")
	case c.problem != nil && before == nil:
		c.log.Error("cannot create claims of node names", "error", err)
		// Create the Event on the Namespace, not on the Lease: the namespace of the Lease may not exist.
		c.events(&corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: secretstore.ClaimNamespace}, codes.ClaimsUnavailable,
			"kubejoin cannot create claims of node names, so no machine joins with a limited token: "+c.problem.Error())
	}
	if c.problem != nil {
		return time.Now().Add(namespaceRetry), nil
	}
	return time.Time{}, nil
}

func (c *claimSpace) get() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}
