package clusterinfo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

const (
	// retireAfter is how long the signature of a spent token stays after its last Node has registered. A machine that
	// joins as a control plane may fail later, and then repeats the same command.
	retireAfter = 10 * time.Minute
	// retireEvery is the time between two searches for spent tokens, so that many removals share one write.
	retireEvery = time.Minute
	// retireTimeout limits the wait for claims and Nodes, because new tokens wait meanwhile.
	retireTimeout = 2 * time.Second
)

// A Spent finds the tokens that can admit no further node. Their signatures only help to guess their secrets.
type Spent struct {
	// Claims has the claims of the tokens.
	Claims tokens.Claims
	// Registered returns when the Node with this name and UID was created. It may use a stale cache. The time is zero
	// if there is no such Node. A nil Registered means that the cluster has no Nodes. In that case, the creation time
	// of a claim is used as soon as the node has used its certificate: from then on, the token admits no machine under
	// that name.
	Registered func(ctx context.Context, name, uid string) (time.Time, error)
}

// Retired are the tokens that need no signature, as the last [Spent.Look] found them. It is immutable.
type Retired struct {
	at    time.Time // time of the last search; zero before the first search
	found map[string]retirement
}

// A retirement identifies the record of a retired token.
type retirement struct{ uid, version string }

// Has reports whether a token needs no signature. A token whose record has changed continues to sign until the
// next search.
func (t Retired) Has(r *tokens.Record) bool {
	found, ok := t.found[r.Token.ID()]
	return ok && found == retirement{r.UID, r.Version}
}

// Looked reports whether there was a search.
func (t Retired) Looked() bool { return !t.at.IsZero() }

// Due reports whether a search is due. Several changes share one search.
func (t Retired) Due(now time.Time) bool { return !t.Looked() || now.Sub(t.at).Abs() >= retireEvery }

// Look returns the tokens in all that need no signature. before is the result of the last search. With an error, Look
// keeps that result for the tokens that it did not reach.
func (s *Spent) Look(ctx context.Context, before Retired, all []*tokens.Record, now time.Time) (Retired, error) {
	ctx, cancel := context.WithTimeout(ctx, retireTimeout)
	defer cancel()
	next := Retired{now, map[string]retirement{}}
	var failed error
	for _, r := range all {
		was := before.Has(r)
		retired := was
		if failed == nil {
			retired, failed = s.needsNone(ctx, r, tokens.Cached, now)
		}
		if failed == nil && retired && !was { // re-read: the cache may lack a claim that the record counts
			retired, failed = s.needsNone(ctx, r, tokens.Recent, now)
		}
		if retired && failed == nil || was && failed != nil {
			next.found[r.Token.ID()] = retirement{r.UID, r.Version}
		}
	}
	if failed != nil {
		return next, fmt.Errorf("cluster-info keeps the signatures of spent tokens: %w", failed)
	}
	return next, nil
}

// needsNone reports whether a token needs no signature.
func (s *Spent) needsNone(ctx context.Context, r *tokens.Record, read tokens.Read, now time.Time) (bool, error) {
	// Skip a token that replaces a Node: that Node was registered before the machine joined.
	if !r.Signs(now) || !r.Spent() || r.Limits.Problem != nil || r.Limits.Replaces != (tokens.NodeRef{}) {
		return false, nil
	}
	held, err := s.Claims.HeldBy(ctx, r.Token.ID(), read)
	if err != nil {
		return false, fmt.Errorf("claims of token %s: %w", r.Token.ID(), err)
	}
	since := make(map[string]time.Time, len(held))
	for _, c := range held {
		since[c.Node] = time.Time{}
		if c.NodeUID == "" {
			continue
		}
		at := c.Created
		if s.Registered != nil {
			if at, err = s.Registered(ctx, c.Node, c.NodeUID); err != nil {
				return false, fmt.Errorf("node %s: %w", tokens.Redact(c.Node), err)
			}
		}
		if !at.IsZero() && at.Before(c.Created) {
			at = c.Created // with --existing-nodes=allow, a machine joins again although its Node exists
		}
		since[c.Node] = at
	}
	ended := func(name string) bool { return s.Claims.Ended(*r, tokens.Claim{Node: name}) }
	return allJoined(r.Nodes, since, ended, now), nil
}

// allJoined reports whether a spent token needs no signature. since has the names of its claims, and when their Nodes
// registered. A counted name without a claim may still get its claim, or lose its slot, unless ended reports that its
// claim has ended.
func allJoined(counted []string, since map[string]time.Time, ended func(name string) bool, now time.Time) bool {
	for _, at := range since {
		if at.IsZero() || now.Before(at.Add(retireAfter)) {
			return false
		}
	}
	return !slices.ContainsFunc(counted, func(name string) bool {
		_, held := since[name]
		return !held && !ended(name)
	})
}
