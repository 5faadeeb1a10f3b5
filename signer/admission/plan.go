package admission

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
)

// The functions of this file decide how claims and counts change. They neither read nor write: they are functions of facts
// and requests.

// rules are the settings of [Nodes] that decide, and the time.
type rules struct {
	nodes     bool // whether there are Nodes
	existing  bool // Nodes.AllowExisting
	reserved  []string
	retention time.Duration
	window    time.Duration // Nodes.RejoinWindow
	budget    int
	now       time.Time
}

// A plan is what becomes of the claim of a name, and of the request for the name.
type plan struct {
	next     tokens.Claim // also if the request is refused
	change   string       // how a token gets the name or another key; empty if neither
	vacates  bool         // the claim belongs to a Node that was deleted
	lost     bool         // the token counted the name, and another one has it
	admitted Admitted     // if err is nil
	err      error
}

// Values of plan.change, and of label change in metric kubejoin_claim_changes_total.
const (
	made       = "made"        // the name is free
	takenOver  = "taken_over"  // the token replaces the Node of another token's claim
	anotherKey = "another_key" // the claim gets another key
)

// planAll decides about the bids for a token whose facts were read, and returns the token with their names in its count. A
// name that is already counted keeps its slot: another replica may handle the same request. The last slot brings the
// token's expiration forward. A bid that has lost its name to another token, or to an object that is not a claim, gives its
// slot back. r is from after the reads, during which the token may have expired.
func planAll(r rules, record tokens.Record, all []*bid, seen []facts) (after tokens.Record, plans []plan) {
	after = record.Clone()
	var lost []string
	for i, f := range seen {
		node, counts := f.claim.Node, slices.Contains(after.Nodes, f.claim.Node)
		var p plan
		switch {
		case f.err != nil:
			p = plan{next: f.claim, err: f.err}
		case record.Limits.IsZero():
			p = planFree(f)
		default:
			p = planClaim(f, record, all[i].request)
		}
		switch err := r.check(record, all[i].request, node); {
		case p.err == nil && err != nil: // since allows
			p = plan{next: f.claim, err: err}
		case p.err == nil && !counts && after.Spent(): // by another bid
			p = plan{next: f.claim, err: refuseSpent(after, node)}
		case p.err == nil && !counts && record.Limits.NodeLimit() > 0:
			after.Nodes = append(after.Nodes, node)
		case p.err != nil && counts && !f.ended && (f.foreign && f.claim.UID == "" && f.nodeUID == "" || !f.claim.Released() && f.claim.TokenID != record.Token.ID()):
			p.lost, lost = true, append(lost, node)
		}
		plans = append(plans, p)
	}
	if end := r.now.Add(r.retention); after.Spent() && !record.Spent() && (record.Expires.IsZero() || record.Expires.After(end)) {
		after.Expires = end.UTC().Truncate(time.Second)
	}
	after.Nodes = slices.DeleteFunc(after.Nodes, func(name string) bool { return slices.Contains(lost, name) })
	return after, plans
}

// planClaim decides about the claim of a name that a token with limits requests. A token that had a claim on the name gets
// no other one.
func planClaim(f facts, record tokens.Record, r approval.Request) (p plan) {
	id, node, key, claim := record.Token.ID(), f.claim.Node, pkcs10.KeyID(r.CSR), f.claim.Clone()
	own := claim.TokenID == id
	p.next = claim
	if !claim.Machine.IsZero() && !mayTake(claim.Machine, record) {
		p.err = refuseMachine(node)
		return p
	}
	replaces, err := f.replaces(record.Limits.Replaces)
	if err != nil {
		p.err = err
		return p
	}
	// begin returns a new claim, written over the one that the name has. It keeps an Identity until
	// [Nodes.StoreIdentity] decides about it: nothing was issued yet.
	begin := func(past tokens.ReleasedClaim, identity tokens.Identity) tokens.Claim {
		return tokens.Claim{
			Node: node, TokenID: id, Limits: record.Limits.Kept(), Keys: []string{key}, ReadyBefore: f.ready,
			UID: claim.UID, Version: claim.Version, Created: claim.Created, Past: past, Identity: identity, Machine: claim.Machine,
		}.Clone()
	}
	past := claim.PastAfterRelease(f.now, 0)
	// If existing Nodes are allowed, the machine of the claim keeps it.
	switch p.vacates = f.vacates() && !(f.existing && own && claim.HasKey(key)); {
	case f.ended && (own || claim.Released() || replaces), own && p.vacates:
		p.err = refuseJoined(id, node, replaces)
	case f.foreign && claim.UID == "":
		p.err = approval.RefuseFor(ReasonNodeNameNotAllowed, "node name %s is not available: an object that is not a claim has this name: %v", node, tokens.ErrExists)
	case !own && !claim.Machine.IsZero() && f.ready != "":
		p.err = approval.RefuseFor(ReasonNodeIsReady, "Node %s was not Ready when the machine proved its key, and is Ready now; if another machine has a copy of its key: kubejoin revoke %s", node, node)
	case claim.Released():
		p.change, p.next = made, begin(claim.Past, claim.Identity)
	case !own && replaces:
		p.change, p.next = takenOver, begin(past, claim.Identity)
	case p.vacates && f.ended:
		p.err = refuseJoined(id, node, replaces)
	case p.vacates:
		p.change, p.next = made, begin(past, tokens.Identity{})
	case (own || !claim.Machine.IsZero()) && claim.NodeUID != "" && !f.nodes:
		p.err = approval.RefuseFor(ReasonNodeExists, "node %s has already joined with token %s and now uses its certificate; if that machine is gone: kubejoin claim release %s", node, claim.TokenID, node)
	case !own && !claim.Machine.IsZero(): // the machine starts over with another token
		p.change, p.next = takenOver, begin(past, claim.Identity)
	case !own, claim.NodeUID != "" && !replaces && !claim.HasKey(key): // the Node exists, and existing Nodes are allowed
		p.err = refuseClaimed(claim)
	case replaces && (claim.ReadyAgain || f.ready != "" && f.ready != claim.ReadyBefore):
		p.next.ReadyAgain = true // never reset, even if the Node changes again
		p.err = refuseToken(ReasonNodeExists, "to replace it again: kubejoin token create --replace-node "+node, "another machine has already replaced Node %s and became Ready", node)
	case !claim.HasKey(key) && len(claim.Keys) >= tokens.MaxKeys:
		p.err = approval.RefuseFor(ReasonTooManyKeys, "node name %s was already requested with token %s and %d other keys, but no Node has registered; if only one machine uses this name: kubejoin claim release %s",
			node, id, len(claim.Keys), node)
	case !claim.HasKey(key):
		p.change, p.next.Keys = anotherKey, append(claim.Keys, key)
	}
	if p.err != nil {
		if p.vacates {
			p.next = claim.AfterRelease(past)
		}
		return p
	}
	if uid := r.UID; uid != "" && !slices.Contains(p.next.Requests, uid) {
		p.next.Requests = tokens.NewestRequests(append(p.next.Requests, uid))
	}
	if p.next.NodeUID == "" { // the rules that apply when the node joins, perhaps after a change of the rules
		p.next.Limits.Rules = record.Limits.Kept().Rules
	}
	if claim.TokenUID != record.UID && p.next.NodeUID == "" { // another token with this ID; only workers may have ReadyAfter
		p.next.Limits.Node, p.next.Limits.Role = record.Limits.Node, record.Limits.Role
	}
	p.next.TokenUID, p.next.Machine.Joined = record.UID, !claim.Machine.IsZero()
	p.admitted = Admitted{Duration: record.Limits.Strictest().CertificateDuration, TokenID: id, Keys: len(p.next.Keys)}
	if replaces {
		p.admitted.nodeUID = f.nodeUID
	}
	return p
}

// planFree decides about a name for a requester that holds no claim. The name then belongs to it: the past of an old claim
// does not bind its renewals.
func planFree(f facts) (p plan) {
	p.next, p.vacates = f.claim, f.vacates()
	switch _, err := f.replaces(tokens.NodeRef{}); {
	case !f.claim.Machine.IsZero():
		p.err = refuseMachine(f.claim.Node)
	case err != nil:
		p.err = err
	case !p.vacates && !f.claim.Released():
		p.err = refuseClaimed(f.claim)
	default:
		p.next = f.claim.AfterRelease(tokens.ReleasedClaim{})
	}
	return p
}

// vacates reports whether the claim ends because its Node had registered and is gone. The claim cleaner also releases claims
// of Nodes that are gone, a little later.
func (f facts) vacates() bool {
	return f.nodes && f.claim.NodeUID != "" && f.nodeUID == ""
}

// restrict restores from the claims what the record has lost, and reports whether it changed the record. It restores
// limits and counted names, even from claims of an earlier token with this ID. It never restores a Node to replace, a role or
// labels, because these grant something, nor a limit of a rule, because that is not the token's.
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
		if l.Node == (tokens.NodeProperties{}) {
			l.Node = c.Limits.Node
			l.Node.Labels = ""
		}
	}
	if l.Node != before.Node && l.Check() != nil { // without labels, or with the role of the token
		l.Node.ReadyAfter = ""
	}
	changed = !l.Equal(before)
	if l.NodeLimit() == 0 {
		return changed
	}
	// If there are more claims than the limit allows, one of them was never counted. It is not known which, so all of them
	// count, and the token admits no more machine.
	lost := len(record.Nodes) == 0
	counted := make(map[string]bool, len(record.Nodes))
	for _, name := range record.Nodes {
		counted[name] = true
	}
	for _, registered := range []bool{true, false} {
		for _, c := range claims {
			if registered == (c.NodeUID != "") && (lost || !record.Spent()) && !counted[c.Node] {
				record.Nodes = append(record.Nodes, c.Node)
				changed = true
			}
		}
	}
	return changed
}

// least returns the lesser of two limits. Zero means unlimited.
func least[T int | time.Duration](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// replaces reports whether a token replaces the Node that has the name now. It refuses the name of any other Node. If
// existing Nodes are allowed, it allows that name unless the token replaces another Node of the same name.
func (f facts) replaces(ref tokens.NodeRef) (bool, error) {
	node := f.claim.Node
	switch {
	case f.nodeUID == "":
		return false, nil
	case ref == tokens.NodeRef{Name: node, UID: f.nodeUID}:
		return true, nil
	case ref.Name == node:
		return false, refuseToken(ReasonNodeReplaced, "create another token: kubejoin token create --replace-node "+node,
			"the token may replace Node %s with UID %s, but this Node now has UID %s", node, ref.UID, f.nodeUID)
	case f.existing:
		return false, nil
	}
	return false, refuseToken(ReasonNodeExists, fmt.Sprintf("to replace its machine: kubejoin token create --replace-node %s; if its machine no longer exists: kubectl delete node %[1]s", node), "Node %s already exists", node)
}

// allows refuses a request that the token does not allow, or has no slot for.
func (r rules) allows(record tokens.Record, b bid) error {
	id, most := record.Token.ID(), record.Limits.NodeLimit()
	if b.tokenUID != "" && b.tokenUID != record.UID {
		return fmt.Errorf("token %s was replaced while kubejoin handled this request", id)
	}
	err := r.check(record, b.request, b.node)
	switch {
	case err != nil:
		return err
	case most > 0 && len(record.Nodes) > most:
		return refuseToken(ReasonTokenSpent, anotherFor(b.node), "token %s allows %d nodes%s and counts %d", id, most, byRule(record.Limits, "max-nodes"), len(record.Nodes))
	case record.Spent() && !slices.Contains(record.Nodes, b.node):
		return refuseSpent(record, b.node)
	}
	return nil
}

// check refuses a request that the token itself does not allow. It does not check the count.
func (r rules) check(record tokens.Record, asked approval.Request, node string) error {
	id := record.Token.ID()
	switch l := record.Limits; {
	case record.Expired(r.now):
		return refuseToken(ReasonTokenExpired, another, "token %s expired at %s", id, record.Expires.UTC().Format(time.RFC3339))
	case record.Problem != nil:
		return approval.RefuseFor(ReasonTokenRevoked, "token %s is malformed: %v", id, record.Problem)
	case !record.Authentication:
		return approval.RefuseFor(ReasonTokenRevoked, "token %s does not have usage authentication", id)
	case !asked.Created.IsZero() && record.Created.After(asked.Created):
		return approval.RefuseFor(ReasonTokenReplaced, "token %s was created at %s, after this request; the request is for an earlier token with the same ID", id, record.Created.UTC().Format(time.RFC3339))
	case l.Problem != nil:
		return approval.RefuseFor(ReasonTokenLimitsMalformed, "token %s has malformed limits and admits no node: %v", id, l.Problem)
	case !l.AllowsName(node):
		return refuseName(l, id, node)
	case r.isReserved(node) && l.Strictest().Role != tokens.RoleControlPlane:
		if rule := l.LimitedBy()["role"]; rule != "" {
			return approval.RefuseFor(ReasonNodeNameReserved, "node name %s is reserved for the control plane, and rule %s of --token-limits makes token %s one for workers", node, rule, id)
		}
		return refuseReserved(node)
	}
	return nil
}

func refuseName(l tokens.Limits, id, node string) error {
	names, rule := l.NamesInstead(node)
	const most = 5
	allowed := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		allowed += fmt.Sprintf(" and %d more", len(names)-most)
	}
	if rule != "" {
		return approval.RefuseFor(ReasonNodeNameNotAllowed, "rule %s of --token-limits does not allow node name %s with token %s, only %s; give the machine another name, or change the rule", rule, node, id, allowed)
	}
	return refuseToken(ReasonNodeNameNotAllowed, anotherFor(node), "token %s does not allow node name %s, only %s", id, node, allowed)
}

// byRule names the rule that sets a limit; it is empty if the token does.
func byRule(l tokens.Limits, field string) string {
	if rule := l.LimitedBy()[field]; rule != "" {
		return " (by rule " + rule + " of --token-limits)"
	}
	return ""
}

func refuseSpent(record tokens.Record, node string) error {
	most := record.Limits.NodeLimit()
	nodes, joined := "nodes", fmt.Sprintf("%d have", len(record.Nodes))
	if most == 1 && len(record.Nodes) == 1 {
		nodes, joined = "node", record.Nodes[0]+" has"
	}
	return refuseToken(ReasonTokenSpent, anotherFor(node), "token %s is spent: it allows %d %s%s, and %s joined with it", record.Token.ID(), most, nodes, byRule(record.Limits, "max-nodes"), joined)
}

func (r rules) isReserved(node string) bool {
	return slices.ContainsFunc(r.reserved, func(pattern string) bool { return tokens.MatchNodeName(pattern, node) })
}

func refuseReserved(node string) error {
	return refuseToken(ReasonNodeNameReserved, "create a token for it: kubejoin token create --role control-plane --max-nodes 1 --node-name "+node, "node name %s is reserved for the control plane", node)
}

func refuseJoined(id, node string, replaces bool) error {
	flag := "--max-nodes 1 --node-name"
	if replaces {
		flag = "--replace-node"
	}
	return refuseToken(ReasonTokenSpent, "create another token: kubejoin token create "+flag+" "+node, "node %s has already joined with token %s, and its Node or claim was deleted since", node, id)
}

// another is the remedy of a token that no longer works, and anotherFor that for one node name.
const another = "create another one: kubejoin token create"

func anotherFor(node string) string { return another + " --max-nodes 1 --node-name " + node }

// A needsToken is a refusal whose remedy is another token.
type needsToken struct {
	error        // the [*approval.Error], with its remedy
	reason, what string
}

func (e needsToken) Unwrap() error { return e.error }

// refuseToken is [approval.RefuseFor] with a remedy. It is for another token, which cannot take the name of a machine: see
// [Nodes.remedy].
func refuseToken(reason, remedy, format string, args ...any) error {
	what := approval.RefuseFor(reason, format, args...).Error()
	return needsToken{approval.RefuseFor(reason, "%s; %s", what, remedy), reason, what}
}

func refuseClaimed(c tokens.Claim) error {
	return approval.RefuseFor(ReasonNodeNameClaimed, "node name %s was claimed with token %s at %s; if that machine will not join: kubejoin claim release %s",
		c.Node, c.TokenID, c.Created.UTC().Format(time.RFC3339), c.Node)
}
