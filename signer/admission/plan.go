package admission

import (
	"errors"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// A step is what becomes of the claim of a name that a token with limits asks for.
type step int

const (
	keep                step = iota // the claim holds the name for the request
	newClaim                        // the name is free: the claim was released
	takeOver                        // the token replaces the Node of another token's claim
	anotherKey                      // the machine asks with another key
	refuseReplacedAgain             // another machine has taken the place of the replaced Node
)

// String is the step as the metric kubejoin_claim_changes_total names it.
func (s step) String() string {
	return [...]string{"", "made", "taken_over", "another_key", ""}[s]
}

// Errors of plan that ask for something else to be done first.
var (
	// errRegistered: the Node of the claim has registered. The claim is released if the Node is gone.
	errRegistered = errors.New("the node has registered")
	// errAbandoned: a claim of another token is pending for too long. It is released unless its token has
	// counted the name.
	errAbandoned = errors.New("the claim was not confirmed")
)

// plan returns what becomes of the claim of a name, which was read live, or why the request is refused. It reads
// nothing and writes nothing. A token that has counted the name before keeps the claim that it has and gets no other one.
func (n *Nodes) plan(c tokens.Claim, p *slotRequest) (step, error) {
	id, key := p.record.Token.ID(), pkcs10.KeyID(p.request.CSR)
	own := c.TokenID == id
	switch {
	case p.counted && (c.Released() || !own && p.replaces):
		return keep, refuseJoined(id, c.Node, p.replaces)
	case c.Released():
		return newClaim, nil
	case !own && p.replaces:
		return takeOver, nil
	case !own && n.abandoned(c):
		return keep, errAbandoned
	case !own && c.NodeUID == "":
		return keep, refuseClaimed(c)
	case own && c.NodeUID != "" && n.Node == nil:
		return keep, approval.RefuseFor(ReasonNodeExists, "%s has joined on token %s, and asks with its certificate; to put another machine in its place: kubejoin claim release %s", c.Node, id, c.Node)
	case c.NodeUID != "" && !p.replaces && !(n.AllowExisting && own && c.Pending && c.HasKey(key)):
		return keep, errRegistered
	case p.replaces && (c.ReadyAgain || p.ready != "" && p.ready != c.ReadyBefore):
		return refuseReplacedAgain, nil
	case c.HasKey(key):
		return keep, nil
	case len(c.Keys) >= tokens.MaxKeys && !c.Pending:
		return keep, approval.RefuseFor(ReasonTooManyKeys, "a machine called %s has asked on token %s with %d other keys, and has not registered; if it is only one: kubejoin claim release %s",
			c.Node, id, len(c.Keys), c.Node)
	}
	return anotherKey, nil
}

// apply returns the claim after a step.
func (p *slotRequest) apply(do step, c tokens.Claim, now time.Time) tokens.Claim {
	switch do {
	case newClaim:
		return taken(c, p.fresh(), c.Past)
	case takeOver:
		return taken(c, p.fresh(), c.PastAfterRelease(now, 0))
	case refuseReplacedAgain:
		c.ReadyAgain = true // and is kept, whatever becomes of the Node
		return c
	case anotherKey:
		if len(c.Keys) >= tokens.MaxKeys { // of tries that came to nothing: nothing is issued on a pending claim
			c.Keys = c.Keys[1:]
		}
		c.Keys = append(c.Keys, pkcs10.KeyID(p.request.CSR))
	}
	for _, uid := range requests(p.request) {
		if !slices.Contains(c.Requests, uid) {
			c.Requests = tokens.NewestRequests(append(c.Requests, uid))
		}
	}
	c.TokenUID = p.record.UID
	return c
}

// fresh is the claim for a name that has none.
func (p *slotRequest) fresh() tokens.Claim {
	return tokens.Claim{
		Node: p.node, TokenID: p.record.Token.ID(), TokenUID: p.record.UID, Limits: p.record.Limits,
		Keys: []string{pkcs10.KeyID(p.request.CSR)}, Requests: requests(p.request),
		Pending: p.record.Limits.NodeLimit() > 0, ReadyBefore: p.ready,
	}
}

// taken is a claim in the place of another one.
func taken(over, fresh tokens.Claim, past tokens.ReleasedClaim) tokens.Claim {
	fresh = fresh.Clone()
	fresh.UID, fresh.Version, fresh.Created, fresh.Past = over.UID, over.Version, over.Created, past
	return fresh
}

func refuseJoined(id, node string, replaces bool) error {
	flag := "--node-name"
	if replaces {
		flag = "--replace-node"
	}
	return approval.RefuseFor(ReasonTokenSpent, "%s has joined with token %s before, and its Node or its claim was deleted since; make another token with: kubejoin token create %s %s", node, id, flag, node)
}

func refuseReplaced(node string) error {
	return approval.RefuseFor(ReasonNodeExists, "a machine has taken the place of Node %s, which was Ready since; for one more make a token with: kubejoin token create --replace-node %s", node, node)
}

func requests(r approval.Request) []string {
	if r.UID == "" {
		return nil
	}
	return []string{r.UID}
}
