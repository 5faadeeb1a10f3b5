package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// Reasons of an [*approval.Error] for a node that may not rejoin, besides [ReasonNodeNotFound] and [ReasonNodeReplaced].
const (
	// ReasonRejoinOff: nodes may not rejoin, or not those of this node's token.
	ReasonRejoinOff = "RejoinOff"
	// ReasonRejoinTooLate: the certificate expired longer ago than the window.
	ReasonRejoinTooLate = "RejoinTooLate"
	// ReasonKeyNotCurrent: the key is neither a current key of the node nor its bound key.
	ReasonKeyNotCurrent = "KeyNotCurrent"
	// ReasonKeyReused: the request is for the key that has proven the node, or for its bound key.
	ReasonKeyReused = "KeyReused"
	// ReasonRejoinBudgetSpent: the node has rejoined as often as the budget allows.
	ReasonRejoinBudgetSpent = "RejoinBudgetSpent"
)

// DefaultRejoinBudget is how often a node may rejoin within the window.
const DefaultRejoinBudget = 3

// rejoinFacts are what a decision about a rejoin depends on.
type rejoinFacts struct {
	proof   approval.Rejoin
	by      string // fingerprint of the certificate of the proof; empty if it is not known
	key     string // of the request
	nodes   bool   // whether there are Nodes
	nodeUID string // UID of the Node, empty without a Node
	window  time.Duration
	budget  int
	now     time.Time
}

// provesNode returns an [*approval.Error] unless the claim of the node has the key of the proof.
func provesNode(c tokens.Claim, f rejoinFacts) error {
	i, node := c.Identity, c.Node
	refuse := func(reason, format string, args ...any) error {
		return approval.RefuseFor(reason, format+"; to let the machine join again: kubejoin token create --replace-node %s", append(args, node)...)
	}
	bound := f.proof.NotAfter.IsZero()
	_, current := i.Find(f.proof.Key, f.by)
	switch notAfter := f.proof.NotAfter; {
	case f.window <= 0:
		return refuse(ReasonRejoinOff, "nodes cannot rejoin: kubejoin runs without --rejoin-window")
	case c.Remaining().Rejoin == tokens.RejoinDeny:
		return refuse(ReasonRejoinOff, "the token with which node %s joined does not allow it to rejoin", node)
	case !bound && !f.now.Before(notAfter.Add(f.window)):
		return refuse(ReasonRejoinTooLate, "the certificate of node %s expired at %s, more than %s ago (--rejoin-window)", node, notAfter.UTC().Format(time.RFC3339), f.window)
	case len(i.Credentials) == 0:
		return refuse(ReasonKeyNotCurrent, "kubejoin knows no key of node %s: its last certificate is from before --rejoin-window was set or by another signer, or its claim was released", node)
	case bound && f.proof.Key != i.Bound.Key:
		return refuse(ReasonKeyNotCurrent, "the key is not bound to node %s", node)
	case !bound && !current:
		return refuse(ReasonKeyNotCurrent, "the key is not a current one of node %s: this machine has an old copy of the disk, or is another machine", node)
	case !f.now.Before(i.NotAfter.Add(f.window)):
		return refuse(ReasonRejoinTooLate, "the last certificate of node %s expired at %s, more than %s ago (--rejoin-window)", node, i.NotAfter.UTC().Format(time.RFC3339), f.window)
	case f.nodes && f.nodeUID == "":
		return approval.RefuseFor(ReasonNodeNotFound, "Node %s does not exist: it was deleted; to let the machine join again: kubejoin token create --max-nodes 1 --node-name %s", node, node)
	case f.nodes && i.NodeUID == "":
		return approval.RefuseFor(ReasonNodeReplaced, "kubejoin has not stored the UID of Node %s yet; retry in a minute", node)
	case f.nodes && i.NodeUID != f.nodeUID:
		return refuse(ReasonNodeReplaced, "Node %s was deleted and created again (UID %s before, %s now)", node, i.NodeUID, f.nodeUID)
	}
	return nil
}

// decideRejoin returns the claim of a node that rejoins, before its new certificate, or refuses with an
// [*approval.Error]. It is pure: Admit calls it before the certificate is signed, and StoreIdentity again in the write
// that the certificate depends on.
//
// The key that has proven the node stays current, so that a machine that has lost a response can retry. While the new
// certificate is valid, another request for the same key does not count.
func decideRejoin(c tokens.Claim, f rejoinFacts) (tokens.Claim, error) {
	i, node := c.Identity, c.Node
	if err := provesNode(c, f); err != nil {
		return c, err
	}
	if f.key == f.proof.Key || f.key == i.Bound.Key {
		return c, approval.RefuseFor(ReasonKeyReused, "the request of node %s is for a key that it has used before; make a new key", node)
	}
	if again := i.Last().Key == f.key && len(i.Rejoins) > 0 && f.now.Before(i.NotAfter); !again {
		i.Rejoins = slices.DeleteFunc(slices.Clone(i.Rejoins), func(at time.Time) bool { return !at.Add(f.window).After(f.now) })
		if len(i.Rejoins) >= f.budget {
			return c, approval.RefuseFor(ReasonRejoinBudgetSpent, "node %s has rejoined %d times within %s (--rejoin-budget %d); to let the machine join again: kubejoin token create --replace-node %s",
				node, len(i.Rejoins), f.window, f.budget, node)
		}
		i.Rejoins = append(i.Rejoins, f.now.UTC().Truncate(time.Second))
	}
	c.Identity = i
	switch {
	case c.Past.CertificateDuration > 0:
		c.Past = c.Past.Renewed(f.now)
	case !c.Released() && !f.nodes:
		c.NodeUID = tokens.ByCertificate // as renewed does
	}
	return c, nil
}

// rejoined is [decideRejoin] for a request and the claim of its node.
func (n *Nodes) rejoined(c tokens.Claim, r approval.Request, nodeUID string) (tokens.Claim, error) {
	return decideRejoin(c, rejoinFacts{
		proof: *r.Rejoin, by: fingerprintOf(r), key: pkcs10.KeyID(r.CSR), nodes: n.Node != nil, nodeUID: nodeUID, window: n.RejoinWindow,
		budget: min(cmp.Or(n.RejoinBudget, DefaultRejoinBudget), tokens.MaxRejoins), now: n.now(),
	})
}

// admitRejoin admits a node that has proven a key in place of a valid certificate. Its claim keeps the limits of the token
// that admitted it.
func (n *Nodes) admitRejoin(ctx context.Context, r approval.Request, node string, a *Admitted) (err error) {
	var c tokens.Claim
	if n.Claims != nil {
		if c, err = n.Claims.Get(ctx, node); err != nil && !errors.Is(err, tokens.ErrNotFound) {
			return fmt.Errorf("claim of node %s: %w", node, err)
		}
	}
	c.Node = node
	if a.nodeUID, err = n.uidOf(ctx, node); err != nil {
		return err
	}
	if _, err = n.rejoined(c, r, a.nodeUID); err != nil {
		return err
	}
	a.Fingerprint, a.Duration = c.Identity.Last().Fingerprint, c.Remaining().CertificateDuration // also if its Past has ended: nodes rejoin for much longer
	if r.Rejoin.NotAfter.IsZero() {
		a.BoundBy = c.Identity.Bound.Fingerprint
	}
	return nil
}

// uidOf returns the UID of a Node, or nothing if it does not exist.
func (n *Nodes) uidOf(ctx context.Context, node string) (string, error) {
	if n.Node == nil {
		return "", nil
	}
	uid, err := n.Node(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("node %s: %w", node, err)
	}
	return uid, nil
}

// Bound returns nil if a key is bound to a node, and an error that wraps [tokens.ErrNotFound] if it is not. It reads the
// cache, because anyone can make a key.
func (n *Nodes) Bound(ctx context.Context, node, key string) error {
	if n == nil || n.RejoinWindow <= 0 || n.Claims == nil {
		return tokens.ErrNotFound
	}
	c, err := n.Claims.Find(ctx, node)
	if err == nil && c.Identity.Bound.Key != key {
		err = tokens.ErrNotFound
	}
	return err
}

// BindKey binds a key to a node that has authenticated with its valid certificate, whose key is current. Then the node can
// rejoin with the bound key. It may bind one key, once; another attempt with the same key succeeds, and changes nothing.
func (n *Nodes) BindKey(ctx context.Context, node string, by tokens.Credential, key string) error {
	if n == nil || n.Claims == nil {
		return approval.RefuseFor(ReasonRejoinOff, "nodes cannot rejoin: kubejoin runs without --rejoin-window")
	}
	uid, err := n.uidOf(ctx, node)
	if err != nil {
		return err
	}
	bind := func(c *tokens.Claim) error {
		f := rejoinFacts{proof: approval.Rejoin{Key: by.Key, NotAfter: n.now()}, by: by.Fingerprint, nodes: n.Node != nil, nodeUID: uid, window: n.RejoinWindow, now: n.now()}
		if err := provesNode(*c, f); err != nil {
			return err
		}
		switch _, used := c.Identity.Find(key, ""); {
		case used:
			return approval.RefuseFor(ReasonKeyReused, "the key to bind is the key of a certificate of node %s; make a new key", node)
		case c.Identity.Bound.Key == key:
			return nil
		case c.Identity.Bound.Key != "":
			return approval.RefuseFor(ReasonKeyNotCurrent, "another key is bound to node %s; to bind this one, let the node renew after: kubejoin claim release %s", node, node)
		}
		c.Identity.Bound = tokens.Credential{Key: key, Fingerprint: by.Fingerprint}
		return nil
	}
	_, err = n.Claims.Update(ctx, node, bind)
	if errors.Is(err, tokens.ErrNotFound) {
		return bind(&tokens.Claim{Node: node})
	}
	return err
}

// BoundBy returns the fingerprint of the certificate that has bound a key to a node, read live; empty if none has.
func (n *Nodes) BoundBy(ctx context.Context, node string) (string, error) {
	if n == nil || n.Claims == nil {
		return "", nil
	}
	c, err := n.Claims.Get(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		return "", nil
	}
	return c.Identity.Bound.Fingerprint, err
}

// Unbind removes the bound key of a node if the certificate with this fingerprint has bound it.
func (n *Nodes) Unbind(ctx context.Context, node, by string) error {
	_, err := n.Claims.Update(ctx, node, func(c *tokens.Claim) error {
		if c.Identity.Bound.Fingerprint == by {
			c.Identity.Bound = tokens.Credential{}
		}
		return nil
	})
	if errors.Is(err, tokens.ErrNotFound) {
		return nil
	}
	return err
}
