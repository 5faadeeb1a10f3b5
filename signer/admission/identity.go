package admission

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// The functions of this file decide how the identity of a node changes: when it renews, rejoins, gets a certificate or binds
// a key. As those of plan.go, they neither read nor write.

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

// planRenewal decides about the claim of a node that authenticates with its certificate, and about the longest lifetime of
// its next one. Zero leaves the lifetime to the signer.
//
// Where there are no Nodes, the claim records that the node has joined, and the token admits no other key from then
// on. A released claim means that the machine is gone, so planRenewal refuses.
//
// Where there are Nodes, a machine may renew although its claim was released. The new certificate lasts as long as
// the claim allowed. Each renewal extends how long the past of the claim is kept.
func planRenewal(f facts, r approval.Request) plan {
	p := plan{next: f.claim, admitted: Admitted{nodeUID: f.nodeUID, Stranger: isStranger(f.claim.Identity, r)}}
	switch c := &p.next; {
	case !c.Released():
		if !f.nodes && c.NodeUID == "" {
			c.NodeUID = tokens.ByCertificate
		}
		p.admitted.Duration = c.Remaining().CertificateDuration
	case !c.Past.Active(f.now):
	case !f.nodes:
		p.err = refuseToken(ReasonNodeNameReleased, joinAgain+"--max-nodes 1 --node-name "+c.Node, "the claim on node name %s was released, so its certificate cannot be renewed", c.Node)
	case c.Past.CertificateDuration > 0 || c.Past.Node != (tokens.NodeProperties{}):
		c.Past = c.Past.Renewed(f.now)
		p.admitted.Duration = c.Past.CertificateDuration
	}
	return p
}

// joinAgain begins the remedy of a node whose certificate does not help it.
const joinAgain = "to let the machine join again: kubejoin token create "

// provesNode returns an [*approval.Error] unless the claim of the node has the key of the proof. by is the fingerprint of the
// certificate of the proof; empty if it is not known.
func (f facts) provesNode(proof approval.Rejoin, by string) error {
	c, i, node := f.claim, f.claim.Identity, f.claim.Node
	refuse := func(reason, format string, args ...any) error {
		return refuseToken(reason, joinAgain+"--replace-node "+node, format, args...)
	}
	bound := proof.NotAfter.IsZero()
	_, current := authenticated(i, &proof, by)
	switch notAfter := proof.NotAfter; {
	case f.window <= 0:
		return refuse(ReasonRejoinOff, "nodes cannot rejoin: kubejoin runs without --rejoin-window")
	case c.Remaining().Rejoin == tokens.RejoinDeny:
		return refuse(ReasonRejoinOff, "the token with which node %s joined does not allow it to rejoin%s", node, byRule(c.Limits, "rejoin"))
	case !bound && !f.now.Before(notAfter.Add(f.window)):
		return refuse(ReasonRejoinTooLate, "the certificate of node %s expired at %s, more than %s ago (--rejoin-window)", node, notAfter.UTC().Format(time.RFC3339), f.window)
	case len(i.Credentials) == 0:
		return refuse(ReasonKeyNotCurrent, "kubejoin knows no key of node %s: its last certificate is from before --rejoin-window was set or by another signer, or its claim was released", node)
	case bound && !current:
		return refuse(ReasonKeyNotCurrent, "the key is not bound to node %s", node)
	case !bound && !current:
		return refuse(ReasonKeyNotCurrent, "the key is not a current one of node %s: this machine has an old copy of the disk, or is another machine", node)
	case !f.now.Before(i.NotAfter.Add(f.window)):
		return refuse(ReasonRejoinTooLate, "the last certificate of node %s expired at %s, more than %s ago (--rejoin-window)", node, i.NotAfter.UTC().Format(time.RFC3339), f.window)
	case f.nodes && f.nodeUID == "":
		return refuseToken(ReasonNodeNotFound, joinAgain+"--max-nodes 1 --node-name "+node, "Node %s does not exist: it was deleted", node)
	case f.nodes && i.NodeUID == "":
		return approval.RefuseFor(ReasonNodeReplaced, "kubejoin has not stored the UID of Node %s yet; retry in a minute", node)
	case f.nodes && i.NodeUID != f.nodeUID:
		return refuse(ReasonNodeReplaced, "Node %s was deleted and created again (UID %s before, %s now)", node, i.NodeUID, f.nodeUID)
	}
	return nil
}

// planRejoin decides about a node that has proven a key in place of a valid certificate, before its new certificate. Its
// claim keeps the limits of the token that admitted it. Admit calls planRejoin before the certificate is signed, and
// StoreIdentity again in the write that the certificate depends on.
//
// The key that has proven the node stays current, so that a machine that has lost a response can retry. While the new
// certificate is valid, another request for the same key does not count.
func planRejoin(f facts, r approval.Request) plan {
	i, node, key := f.claim.Identity, f.claim.Node, pkcs10.KeyID(r.CSR)
	p := plan{next: f.claim, err: f.provesNode(*r.Rejoin, fingerprintOf(r))}
	switch {
	case p.err != nil:
	case key == r.Rejoin.Key || key == i.Bound.Key:
		p.err = approval.RefuseFor(ReasonKeyReused, "the request of node %s is for a key that it has used before; make a new key", node)
	case i.Last().Key == key && len(i.Rejoins) > 0 && f.now.Before(i.NotAfter): // again
	default:
		i.Rejoins = slices.DeleteFunc(slices.Clone(i.Rejoins), func(at time.Time) bool { return !at.Add(f.window).After(f.now) })
		if len(i.Rejoins) >= f.budget {
			p.err = refuseToken(ReasonRejoinBudgetSpent, joinAgain+"--replace-node "+node, "node %s has rejoined %d times within %s (--rejoin-budget %d)",
				node, len(i.Rejoins), f.window, f.budget)
		}
		i.Rejoins = append(i.Rejoins, f.now.UTC().Truncate(time.Second))
	}
	if p.err != nil {
		return p
	}
	p.admitted = Admitted{nodeUID: f.nodeUID, Fingerprint: i.Last().Fingerprint, Duration: f.claim.Remaining().CertificateDuration} // even if its Past has ended: nodes rejoin for much longer
	if r.Rejoin.NotAfter.IsZero() {
		p.admitted.BoundBy = i.Bound.Fingerprint
	}
	p.next.Identity = i
	switch c := &p.next; {
	case c.Past.CertificateDuration > 0:
		c.Past = c.Past.Renewed(f.now)
	case !c.Released() && !f.nodes:
		c.NodeUID = tokens.ByCertificate // as in planRenewal
	}
	return p
}

// planBinding decides about a key that a node binds with its valid certificate.
func planBinding(f facts, by tokens.Credential, key string) plan {
	p := plan{next: f.claim, err: f.provesNode(approval.Rejoin{Key: by.Key, NotAfter: f.now}, by.Fingerprint)}
	node, bound := f.claim.Node, f.claim.Identity.Bound.Key
	_, used := f.claim.Identity.Find(key, "")
	switch {
	case p.err != nil:
	case used:
		p.err = approval.RefuseFor(ReasonKeyReused, "the key to bind is the key of a certificate of node %s; make a new key", node)
	case bound == key:
	case bound != "":
		p.err = approval.RefuseFor(ReasonKeyNotCurrent, "another key is bound to node %s; if that key is lost, run: kubejoin claim release %s, and wait until the node has renewed its certificate", node, node)
	default:
		p.next.Identity.Bound = tokens.Credential{Key: key, Fingerprint: by.Fingerprint}
	}
	return p
}

// planCertificate decides about the claim of a node for which a certificate was made. made is the identity that has only
// this certificate.
func planCertificate(f facts, r approval.Request, a Admitted, made tokens.Identity) plan {
	p := plan{next: f.claim, admitted: a}
	switch {
	case a.TokenID != "" && f.claim.TokenID != a.TokenID:
		p.err = errClaimLost
	case r.Rejoin != nil:
		p = planRejoin(f, r)
	}
	if p.err != nil {
		return p
	}
	if isOwn(r) {
		p.admitted.BoundBy = f.claim.Identity.Bound.Fingerprint
	}
	p.next = withCertificate(p.next, made, r)
	if past := &p.next.Past; p.next.Released() && isOwn(r) && (past.Rejoin != "" || past.Node != (tokens.NodeProperties{})) {
		*past = past.Lasting(made.NotAfter) // its Node may not exist, so the Identity may end sooner
	}
	return p
}

// errClaimLost means that another token has taken the claim between admission and certificate. The request starts over.
var errClaimLost = errors.New("another token has taken the claim")

// withCertificate returns a claim after a certificate was made for its node. first is the identity that has only this
// certificate.
//
// A request that a credential of the identity has authenticated continues the identity. Another certificate of the node leaves
// it as it is: it may be that of a machine that was replaced. Any other requester, for example a token, brings a new machine.
// The identity then starts with first, and the machine that had the name before cannot rejoin.
func withCertificate(c tokens.Claim, first tokens.Identity, r approval.Request) tokens.Claim {
	by, own := authenticated(c.Identity, r.Rejoin, fingerprintOf(r))
	switch {
	case c.Remaining().Rejoin == tokens.RejoinDeny:
		// The claim must last as long as any certificate of the machine: see [tokens.Claim.PastAfterRelease].
		end := first.NotAfter
		if c.Identity.NotAfter.After(end) {
			end = c.Identity.NotAfter
		}
		c.Identity = tokens.Identity{NodeUID: first.NodeUID, NotAfter: end}
	case isOwn(r) && c.Identity.IsZero():
		if by := (tokens.Credential{Fingerprint: fingerprintOf(r)}); by.Fingerprint != "" { // the machine may not get the response
			first.Credentials = []tokens.Credential{by, first.Last()}
		}
		c.Identity = first
	case !isOwn(r):
		made := first.Last()
		if first.TokenID != "" && first.TokenID == c.Identity.TokenID { // the same key: the machine may have got only the certificate before
			first.Credentials = appended(slices.DeleteFunc(slices.Clone(c.Identity.Credentials), func(other tokens.Credential) bool { return other.Key != made.Key }), made)
		}
		c.Identity = first
	case own:
		c.Identity = continued(c.Identity, by, first)
	}
	return c
}

// authenticated returns the credential of an identity that authenticated a request: the key of a proof, or the certificate
// with a fingerprint.
func authenticated(i tokens.Identity, proof *approval.Rejoin, fingerprint string) (by tokens.Credential, found bool) {
	switch {
	case proof == nil:
		return i.Find("", fingerprint)
	case proof.NotAfter.IsZero():
		return i.Bound, proof.Key != "" && proof.Key == i.Bound.Key
	}
	return i.Find(proof.Key, fingerprint)
}

// fingerprintOf returns the fingerprint of the certificate that authenticated a request; empty if it is not known.
func fingerprintOf(r approval.Request) string {
	if all := revocation.SubjectOf(r.User, r.Groups, r.Extra).Fingerprints; len(all) == 1 {
		return string(all[0])
	}
	return ""
}

// isStranger reports whether kubejoin knows which certificate authenticated a node, and the identity does not have it.
func isStranger(i tokens.Identity, r approval.Request) bool {
	by := fingerprintOf(r)
	_, own := authenticated(i, r.Rejoin, by)
	return !own && len(i.Credentials) > 0 && by != ""
}

// continued returns an identity with another certificate. It keeps the certificate that authenticated the request, and those
// that kubejoin has issued for it before: the machine may hold any of them. If the bound key authenticated the request, it
// keeps the last certificate with another key than the new one.
func continued(i tokens.Identity, by tokens.Credential, next tokens.Identity) tokens.Identity {
	made, kept := next.Last(), i.Credentials
	switch {
	case by == i.Bound:
		kept = slices.DeleteFunc(slices.Clone(kept), func(c tokens.Credential) bool { return c.Key == made.Key })
		kept = kept[max(0, len(kept)-1):]
	case by != kept[0]:
		kept = []tokens.Credential{by}
	}
	i.Credentials = appended(kept, made)
	i.NodeUID, i.NotAfter = cmp.Or(next.NodeUID, i.NodeUID), next.NotAfter
	return i
}

// appended returns a list with another certificate. Of a full list, it drops the second one: the machine has used the first.
func appended(list []tokens.Credential, made tokens.Credential) []tokens.Credential {
	list = append(slices.Clone(list), made)
	if len(list) > tokens.MaxCredentials {
		list = slices.Delete(list, 1, 2)
	}
	return list
}
