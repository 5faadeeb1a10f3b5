package signer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// countTimeout ends a write of a count that nobody answers: others wait for it.
const countTimeout = 30 * time.Second

// A place is one node's on a token that is limited to a number of nodes. Those who ask for one
// on the same token at the same time are written together: of a rack that comes up on one token,
// each machine would otherwise start over once for each other one.
type place struct {
	seen    tokens.Record
	request approval.Request
	node    string
	err     error
	done    bool // guarded by counter.writing
}

// A counter gives out the places of one token.
type counter struct {
	users   int // guarded by NodeAdmission.mu
	mu      sync.Mutex
	waiting []*place   // guarded by mu
	writing sync.Mutex // held while the token is written
}

// take counts the name on a token that is limited to a number of nodes, by compare-and-swap: of
// all who ask at once, the token's limit is how many get past here. The last one also brings the
// token's expiration forward.
func (n *NodeAdmission) take(ctx context.Context, p *place) error {
	if p.seen.Limits.Most() == 0 {
		return nil
	}
	id := p.seen.Token.ID()
	n.mu.Lock()
	c := n.counters[id]
	if c == nil {
		c = &counter{}
		n.counters[id] = c
	}
	c.users++
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if c.users--; c.users == 0 {
			delete(n.counters, id)
		}
	}()
	c.mu.Lock()
	c.waiting = append(c.waiting, p)
	c.mu.Unlock()

	c.writing.Lock()
	defer c.writing.Unlock()
	if p.done { // somebody before us took it along
		return p.err
	}
	c.mu.Lock()
	all := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	// The others' requests do not end with this one's.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), countTimeout)
	defer cancel()
	err := n.write(ctx, id, all)
	for _, p := range all {
		if p.done = true; err != nil {
			p.err = err
		}
	}
	return p.err
}

// errNothing ends a change of a record that has nothing to change.
var errNothing = errors.New("nothing to change")

// write counts all that have a place, and says of each other one why it has none.
func (n *NodeAdmission) write(ctx context.Context, id string, all []*place) error {
	claims, err := n.Claims.OfToken(ctx, id)
	if err != nil {
		return fmt.Errorf("claims of token %s: %w", id, err)
	}
	// A claim that is in the middle of being made counts itself.
	claims = slices.DeleteFunc(claims, func(c tokens.Claim) bool {
		return slices.ContainsFunc(all, func(p *place) bool { return p.node == c.Node })
	})
	mended := false
	_, err = n.Tokens.Update(ctx, id, func(record *tokens.Record) error {
		if mended = mend(record, claims, "", n.now()); record.Limits.Most() == 0 { // erased meanwhile
			record.Limits, mended = all[0].seen.Limits, true
		}
		before, spent := len(record.Nodes), record.Spent()
		for _, p := range all {
			p.err = n.place(record, p)
		}
		if !mended && len(record.Nodes) == before {
			return errNothing
		}
		if end := n.now().Add(n.retention()); record.Spent() && !spent && (record.Expires.IsZero() || record.Expires.After(end)) {
			record.Expires = end.UTC().Truncate(time.Second)
		}
		return nil
	})
	switch {
	case errors.Is(err, errNothing):
		return nil
	case errors.Is(err, tokens.ErrNotFound):
		return refuseFor(ReasonTokenRevoked, "token %s was deleted while this request was looked at", id)
	case err != nil:
		return fmt.Errorf("count of token %s: %w", id, err)
	case mended:
		n.count("repaired")
		n.log.Warn("a token had lost limits or names that its claims know; they are put back", "token", id)
	}
	return nil
}

// place puts a name on the record, if it may be there. One that is there has its place: another
// replica may be at work on the same request.
func (n *NodeAdmission) place(record *tokens.Record, p *place) error {
	if record.UID != p.seen.UID {
		return fmt.Errorf("token %s was replaced while this request was looked at", record.Token.ID())
	}
	if err := n.admits(*record, p.request, p.node); err != nil {
		return err
	}
	if !slices.Contains(record.Nodes, p.node) {
		record.Nodes = append(record.Nodes, p.node)
	}
	return nil
}
