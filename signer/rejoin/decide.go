package rejoin

import (
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// Reasons of a [*approval.Refused] that a [Desk] gives.
const (
	// ReasonRejoinOff: nodes may not rejoin, or not those of this node's token.
	ReasonRejoinOff = "RejoinOff"
	// ReasonRejoinTooLate: the certificate expired longer ago than the window.
	ReasonRejoinTooLate = "RejoinTooLate"
	// ReasonKeyNotCurrent: the key is neither one of the last two keys of the node nor its bound key.
	ReasonKeyNotCurrent = "KeyNotCurrent"
	// ReasonNodeReplaced: another Node has the name now.
	ReasonNodeReplaced = admission.ReasonNodeReplaced
	// ReasonNodeNotFound: the Node was deleted.
	ReasonNodeNotFound = admission.ReasonNodeNotFound
	// ReasonRevoked: the credential or the node was revoked.
	ReasonRevoked = revocation.Reason
	// ReasonRejoinBudgetSpent: the node has rejoined as often as the budget allows.
	ReasonRejoinBudgetSpent = "RejoinBudgetSpent"
	// ReasonChallengeUsed: the challenge, or a later one, was used before.
	ReasonChallengeUsed = "ChallengeUsed"
)

// Reasons are all reasons of refusals, with those of an [*Unproven].
var Reasons = []string{
	ReasonRejoinOff, ReasonRejoinTooLate, ReasonKeyNotCurrent, ReasonNodeReplaced, ReasonNodeNotFound, ReasonRevoked, ReasonRejoinBudgetSpent,
	ReasonChallengeUsed, ReasonChallengeInvalid, ReasonCertificateInvalid, ReasonSignatureInvalid,
}

const (
	// tokenTTL is how long the token of a rejoin is valid.
	tokenTTL = 10 * time.Minute
	// minTokenTTL is how long a token must still be valid to be returned again.
	minTokenTTL = time.Minute
)

// facts are what a decision depends on. decide reads nothing else.
type facts struct {
	request verified
	claim   tokens.Claim // the zero Claim if there is none
	nodes   bool         // whether there are Nodes
	nodeUID string       // of the Node; empty if there is none
	window  time.Duration
	budget  int
	now     time.Time
	freshID string // for a new token
	// reserved reports whether only tokens of role control-plane may take the name.
	reserved bool
}

// A grant is the decision to let a node rejoin.
type grant struct {
	claim tokens.Claim // to be written over the claim, if it has not changed
	token tokenSpec
	again bool // the token was granted before, and may exist
}

// A tokenSpec is everything about the token of a rejoin except its secret.
type tokenSpec struct {
	id       string
	expires  time.Time
	replaces tokens.NodeRef
	duration time.Duration
	role     string
}

// tooLate refuses a certificate that expired longer ago than the window.
func tooLate(node string, notAfter time.Time, window time.Duration, now time.Time) error {
	if now.Before(notAfter.Add(window)) {
		return nil
	}
	return approval.RefuseFor(ReasonRejoinTooLate, "the certificate of node %s expired at %s, more than %s ago (--rejoin-window); to let the machine join again: kubejoin token create --replace-node %s",
		node, notAfter.UTC().Format(time.RFC3339), window, node)
}

// identified returns the identity of the node that has signed a request, or why it has none.
func identified(f facts) (tokens.Identity, error) {
	node, i := f.request.node, f.claim.Identity
	switch {
	case f.claim.Limits.Rejoin == tokens.RejoinDeny:
		return i, approval.RefuseFor(ReasonRejoinOff, "token %s, with which node %s joined, does not allow it to rejoin; to let the machine join again: kubejoin token create --replace-node %s", f.claim.TokenID, node, node)
	case len(i.Keys) == 0:
		return i, approval.RefuseFor(ReasonKeyNotCurrent, "kubejoin knows no key of node %s: its last certificate is from before --rejoin-window was set or by another signer, or its claim was released; to let the machine join again: kubejoin token create --replace-node %s", node, node)
	case !i.HasKey(f.request.key):
		return i, approval.RefuseFor(ReasonKeyNotCurrent, "the key is none of the last %d keys of node %s: this is an old copy of its disk, or another machine; to let the machine join again: kubejoin token create --replace-node %s", tokens.MaxIdentityKeys, node, node)
	case f.request.cert == nil && f.request.key != i.BoundKey:
		return i, approval.RefuseFor(ReasonKeyNotCurrent, "the key is not bound to node %s; present the node's certificate", node)
	}
	if err := tooLate(node, i.NotAfter, f.window, f.now); err != nil {
		return i, err
	}
	switch {
	case f.nodes && f.nodeUID == "":
		return i, approval.RefuseFor(ReasonNodeNotFound, "Node %s does not exist: it was deleted; to let the machine join again: kubejoin token create --max-nodes 1 --node-name %s", node, node)
	case f.nodes && i.NodeUID == "":
		return i, approval.RefuseFor(ReasonNodeReplaced, "kubejoin has not seen yet which Node %s is the one of this machine; retry in a minute, or: kubejoin token create --replace-node %s", node, node)
	case f.nodes && i.NodeUID != f.nodeUID:
		return i, approval.RefuseFor(ReasonNodeReplaced, "Node %s was deleted and created again (UID %s before, %s now); to let the machine join again: kubejoin token create --replace-node %s", node, i.NodeUID, f.nodeUID, node)
	case !f.request.made.After(i.Challenge):
		return i, approval.RefuseFor(ReasonChallengeUsed, "the challenge, or a later one, was used before; request another one")
	}
	i.Challenge = f.request.made
	return i, nil
}

// decide returns the token that a node may rejoin with, or refuses with a [*approval.Refused].
//
// A token that was granted and not used is granted again, so that a machine that has lost a response, or asks two
// replicas, gets one token.
func decide(f facts) (grant, error) {
	i, err := identified(f)
	if err != nil {
		return grant{}, err
	}
	again := i.TokenID != "" && i.TokenExpires.Sub(f.now) > minTokenTTL
	if !again {
		i.Rejoins = slices.DeleteFunc(slices.Clone(i.Rejoins), func(at time.Time) bool { return !at.Add(f.window).After(f.now) })
		if len(i.Rejoins) >= f.budget {
			return grant{}, approval.RefuseFor(ReasonRejoinBudgetSpent, "node %s has rejoined %d times within %s (--rejoin-budget %d); to let the machine join again: kubejoin token create --replace-node %s",
				f.request.node, len(i.Rejoins), f.window, f.budget, f.request.node)
		}
		now := f.now.UTC().Truncate(time.Second)
		i.Rejoins = append(i.Rejoins, now)
		i.TokenID, i.TokenExpires = f.freshID, now.Add(tokenTTL)
	}
	g := grant{claim: f.claim.Clone(), again: again}
	g.claim.Identity = i
	g.token = tokenSpec{id: i.TokenID, expires: i.TokenExpires, replaces: tokens.NodeRef{Name: f.request.node, UID: i.NodeUID}, duration: durationOf(f.claim)}
	if f.reserved { // the node has the name already
		g.token.role = tokens.RoleControlPlane
	}
	return g, nil
}

// durationOf returns the limit of the lifetime of the node's certificates, which a rejoin must not lift. A Past that has
// ended counts, too: it ends soon after the certificates, and a node may rejoin for much longer.
func durationOf(c tokens.Claim) time.Duration {
	if c.Released() {
		return c.Past.CertificateDuration
	}
	return c.Limits.CertificateDuration
}

// bound returns the claim with a key that the node binds. It may bind one key, once.
func bound(f facts) (tokens.Claim, error) {
	i, err := identified(f)
	if err != nil {
		return tokens.Claim{}, err
	}
	node := f.request.node
	switch {
	case f.request.cert == nil || !f.now.Before(f.request.cert.NotAfter):
		return tokens.Claim{}, approval.RefuseFor(ReasonRejoinTooLate, "node %s can bind a key only with a certificate that has not expired; rejoin first", node)
	case i.BoundKey != "" && i.BoundKey != f.request.bind:
		return tokens.Claim{}, approval.RefuseFor(ReasonKeyNotCurrent, "another key is bound to node %s; to bind this one, release the claim first: kubejoin claim release %s", node, node)
	}
	c := f.claim.Clone()
	i.BoundKey = f.request.bind
	c.Identity = i
	return c, nil
}
