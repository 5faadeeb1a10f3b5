package admission

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// The functions of this file decide how claims and counts change. They neither read nor write. Their callers pass
// what they have read live, and write the result only if the stored value has not changed.

// A step is how the claim of a name changes when a token with limits requests the name.
type step int

const (
	keep                step = iota // the claim holds the name for the request
	newClaim                        // the name is free: the claim was released
	takeOver                        // the token replaces the Node of another token's claim
	anotherKey                      // the claim gets another key
	refuseReplacedAgain             // another machine has already replaced the Node: the request is refused
)

// String returns the step as a value of label change in metric kubejoin_claim_changes_total.
func (s step) String() string {
	return [...]string{"", "made", "taken_over", "another_key", ""}[s]
}

// errVacate is the error of plan if the name has a claim that vacate must check first.
var errVacate = errors.New("the name has a claim")

// plan returns how the claim of a name changes, or why the request is refused. A token that had a claim on the name gets
// no other one.
func (n *Nodes) plan(c tokens.Claim, p *slotRequest) (step, error) {
	id, key := p.record.Token.ID(), pkcs10.KeyID(p.request.CSR)
	own := c.TokenID == id
	switch {
	case p.had && (c.Released() || !own && p.replaces), own && slices.Contains(p.record.Left, c.Node):
		return keep, refuseJoined(id, c.Node, p.replaces)
	case c.Released():
		return newClaim, nil
	case !own && p.replaces:
		return takeOver, nil
	case !own && c.NodeUID == "":
		return keep, errVacate
	case own && c.NodeUID != "" && n.Node == nil:
		return keep, approval.RefuseFor(ReasonNodeExists, "node %s has already joined with token %s and now uses its certificate; to let another machine replace it: kubejoin claim release %s", c.Node, id, c.Node)
	case c.NodeUID != "" && !p.replaces && !(n.AllowExisting && own && c.HasKey(key)):
		return keep, errVacate
	case p.replaces && (c.ReadyAgain || p.ready != "" && p.ready != c.ReadyBefore):
		return refuseReplacedAgain, nil
	case c.HasKey(key):
		return keep, nil
	case len(c.Keys) >= tokens.MaxKeys:
		return keep, approval.RefuseFor(ReasonTooManyKeys, "node name %s was already requested with token %s and %d other keys, but no Node has registered; if only one machine uses this name: kubejoin claim release %s",
			c.Node, id, len(c.Keys), c.Node)
	}
	return anotherKey, nil
}

// apply returns the claim after a step.
func (p *slotRequest) apply(do step, c tokens.Claim, now time.Time) tokens.Claim {
	switch do {
	case newClaim:
		return writtenOver(c, p.fresh(), c.Past)
	case takeOver:
		return writtenOver(c, p.fresh(), c.PastAfterRelease(now, 0))
	case refuseReplacedAgain:
		c.ReadyAgain = true // never reset, even if the Node changes again
		return c
	case anotherKey:
		c.Keys = append(c.Keys, pkcs10.KeyID(p.request.CSR))
	}
	if uid := p.request.UID; uid != "" && !slices.Contains(c.Requests, uid) {
		c.Requests = tokens.NewestRequests(append(c.Requests, uid))
	}
	c.TokenUID = p.record.UID
	return c
}

// fresh returns the claim for a name that has none.
func (p *slotRequest) fresh() tokens.Claim {
	return p.apply(anotherKey, tokens.Claim{
		Node: p.node, TokenID: p.record.Token.ID(), Limits: p.record.Limits, ReadyBefore: p.ready,
	}, time.Time{})
}

// writtenOver returns fresh in a form that can be written over claim over, and with past. It keeps the Identity until
// [Nodes.StoreIdentity] decides about it: nothing was issued yet.
func writtenOver(over, fresh tokens.Claim, past tokens.ReleasedClaim) tokens.Claim {
	fresh = fresh.Clone()
	fresh.UID, fresh.Version, fresh.Created, fresh.Past, fresh.Identity = over.UID, over.Version, over.Created, past, over.Identity
	return fresh
}

// released returns what remains of a claim when its name is released. The Identity ends with the Node.
func released(c tokens.Claim, past tokens.ReleasedClaim) tokens.Claim {
	left := writtenOver(c, tokens.Claim{Node: c.Node}, past)
	left.Identity = tokens.Identity{}
	return left
}

// renewed returns the claim of a node that authenticates with its certificate, and the longest lifetime of its next
// one. Zero leaves the lifetime to the signer.
//
// Where there are no Nodes, the claim records that the node has joined, and the token admits no other key from then
// on. A released claim means that the machine is gone, so renewed refuses.
//
// Where there are Nodes, a machine may renew although its claim was released. The new certificate lasts as long as
// the claim allowed. Each renewal extends how long the past of the claim is kept.
func renewed(c tokens.Claim, nodes bool, now time.Time) (tokens.Claim, time.Duration, error) {
	switch {
	case !c.Released():
		if !nodes && c.NodeUID == "" {
			c.NodeUID = tokens.ByCertificate
		}
		return c, c.Limits.CertificateDuration, nil
	case !c.Past.Active(now):
		return c, 0, nil
	case !nodes:
		return c, 0, approval.RefuseFor(ReasonNodeNameReleased, "the claim on node name %s was released, so its certificate cannot be renewed; to let the machine join again: kubejoin token create --max-nodes 1 --node-name %s", c.Node, c.Node)
	case c.Past.CertificateDuration > 0:
		c.Past = c.Past.Renewed(now)
	}
	return c, c.Past.CertificateDuration, nil
}

// fill counts the names of all that have their claims, and sets the error of those that get no slot. It reports
// whether it changed the record. A name that is already counted keeps its slot: another replica may handle the same
// request. The last slot brings the token's expiration forward.
func (n *Nodes) fill(record *tokens.Record, all []*slotRequest) (changed bool) {
	spent := record.Spent()
	for _, p := range all {
		if p.err != nil {
			continue
		}
		// The token may have expired while others were asked for the claim.
		p.err = n.checkSlot(*record, p)
		if p.err == nil && (!slices.Contains(record.Nodes, p.node) || slices.Contains(record.Lost, p.node)) {
			record.Uncount(p.node)
			record.Nodes = append(record.Nodes, p.node)
			changed = true
		}
	}
	if end := n.now().Add(cmp.Or(max(n.Retention, 0), DefaultRetention)); record.Spent() && !spent && (record.Expires.IsZero() || record.Expires.After(end)) {
		record.Expires = end.UTC().Truncate(time.Second)
	}
	return changed
}

// restrict restores from the claims what the record has lost, and reports whether it changed the record. It restores
// limits and counted names, even from claims of an earlier token with this ID. It never restores a Node to replace or
// a role, because these grant something.
func restrict(record *tokens.Record, claims []tokens.Claim) (changed bool) {
	l := &record.Limits
	before := *l
	for _, c := range claims {
		maxNodes, names := c.Limits.MaxNodes, c.Limits.NodeNames
		if to := c.Limits.Replaces.Name; to != "" {
			maxNodes, names = 1, []string{to}
		}
		if l.Replaces == (tokens.NodeRef{}) { // otherwise the token is for one node of one name
			if before.MaxNodes == 0 {
				l.MaxNodes = least(l.MaxNodes, maxNodes)
			}
			if len(l.NodeNames) == 0 {
				l.NodeNames = slices.Clone(names)
			}
		}
		if l.Rejoin == "" && c.Limits.Rejoin == tokens.RejoinDeny {
			l.Rejoin = tokens.RejoinDeny
		}
		if before.CertificateDuration == 0 {
			l.CertificateDuration = least(l.CertificateDuration, c.Limits.CertificateDuration)
		}
	}
	changed = !l.Equal(before)
	if l.NodeLimit() == 0 {
		return changed
	}
	// If there are more claims than the limit allows, one of them was never counted. It is not known which, so all of them
	// count, and the token admits no more machine.
	lost := len(record.Nodes) == 0
	for _, registered := range []bool{true, false} {
		for _, c := range claims {
			if registered == (c.NodeUID != "") && (lost || !record.Spent()) && !slices.Contains(record.Nodes, c.Node) {
				record.Nodes = append(record.Nodes, c.Node)
				changed = true
			}
		}
	}
	return changed
}

// least returns the lesser of two limits. Zero is unlimited.
func least[T int | time.Duration](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// replaces reports whether a token replaces the Node that has the name now. It refuses the name of any other Node. If
// AllowExisting is set, it allows that name unless the token replaces another Node of the same name.
func (n *Nodes) replaces(node, uid string, ref tokens.NodeRef) (bool, error) {
	switch {
	case ref == tokens.NodeRef{Name: node, UID: uid}:
		return true, nil
	case ref.Name == node:
		return false, refuseOther(node, ref.UID, uid)
	case n.AllowExisting:
		return false, nil
	}
	return false, approval.RefuseFor(ReasonNodeExists, "Node %s already exists; to replace its machine: kubejoin token create --replace-node %s; if its machine no longer exists: kubectl delete node %s", node, node, node)
}

// checkSlot refuses a request that the token does not allow, or has no slot for.
func (n *Nodes) checkSlot(record tokens.Record, p *slotRequest) error {
	err := n.check(record, p.request, p.node)
	switch most := record.Limits.NodeLimit(); {
	case err != nil:
		return err
	case most > 0 && len(record.Nodes) > most:
		return approval.RefuseFor(ReasonTokenSpent, "token %s allows %d nodes and counts %d; create another one: kubejoin token create --max-nodes 1 --node-name %s", record.Token.ID(), most, len(record.Nodes), p.node)
	case record.Spent() && !slices.Contains(record.Nodes, p.node):
		return refuseSpent(record, p.node)
	}
	return nil
}

// check refuses a request that the token itself does not allow. It does not check the count.
func (n *Nodes) check(record tokens.Record, r approval.Request, node string) error {
	id := record.Token.ID()
	switch l := record.Limits; {
	case record.Expired(n.now()):
		return approval.RefuseFor(ReasonTokenExpired, "token %s expired at %s; create another one: kubejoin token create", id, record.Expires.UTC().Format(time.RFC3339))
	case record.Problem != nil:
		return approval.RefuseFor(ReasonTokenRevoked, "token %s is malformed: %v", id, record.Problem)
	case !record.Authentication:
		return approval.RefuseFor(ReasonTokenRevoked, "token %s does not have usage authentication", id)
	case !r.Created.IsZero() && record.Created.After(r.Created):
		return approval.RefuseFor(ReasonTokenReplaced, "token %s was created at %s, after this request; the request is for an earlier token with the same ID", id, record.Created.UTC().Format(time.RFC3339))
	case l.Problem != nil:
		return approval.RefuseFor(ReasonTokenLimitsMalformed, "token %s has malformed limits and admits no node: %v", id, l.Problem)
	case !l.AllowsName(node):
		return approval.RefuseFor(ReasonNodeNameNotAllowed, "token %s does not allow node name %s, only %s; create another one: kubejoin token create --max-nodes 1 --node-name %s", id, node, names(l), node)
	case n.reserved(node) && l.Role != tokens.RoleControlPlane:
		return refuseReserved(node)
	}
	return nil
}

func names(l tokens.Limits) string {
	if l.Replaces.Name != "" {
		return l.Replaces.Name
	}
	const most = 5
	if len(l.NodeNames) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(l.NodeNames[:most], ", "), len(l.NodeNames)-most)
	}
	return strings.Join(l.NodeNames, ", ")
}

func refuseSpent(record tokens.Record, node string) error {
	most := record.Limits.NodeLimit()
	nodes, joined := "nodes", fmt.Sprintf("%d have", len(record.Nodes))
	if most == 1 && len(record.Nodes) == 1 {
		nodes, joined = "node", record.Nodes[0]+" has"
	}
	return approval.RefuseFor(ReasonTokenSpent, "token %s is spent: it allows %d %s, and %s joined with it; create another one: kubejoin token create --max-nodes 1 --node-name %s", record.Token.ID(), most, nodes, joined, node)
}

func (n *Nodes) reserved(node string) bool {
	return slices.ContainsFunc(n.Reserved, func(pattern string) bool { return tokens.MatchNodeName(pattern, node) })
}

func refuseReserved(node string) error {
	return approval.RefuseFor(ReasonNodeNameReserved, "node name %s is reserved for the control plane; create a token for it: kubejoin token create --role control-plane --max-nodes 1 --node-name %s", node, node)
}

func refuseGone(id string) error {
	return approval.RefuseFor(ReasonTokenRevoked, "token %.6s does not exist: it was deleted or has expired; create another one: kubejoin token create", id)
}

func refuseJoined(id, node string, replaces bool) error {
	flag := "--max-nodes 1 --node-name"
	if replaces {
		flag = "--replace-node"
	}
	return approval.RefuseFor(ReasonTokenSpent, "node %s has already joined with token %s, and its Node or claim was deleted since; create another token: kubejoin token create %s %s", node, id, flag, node)
}

func refuseReplaced(node string) error {
	return approval.RefuseFor(ReasonNodeExists, "another machine has already replaced Node %s and became Ready; to replace it again: kubejoin token create --replace-node %s", node, node)
}

func refuseOther(node, wanted, uid string) error {
	return approval.RefuseFor(ReasonNodeReplaced, "the token may replace Node %s with UID %s, but this Node now has UID %s; create another token: kubejoin token create --replace-node %s",
		node, wanted, uid, node)
}

func refuseClaimed(c tokens.Claim) error {
	return approval.RefuseFor(ReasonNodeNameClaimed, "node name %s was claimed with token %s at %s; if that machine will not join: kubejoin claim release %s",
		c.Node, c.TokenID, c.Created.UTC().Format(time.RFC3339), c.Node)
}
