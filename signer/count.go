package signer

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
}

// take counts the name on a token that is limited to a number of nodes, by compare-and-swap: of
// all who ask at once, the token's limit is how many get past here. The last one also brings the
// token's expiration forward.
func (n *NodeAdmission) take(ctx context.Context, p *place) error {
	if p.seen.Limits.Most() == 0 {
		return nil
	}
	id := p.seen.Token.ID()
	if err := n.places.Do(ctx, id, p, func(ctx context.Context, all []*place) {
		ctx, cancel := context.WithTimeout(ctx, countTimeout)
		defer cancel()
		if err := n.write(ctx, id, all); err != nil {
			for _, p := range all {
				p.err = err
			}
		}
	}); err != nil {
		return fmt.Errorf("count of token %s: %w", id, err)
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

func (n *NodeAdmission) retention() time.Duration {
	if n.Retention > 0 {
		return n.Retention
	}
	return DefaultRetention
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
