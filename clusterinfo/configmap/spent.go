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

// A Spent finds the tokens that can admit no other node. Their signatures only help to guess their secrets.
type Spent struct {
	// Claims has the claims of the tokens.
	Claims tokens.Claims
	// Registered returns when the Node with this name and UID was created. It may lag. The time is zero if there is no
	// such Node.
	Registered func(ctx context.Context, name, uid string) (time.Time, error)
}

// find reports whether a token needs no signature.
func (s *Spent) find(ctx context.Context, r *tokens.Record, read tokens.Read, now time.Time) (bool, error) {
	// The Node that a token replaces was registered before.
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
		at, err := s.Registered(ctx, c.Node, c.NodeUID)
		if err != nil {
			return false, fmt.Errorf("node %s: %w", tokens.Redact(c.Node), err)
		}
		if !at.IsZero() && at.Before(c.Created) {
			at = c.Created // with --existing-nodes=allow, the machine joins again beside its Node
		}
		since[c.Node] = at
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
		before := s.retired[id]
		same := before != nil && before.uid == r.UID && before.version == r.Version
		spent, err := s.Spent.find(ctx, r, tokens.Cached, now)
		if err == nil && spent && !same { // the cache may lack a claim that the record counts
			spent, err = s.Spent.find(ctx, r, tokens.Live, now)
		}
		switch {
		case err != nil:
			return fmt.Errorf("cluster-info keeps the signatures of spent tokens: %w", err)
		case spent:
			found[id] = &retirement{uid: r.UID, version: r.Version}
			if before != nil && before.uid == r.UID {
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
	case s.retired == nil && s.Spent != nil && r.Spent(): // before the first look
		r.Token, _ = tokens.OnlyID(id)
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
