package admission

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
)

// Reasons of an [*approval.Error] for a machine that has proven its key, and gets no token.
const (
	// ReasonNodeIsReady: the Node is Ready: its machine was just reinstalled, or another machine proves the same key.
	ReasonNodeIsReady = "NodeIsReady"
	// ReasonMachineExpired: the machine has expired.
	ReasonMachineExpired = "MachineExpired"
	// ReasonMachineRevoked: the node was revoked, and so was the key.
	ReasonMachineRevoked = "MachineRevoked"
	// ReasonMachineKeyDiffers: the machine has another key with the same words.
	ReasonMachineKeyDiffers = "MachineKeyDiffers"
)

// HasMachine returns nil if a key has the same words as the key of a node's machine. Otherwise, the error wraps [tokens.ErrNotFound].
// HasMachine reads only the cache, because anyone can make a key.
func (n *Nodes) HasMachine(ctx context.Context, node, key string) error {
	if n == nil {
		return tokens.ErrNotFound
	}
	c, err := n.claim(ctx, node, tokens.Cached)
	if err == nil && !c.Machine.HasWordsOf(key) {
		err = tokens.ErrNotFound
	}
	return err
}

// A Proof is the result of [Nodes.ProveMachine].
type Proof struct {
	Machine tokens.Machine
	// Replaces is the Node that has the name; the token of the machine must replace it. It is zero if there is no Node.
	Replaces tokens.NodeRef
}

// ProveMachine decides whether a machine that has proven a key gets a token for a node name. With made, the token of this Record
// becomes the only one that can take the name. Before is the machine of the first proof: it must not have changed since, or have got
// another token.
//
// The error wraps an [*approval.Error] if the machine gets no token now, and [tokens.ErrNotFound] if the name has no machine with
// this key. Any other error may be temporary.
func (n *Nodes) ProveMachine(ctx context.Context, node, key string, before tokens.Machine, made tokens.Record) (proof Proof, err error) {
	if n == nil {
		return proof, tokens.ErrNotFound
	}
	if n.Node != nil && n.Ready == nil { // a Node that may be Ready must not be replaced
		return proof, errors.New("machines with keys of their own need Nodes.Ready")
	}
	n.once.Do(n.start)
	known := false
	a, err := n.settle(ctx, n.live(ctx, node), func(f facts) plan {
		m := f.claim.Machine
		if proof = (Proof{}); f.nodeUID != "" {
			proof.Replaces = tokens.NodeRef{Name: node, UID: f.nodeUID}
		}
		if known = m.HasWordsOf(key); !known {
			return plan{next: f.claim}
		}
		if made.UID != "" && (m.TokenUID != before.TokenUID || !m.Same(before)) {
			return plan{next: f.claim, err: errOtherProof}
		}
		return planProof(f, key, made)
	})
	if err == nil && !known {
		err = tokens.ErrNotFound
	}
	proof.Machine = a.claim.Machine
	return proof, err
}

// errOtherProof means that the machine has got another token meanwhile. If both were delivered, nothing would delete the earlier one.
var errOtherProof = errors.New("the machine has proven its key twice at the same time, or was changed meanwhile")

// planProof decides about a proven key that has the same words as the key of the machine. The first proof stores the whole key. made is
// as in ProveMachine.
func planProof(f facts, key string, made tokens.Record) plan {
	p, node := plan{next: f.claim.Clone()}, f.claim.Node
	m := &p.next.Machine
	if m.HasKey(key) {
		m.Key = key
	}
	switch {
	case m.Key != key:
		p.err = approval.RefuseFor(ReasonMachineKeyDiffers, "the machine of node %[2]s has another key with the same fingerprint %[1]s; if that key is not your machine's, delete the machine, and add it with its whole key: kubejoin machine delete %[2]s", tokens.Words(key), node)
	case m.Revoked:
		p.err = approval.RefuseFor(ReasonMachineRevoked, "node %s was revoked, and so was the key of its machine; to let a machine join with this name, delete the machine, and add it with a new key: kubejoin machine delete %s", node, node)
	case f.isReserved(node) && m.Role != tokens.RoleControlPlane:
		p.err = approval.RefuseFor(ReasonNodeNameReserved, "node name %s is reserved for the control plane; delete the machine, and add it with --role control-plane: kubejoin machine delete %s", node, node)
	case !f.nodes && f.claim.NodeUID != "":
		p.err = approval.RefuseFor(ReasonNodeExists, "node %s has already joined with its key and now uses its certificate; if its machine was reinstalled: kubejoin claim release %s", node, node)
	case f.nodeUID != "" && !m.Replace && !m.Joined:
		p.err = approval.RefuseFor(ReasonNodeExists, "Node %s exists, and this machine has never joined; to let the machine replace it, delete the machine and add it with --replace: kubejoin machine delete %s", node, node)
	case m.Expired(f.now):
		p.err = approval.RefuseFor(ReasonMachineExpired, "the machine of node %s expired at %s; to let it join again, delete it and add it again: kubejoin machine delete %s", node, m.Expires.Format(time.RFC3339), node)
	case f.ready != "":
		*m = m.Refused(f.now)
		p.err = approval.RefuseFor(ReasonNodeIsReady, "Node %s is still Ready; if its machine was just reinstalled, wait a minute; if another machine has a copy of its key: kubejoin revoke %s", node, node)
	default:
		m.RefusedSince, m.RefusedLast = time.Time{}, time.Time{}
		if made.UID != "" {
			m.TokenID, m.TokenUID = made.Token.ID(), made.UID
		}
	}
	return p
}

// mayTake reports whether a token may take a name that a machine holds. A revoked machine may still have a token that it has not used.
func mayTake(m tokens.Machine, record tokens.Record) bool {
	return m.TokenUID != "" && m.TokenUID == record.UID && !m.Revoked
}

// Evidence returns the key of the machine that holds the name and who added the machine, if the requester has a token. Only the token
// of this machine can claim the name. Otherwise, Evidence returns nil.
func (a *Admitted) Evidence() []string {
	m := a.claim.Machine
	if a.TokenID == "" || m.IsZero() {
		return nil
	}
	return []string{"machine key " + m.Key + " added by " + cmp.Or(m.By, "an unknown user")}
}

func refuseMachine(node string) error {
	return approval.RefuseFor(ReasonNodeNameClaimed, "node name %s belongs to a machine with a key of its own; to give the name to another machine: kubejoin machine delete %s", node, node)
}

// remedy replaces the remedy of a refusal if another token cannot help, because the name belongs to a machine. It reads the cache,
// because the request is refused in any case.
func (n *Nodes) remedy(ctx context.Context, r approval.Request, err error) error {
	e, found := errors.AsType[needsToken](err)
	if !found {
		return err
	}
	node, _ := nodeOf(r)
	c, readErr := n.claim(ctx, node, tokens.Cached)
	switch id := tokens.IDOfUser(r.User); {
	case readErr != nil || c.Machine.IsZero():
		return err
	case !isOwn(r) && (id == "" || id != c.Machine.TokenID):
		return approval.RefuseFor(e.reason, "%s; node name %s belongs to a machine with a key of its own; to give the name to another machine, first run: kubejoin machine delete %[2]s", e.what, node)
	}
	return approval.RefuseFor(e.reason, "%s; run the join script on the machine again; if the machine has joined, run the script with --diagnose", e.what)
}
