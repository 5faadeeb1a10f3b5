package configmap

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
	// retireEvery is the time between two looks for spent tokens. So many removals share a write.
	retireEvery = time.Minute
	// retireTimeout limits the wait for claims and Nodes, because new tokens wait meanwhile.
	retireTimeout = 2 * time.Second
)

// A Spent finds the tokens that admit nobody any more. Without their signatures, nobody can use cluster-info to guess
// their secrets.
type Spent struct {
	// Claims has the claims of the tokens. They are read from the cache.
	Claims tokens.Claims
	// Registered returns when the Node with this name and UID was created. It may lag. The time is zero if there is no
	// such Node.
	Registered func(ctx context.Context, name, uid string) (time.Time, error)
}

// find reports whether a token needs no signature.
func (s *Spent) find(ctx context.Context, r *tokens.Record, now time.Time) (bool, error) {
	// The Node that a token replaces was registered before.
	if !r.Signs(now) || !r.Spent() || r.Limits.Problem != nil || r.Limits.Replaces != (tokens.NodeRef{}) {
		return false, nil
	}
	held, err := s.Claims.HeldBy(ctx, r.Token.ID(), tokens.Cached)
	if err != nil {
		return false, fmt.Errorf("claims of token %s: %w", r.Token.ID(), err)
	}
	since := make(map[string]time.Time, len(held))
	for _, c := range held {
		since[c.Node] = time.Time{}
		if c.NodeUID == "" {
			continue
		}
		if since[c.Node], err = s.Registered(ctx, c.Node, c.NodeUID); err != nil {
			return false, fmt.Errorf("node %s: %w", tokens.Redact(c.Node), err)
		}
	}
	ended := func(name string) bool { return s.Claims.Ended(*r, tokens.Claim{Node: name}) }
	return needsNone(r.Nodes, since, ended, now), nil
}

// needsNone reports whether a spent token needs no signature. since has the names of its claims, and when their Nodes have
// registered. A counted name without a claim that has not ended may get its claim, or lose its slot.
func needsNone(counted []string, since map[string]time.Time, ended func(name string) bool, now time.Time) bool {
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

// A retirement is a token that needs no signature, as long as its record does not change.
type retirement struct {
	uid, version string
	removed      bool // a step has removed the signature
}

// retire finds the tokens that need no signature, once in retireEvery. With an error, those that were found before stay.
func (s *signing) retire(ctx context.Context, all []*tokens.Record) error {
	now := s.Now()
	if s.Spent == nil || !s.judged.IsZero() && now.Sub(s.judged).Abs() < retireEvery {
		return nil
	}
	s.judged, s.done = now, settled{}
	ctx, cancel := context.WithTimeout(ctx, retireTimeout)
	defer cancel()
	found := map[string]*retirement{}
	for _, r := range all {
		id := r.Token.ID()
		switch spent, err := s.Spent.find(ctx, r, now); {
		case err != nil:
			return fmt.Errorf("cluster-info keeps the signatures of spent tokens: %w", err)
		case spent:
			found[id] = &retirement{uid: r.UID, version: r.Version}
			if before := s.retired[id]; before != nil && before.uid == r.UID {
				found[id].removed = before.removed
			}
		}
	}
	s.retired = found
	return nil
}

// signer returns a record as it signs. The signature of a retired token is removed once. If another signer adds it again,
// such as that of kube-controller-manager, it stays: the two would otherwise add and remove it in turn.
func (s *signing) signer(r tokens.Record) tokens.Record {
	id := r.Token.ID()
	switch now := s.retired[id]; {
	case now == nil:
	case now.uid != r.UID || now.version != r.Version:
		delete(s.retired, id) // until the next look
	case now.removed:
		r.Token, _ = tokens.OnlyID(id) // a token whose secret only others know
	default:
		r.Signing = false
	}
	return r
}
