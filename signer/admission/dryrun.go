package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// DryRun returns a Nodes that decides as n does and writes nothing: it makes no claim and counts no name. So it also
// admits a second request on a token for one node, unless the claim of the first request exists.
func (n *Nodes) DryRun() *Nodes {
	if n == nil {
		return nil
	}
	dry := &Nodes{
		Node: n.Node, Ready: n.Ready, AllowExisting: n.AllowExisting, Reserved: n.Reserved, Retention: n.Retention, RejoinWindow: n.RejoinWindow, Now: n.Now, dry: true,
	}
	counter, isCounter := n.Claims.(tokens.Counter)
	if n.Tokens != nil {
		dry.Tokens = dryTokens{n.Tokens}
	}
	if n.Claims != nil {
		claims := dryClaims{n.Claims, &sync.Map{}}
		if dry.Claims = claims; isCounter {
			dry.Claims = dryCounter{claims, counter.MaxCommit()}
		}
	}
	return dry
}

// dryTokens reads tokens. Its Update returns the result without writing it.
type dryTokens struct{ tokens.Store }

func (s dryTokens) Update(ctx context.Context, id string, change func(*tokens.Record) error) (tokens.Record, error) {
	r, err := s.Get(ctx, id)
	if err != nil {
		return r, err
	}
	r.Nodes = slices.Clone(r.Nodes)
	return r, change(&r)
}

func (dryTokens) Create(context.Context, tokens.Record) (tokens.Record, error) {
	return tokens.Record{}, errDry
}
func (dryTokens) Delete(context.Context, tokens.Record) error { return errDry }

var errDry = errors.New("a dry run writes nothing")

// dryClaims reads claims live, because the proof of a cache of claims is a write. Its writes return the result without
// writing it.
type dryClaims struct {
	tokens.Claims
	gone *sync.Map // time of each simulated deletion, by claim UID
}

// unless returns the result of a read, or [tokens.ErrNotFound] if this dry run has just deleted the claim.
func (s dryClaims) unless(c tokens.Claim, err error) (tokens.Claim, error) {
	if at, deleted := s.gone.Load(c.UID); err == nil && deleted {
		if time.Since(at.(time.Time)) < MaxAge {
			return tokens.Claim{}, fmt.Errorf("claim of node %s: %w", c.Node, tokens.ErrNotFound)
		}
		s.gone.Delete(c.UID)
	}
	return c, err
}

func (s dryClaims) Get(ctx context.Context, node string) (tokens.Claim, error) {
	return s.unless(s.Claims.Get(ctx, node))
}

func (s dryClaims) Find(ctx context.Context, node string) (tokens.Claim, error) {
	return s.unless(s.Claims.Find(ctx, node))
}

func (s dryClaims) Recent(ctx context.Context, node string) (tokens.Claim, error) {
	return s.Get(ctx, node)
}

func (s dryClaims) HeldBy(ctx context.Context, id string, read tokens.Read) ([]tokens.Claim, error) {
	if read == tokens.Recent {
		read = tokens.Live
	}
	return s.Claims.HeldBy(ctx, id, read)
}

func (s dryClaims) Create(ctx context.Context, c tokens.Claim) (tokens.Claim, error) {
	switch _, err := s.Get(ctx, c.Node); {
	case err == nil:
		return c, fmt.Errorf("claim of node %s: %w", c.Node, tokens.ErrExists)
	case !errors.Is(err, tokens.ErrNotFound):
		return c, err
	}
	return c, c.Check()
}

func (s dryClaims) Update(ctx context.Context, node string, change func(*tokens.Claim) error) (tokens.Claim, error) {
	c, err := s.Get(ctx, node)
	if err != nil {
		return c, err
	}
	changed := c.Clone()
	if err := change(&changed); err != nil {
		return changed, err
	}
	if changed.Released() && !c.Released() {
		return changed, s.Delete(ctx, c)
	}
	return changed, nil
}

func (s dryClaims) Delete(_ context.Context, c tokens.Claim) error {
	s.gone.Store(c.UID, time.Now())
	return nil
}

// dryCounter is dryClaims in one database with the tokens.
type dryCounter struct {
	dryClaims
	most int
}

func (s dryCounter) MaxCommit() int { return s.most }

func (dryCounter) Commit(_ context.Context, _, _ tokens.Record, changes []tokens.ClaimChange) (claims []tokens.Claim, err error) {
	for _, c := range changes {
		claims = append(claims, c.After)
	}
	return claims, nil
}
