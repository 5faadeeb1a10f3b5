package admission

import (
	"cmp"
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
	keep       step = iota // the claim holds the name for the request, or the request is refused
	newClaim               // the name is free
	takeOver               // the token replaces the Node of another token's claim
	anotherKey             // the claim gets another key
)

// String returns the step as a value of label change in metric kubejoin_claim_changes_total.
func (s step) String() string {
	return [...]string{"", "made", "taken_over", "another_key"}[s]
}

// plan decides about the candidates of a token that are not refused yet, and counts their names in the record. A name that
// is already counted keeps its slot: another replica may handle the same request. The last slot brings the token's
// expiration forward. A candidate that has lost its name to another token, or to an object that is not a claim, gives
// its slot back.
func (n *Nodes) plan(record *tokens.Record, all []*candidate) {
	spent := record.Spent()
	var lost []string
	for _, c := range all {
		if c.err != nil {
			c.next = c.claim
			continue
		}
		if record.Limits.IsZero() {
			c.decision = n.planFree(c)
			continue
		}
		counts := slices.Contains(record.Nodes, c.node)
		c.decision = n.planClaim(*record, c)
		switch {
		case c.err == nil && record.Expired(n.now()): // since allows
			c.decision = decision{next: c.claim, err: n.check(*record, c.request, c.node)}
		case c.err == nil && !counts && record.Spent(): // by another candidate
			c.decision = decision{next: c.claim, err: refuseSpent(*record, c.node)}
		case c.err == nil && !counts && record.Limits.NodeLimit() > 0:
			record.Nodes = append(record.Nodes, c.node)
		case c.err != nil && counts && !c.ended && (c.foreign && c.claim.UID == "" && c.nodeUID == "" || !c.claim.Released() && c.claim.TokenID != record.Token.ID()):
			c.lost, lost = true, append(lost, c.node)
		}
	}
	if end := n.now().Add(cmp.Or(max(n.Retention, 0), DefaultRetention)); record.Spent() && !spent && (record.Expires.IsZero() || record.Expires.After(end)) {
		record.Expires = end.UTC().Truncate(time.Second)
	}
	record.Nodes = slices.DeleteFunc(record.Nodes, func(name string) bool { return slices.Contains(lost, name) })
}

// planClaim decides about the claim of a name that a token with limits requests. A token that had a claim on the name gets
// no other one.
func (n *Nodes) planClaim(record tokens.Record, c *candidate) (d decision) {
	id, key, claim := record.Token.ID(), pkcs10.KeyID(c.request.CSR), c.claim.Clone()
	own := claim.TokenID == id
	d.next = claim
	if d.replaces, d.err = n.replaces(c, record.Limits.Replaces); d.err != nil {
		return d
	}
	// If existing Nodes are allowed, the machine of the claim keeps it.
	switch d.vacates = n.vacates(c) && !(n.AllowExisting && own && claim.HasKey(key)); {
	case c.ended && (own || claim.Released() || d.replaces), own && d.vacates:
		d.err = refuseJoined(id, c.node, d.replaces)
	case c.foreign && claim.UID == "":
		d.err = approval.RefuseFor(ReasonNodeNameNotAllowed, "node name %s is not available: an object that is not a claim has this name: %v", c.node, tokens.ErrExists)
	case claim.Released():
		d.step, d.next = newClaim, fresh(record, c, claim.Past, claim.Identity)
	case !own && d.replaces:
		d.step, d.next = takeOver, fresh(record, c, claim.PastAfterRelease(n.now(), 0), claim.Identity)
	case d.vacates && c.ended:
		d.err = refuseJoined(id, c.node, d.replaces)
	case d.vacates:
		d.step, d.next = newClaim, fresh(record, c, claim.PastAfterRelease(n.now(), 0), tokens.Identity{})
	case own && claim.NodeUID != "" && n.Node == nil:
		d.err = approval.RefuseFor(ReasonNodeExists, "node %s has already joined with token %s and now uses its certificate; to let another machine replace it: kubejoin claim release %s", c.node, id, c.node)
	case !own, claim.NodeUID != "" && !d.replaces && !claim.HasKey(key): // the Node exists, and existing Nodes are allowed
		d.err = refuseClaimed(claim)
	case d.replaces && (claim.ReadyAgain || c.ready != "" && c.ready != claim.ReadyBefore):
		d.next.ReadyAgain = true // never reset, even if the Node changes again
		d.err = approval.RefuseFor(ReasonNodeExists, "another machine has already replaced Node %s and became Ready; to replace it again: kubejoin token create --replace-node %s", c.node, c.node)
	case !claim.HasKey(key) && len(claim.Keys) >= tokens.MaxKeys:
		d.err = approval.RefuseFor(ReasonTooManyKeys, "node name %s was already requested with token %s and %d other keys, but no Node has registered; if only one machine uses this name: kubejoin claim release %s",
			c.node, id, len(claim.Keys), c.node)
	case !claim.HasKey(key):
		d.step, d.next.Keys = anotherKey, append(claim.Keys, key)
		fallthrough
	default:
		d.next = requested(d.next, record, c)
	}
	if d.err != nil && d.vacates {
		d.next = claim.AfterRelease(claim.PastAfterRelease(n.now(), 0))
	}
	return d
}

// planFree decides about a name for a requester that holds no claim. The name then belongs to it: the past of an old claim
// does not bind its renewals.
func (n *Nodes) planFree(c *candidate) (d decision) {
	d.next = c.claim
	if _, d.err = n.replaces(c, tokens.NodeRef{}); d.err != nil {
		return d
	}
	if d.vacates = n.vacates(c); d.vacates || c.claim.Released() {
		d.next = c.claim.AfterRelease(tokens.ReleasedClaim{})
	} else {
		d.err = refuseClaimed(c.claim)
	}
	return d
}

// vacates reports whether a claim ends because its Node had registered and is gone. The claim cleaner also releases claims
// of Nodes that are gone, a little later.
func (n *Nodes) vacates(c *candidate) bool {
	return n.Node != nil && c.claim.NodeUID != "" && c.nodeUID == ""
}

// fresh returns a new claim on a name, written over the one that it has, with a past. It keeps an Identity until
// [Nodes.StoreIdentity] decides about it: nothing was issued yet.
func fresh(record tokens.Record, c *candidate, past tokens.ReleasedClaim, identity tokens.Identity) tokens.Claim {
	return requested(tokens.Claim{
		Node: c.node, TokenID: record.Token.ID(), Limits: record.Limits, Keys: []string{pkcs10.KeyID(c.request.CSR)}, ReadyBefore: c.ready,
		UID: c.claim.UID, Version: c.claim.Version, Created: c.claim.Created, Past: past, Identity: identity,
	}, record, c).Clone()
}

// requested returns a claim with a request of a token.
func requested(claim tokens.Claim, record tokens.Record, c *candidate) tokens.Claim {
	if uid := c.request.UID; uid != "" && !slices.Contains(claim.Requests, uid) {
		claim.Requests = tokens.NewestRequests(append(claim.Requests, uid))
	}
	claim.TokenUID = record.UID
	return claim
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
func (n *Nodes) replaces(c *candidate, ref tokens.NodeRef) (bool, error) {
	node := c.node
	switch {
	case c.nodeUID == "":
		return false, nil
	case ref == tokens.NodeRef{Name: node, UID: c.nodeUID}:
		return true, nil
	case ref.Name == node:
		return false, approval.RefuseFor(ReasonNodeReplaced, "the token may replace Node %s with UID %s, but this Node now has UID %s; create another token: kubejoin token create --replace-node %s",
			node, ref.UID, c.nodeUID, node)
	case n.AllowExisting:
		return false, nil
	}
	return false, approval.RefuseFor(ReasonNodeExists, "Node %s already exists; to replace its machine: kubejoin token create --replace-node %s; if its machine no longer exists: kubectl delete node %s", node, node, node)
}

// allows refuses a request that the token does not allow, or has no slot for.
func (n *Nodes) allows(record tokens.Record, c *candidate) error {
	id, most := record.Token.ID(), record.Limits.NodeLimit()
	if c.tokenUID != "" && c.tokenUID != record.UID {
		return fmt.Errorf("token %s was replaced while kubejoin handled this request", id)
	}
	err := n.check(record, c.request, c.node)
	switch {
	case err != nil:
		return err
	case most > 0 && len(record.Nodes) > most:
		return approval.RefuseFor(ReasonTokenSpent, "token %s allows %d nodes and counts %d; create another one: kubejoin token create --max-nodes 1 --node-name %s", id, most, len(record.Nodes), c.node)
	case record.Spent() && !slices.Contains(record.Nodes, c.node):
		return refuseSpent(record, c.node)
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

func refuseClaimed(c tokens.Claim) error {
	return approval.RefuseFor(ReasonNodeNameClaimed, "node name %s was claimed with token %s at %s; if that machine will not join: kubejoin claim release %s",
		c.Node, c.TokenID, c.Created.UTC().Format(time.RFC3339), c.Node)
}
