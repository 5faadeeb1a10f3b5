// Package admission decides which machine may have which node name, and enforces the limits of bootstrap tokens.
//
// [Nodes] checks every request for a node's client certificate between approval and signing, regardless of who
// approved it. A token with limits leaves a [tokens.Claim] for each name that it takes. docs/invariants.md lists
// the invariants that hold under concurrency.
package admission

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
)

// Reasons of an [*approval.Error] that [Nodes] gives.
const (
	// ReasonTokenSpent: as many nodes have joined with the token as its limits allow.
	ReasonTokenSpent = "TokenSpent"
	// ReasonTokenExpired: the token is past its expiration.
	ReasonTokenExpired = "TokenExpired"
	// ReasonTokenRevoked: the token does not exist (any more), is malformed, or may not authenticate.
	ReasonTokenRevoked = "TokenRevoked"
	// ReasonTokenReplaced: the token was created after the request, so it is another token with the same ID.
	ReasonTokenReplaced = "TokenReplaced"
	// ReasonTokenLimitsMalformed: the limits of the token cannot be read.
	ReasonTokenLimitsMalformed = "TokenLimitsMalformed"
	// ReasonNodeNameNotAllowed: the token does not allow the name, or no Node may have it.
	ReasonNodeNameNotAllowed = "NodeNameNotAllowed"
	// ReasonNodeNameReserved: only tokens of role control-plane may take the name.
	ReasonNodeNameReserved = "NodeNameReserved"
	// ReasonNodeNameClaimed: another token, or a machine with a key of its own, holds the name.
	ReasonNodeNameClaimed = "NodeNameClaimed"
	// ReasonNodeNameReleased: the node renews, but its claim was released. Only where there are no Nodes
	// (standalone).
	ReasonNodeNameReleased = "NodeNameReleased"
	// ReasonNodeExists: a Node has the name, or a machine of this name has already joined.
	ReasonNodeExists = "NodeExists"
	// ReasonNodeReplaced: the Node that the token may replace has another UID now.
	ReasonNodeReplaced = "NodeReplaced"
	// ReasonTooManyKeys: machines of this name have already used [tokens.MaxKeys] other keys.
	ReasonTooManyKeys = "TooManyKeys"
	// ReasonNodeNotFound: the node renews, but its Node does not exist. The request waits.
	ReasonNodeNotFound = "NodeNotFound"
	// ReasonNotForBootstrap: a bootstrap token is only for the client certificate of a node.
	ReasonNotForBootstrap = "NotForBootstrapToken"
	// ReasonNotForRejoin: a node without a valid certificate gets only its own client certificate.
	ReasonNotForRejoin = "NotForRejoin"
)

// DefaultRetention is how long a spent token is kept before it expires.
const DefaultRetention = time.Hour

// MaxAge is how long a signer may use an [Admitted]. A token without limits may be up to [tokens.MaxAge] old when it
// admits. After such a token was disabled or deleted, a machine may get a certificate for the sum of both times.
const MaxAge = time.Second

// MaxDelivery is how long after an admission the certificate of a bootstrap token may leave without another one.
const MaxDelivery = 3 * time.Second

// A Nodes decides which requester may have which node name. It checks every request for a node's client certificate
// between approval and signing, regardless of who approved it. The zero Nodes allows renewals and refuses every
// bootstrap token. A Nodes must not be copied after first use.
//
//   - The name of an existing Node is not available to another machine, unless AllowExisting is set or the token
//     replaces that Node.
//   - A bootstrap token admits as many nodes, under such names, as its [tokens.Limits] allow. A token with limits
//     leaves a claim for each name. One token at a time holds a name.
//   - A node renews its certificate while its Node exists. The claim limits the lifetime of the new certificate.
type Nodes struct {
	// Tokens and Claims store the bootstrap tokens and the claims. If one of them is nil, every bootstrap token is
	// refused.
	Tokens tokens.Store
	Claims tokens.Claims
	// Node returns the UID of a Node, read live and not from a cache. The error wraps [tokens.ErrNotFound] if the
	// Node does not exist. Nil means that there are no Nodes (standalone).
	Node func(ctx context.Context, name string) (uid string, err error)
	// Ready identifies the period of being Ready that a Node is in, as the Ready of cleaner.Claims does. A new period
	// means that a machine has replaced the Node, although its UID stays the same. A token that replaces the Node
	// then admits no more keys. The error is as for Node. With nil, such a token admits as many keys as a token for a
	// new node. If there are Nodes, ProveMachine fails without Ready.
	Ready func(ctx context.Context, name string) (period string, err error)
	// AllowExisting allows the names of Nodes that exist, as kube-controller-manager does.
	AllowExisting bool
	// Reserved lists names and patterns, as in [tokens.Limits], that only tokens of role control-plane may take.
	Reserved []string
	// Retention is how long a spent token is kept. During this time the node can fetch its certificate, and other
	// machines learn why they are refused. Zero means [DefaultRetention].
	Retention time.Duration
	// RejoinWindow is how long after the end of its certificate a node may rejoin. [Nodes.StoreIdentity] then stores
	// the identity of each node that gets a certificate. Zero stores none.
	RejoinWindow time.Duration
	// RejoinBudget is how often a node may rejoin within RejoinWindow, at most [tokens.MaxRejoins]. Zero is
	// [DefaultRejoinBudget].
	RejoinBudget int
	// Logger logs changes of claims; nil logs nothing.
	Logger *slog.Logger
	// Registerer registers the kubejoin_claim_* metrics; nil registers none.
	Registerer prometheus.Registerer
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	dry bool // dry run: nothing is written

	once   sync.Once
	log    *slog.Logger
	counts *prometheus.CounterVec

	slots batch.Queue[string, *bid] // by token ID
}

// DryRun returns a Nodes that decides as n does and writes nothing: it makes no claim and counts no name. So it also
// admits a second request on a token for one node, unless the claim of the first request exists.
func (n *Nodes) DryRun() *Nodes {
	if n == nil {
		return nil
	}
	return &Nodes{
		Tokens: n.Tokens, Claims: n.Claims, Node: n.Node, Ready: n.Ready, AllowExisting: n.AllowExisting, Reserved: n.Reserved,
		Retention: n.Retention, RejoinWindow: n.RejoinWindow, RejoinBudget: n.RejoinBudget, Now: n.Now, dry: true,
	}
}

// A CheckedRequest is a request that has passed [Check]. The zero CheckedRequest is refused.
type CheckedRequest struct{ request approval.Request }

// Check validates what every signer requires of a request. Its error is an [*approval.Error]. No later step repeats
// these checks.
func Check(r approval.Request) (CheckedRequest, error) {
	if err := pkcs10.Check(r.CSR); err != nil {
		return CheckedRequest{}, err
	}
	if err := approval.CheckSubject(r, approval.ReasonValidation); err != nil {
		return CheckedRequest{}, err
	}
	r.Groups, r.Usages = slices.Clone(r.Groups), slices.Clone(r.Usages)
	return CheckedRequest{r}, nil
}

// Request returns the request that was checked. The caller must not change it.
func (r CheckedRequest) Request() approval.Request { return r.request }

// An Admitted is the result of [Nodes.Admit] for the certificate of a request.
type Admitted struct {
	// Duration is the longest lifetime that the certificate may have; zero leaves it to the signer.
	Duration time.Duration
	// TokenID is the token that claimed the name for this request; empty if none did, for example on renewal.
	TokenID string
	// Keys is how many keys have been admitted on the claim. More than one means that the machine started over, or
	// that two machines use the name and the token.
	Keys int
	// Fingerprint is that of the last certificate of a node that rejoins. A revocation of this certificate bars the
	// node.
	Fingerprint string
	// BoundBy is the fingerprint of the certificate that bound the key of a node. A revocation of this certificate bars the
	// key: call [Nodes.Unbind].
	BoundBy string
	// Stranger is true if the claim of a node that renews does not have the certificate that authenticated the request, for
	// example because the machine was replaced.
	Stranger bool

	nodeUID string       // the UID of the Node that renews or is replaced; empty for a new Node
	claim   tokens.Claim // the claim of the name, as read or stored
}

// Admit allows or refuses the certificate of a request. If the token has limits, it also claims the node name. It may
// be called any number of times for the same request. If the request exceeds a limit or waits for its Node, the error
// wraps an [*approval.Error]. Any other error may be temporary.
func (n *Nodes) Admit(ctx context.Context, checked CheckedRequest) (*Admitted, error) {
	if n == nil {
		n = &Nodes{}
	}
	n.once.Do(n.start)
	a, err := n.admit(ctx, checked.request)
	if err != nil {
		return nil, n.remedy(ctx, checked.request, err)
	}
	return &a, nil
}

func (n *Nodes) admit(ctx context.Context, r approval.Request) (a Admitted, err error) {
	if r.CSR == nil {
		return a, approval.Refuse("no certificate request given")
	}
	id, bootstrap := strings.CutPrefix(r.User, tokens.BootstrapUserPrefix)
	node, ok := nodeOf(r)
	switch {
	case r.Rejoin != nil && ok && isOwn(r):
		return n.admitRejoin(ctx, r, node)
	case r.Rejoin != nil:
		return a, approval.RefuseFor(ReasonNotForRejoin, "an expired certificate, or a key that is bound to a node, authenticates %s only for its own client certificate", r.User)
	case !ok && bootstrap:
		return a, approval.RefuseFor(ReasonNotForBootstrap, "%s requests a certificate of signer %s with subject %q; a bootstrap token is only for client certificates of nodes", r.User, r.SignerName, r.CSR.Subject)
	case !ok && (!isOwn(r) || n.Node != nil):
		return a, nil
	case !ok: // for example a serving certificate: the claim does not limit its lifetime
		_, err = n.admitRenewal(ctx, r, strings.TrimPrefix(r.User, tokens.NodeUserPrefix))
		return a, err
	case isOwn(r):
		return n.admitRenewal(ctx, r, node)
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return a, approval.RefuseFor(ReasonNodeNameNotAllowed, "invalid subject: %v", err)
	}
	if tokens.IsOwnName(node) {
		return a, approval.RefuseFor(ReasonNodeNameNotAllowed, "node name %s is not available: kubejoin's own Leases are named %s or %[2]s-…; give the machine another name", node, tokens.OwnName)
	}
	if bootstrap {
		return n.admitToken(ctx, r, id, node)
	}
	if n.rules().isReserved(node) {
		return a, refuseReserved(node)
	}
	return n.admitFree(ctx, node)
}

// admitToken checks a request of a bootstrap token and, if the token has limits, claims the name.
func (n *Nodes) admitToken(ctx context.Context, r approval.Request, id, node string) (a Admitted, err error) {
	if n.Tokens == nil || n.Claims == nil {
		return a, approval.RefuseFor(ReasonTokenRevoked, "this server does not accept bootstrap tokens")
	}
	if !n.dry { // the proof of a cache may be a write
		if record, err := n.recentlyAllows(ctx, id, r, node); err != nil {
			return a, err
		} else if record != nil {
			if a, err = n.admitFree(ctx, node); err == nil {
				err = n.rules().check(*record, r, node) // it may have expired during the reads
			}
			return a, err
		}
	}
	// Check this before the claim: a request that cannot be signed leaves no claim.
	if err := pkcs10.CheckSignature(r.CSR); err != nil {
		return a, err
	}
	b := &bid{request: r, node: node}
	// Requests with the same token at the same time are decided together. Otherwise each machine of a rack would conflict
	// with every other machine, and retry.
	if err := n.slots.Do(ctx, id, b, func(ctx context.Context, all []*bid) {
		ctx, cancel := context.WithTimeout(ctx, countTimeout)
		defer cancel()
		n.decide(ctx, id, all)
	}); err != nil {
		return a, fmt.Errorf("update node count of token %s: %w", id, err)
	}
	return b.admitted, b.err
}

// admitFree refuses the name of a Node, and a name that a token with limits has claimed. It may miss a claim that is less
// than [tokens.MaxAge] old. This grants no more than a live read: a token with limits may also claim the name just after
// the check.
func (n *Nodes) admitFree(ctx context.Context, node string) (Admitted, error) {
	return n.settle(ctx, n.look(ctx, tokens.Record{}, node, false, n.dry), planFree)
}

// admitRenewal admits a node that authenticates with its current certificate. A deleted Node comes back only if its machine
// registers again; until then the request waits.
func (n *Nodes) admitRenewal(ctx context.Context, r approval.Request, node string) (a Admitted, err error) {
	if a.nodeUID, err = n.uidOf(ctx, node); err != nil {
		return a, err
	}
	if a.nodeUID == "" && n.Node != nil {
		return a, &approval.Error{Decision: approval.Decision{
			Verdict: approval.Wait, Reason: ReasonNodeNotFound,
			Message: fmt.Sprintf("node %s renews its certificate, but its Node does not exist; the request waits until the Node exists", safetext.Text(node, safetext.MaxName)),
		}}
	}
	if n.Claims == nil || tokens.CheckNodeName(node) != nil {
		return a, nil
	}
	f := n.facts(node)
	f.nodeUID, f.cached = a.nodeUID, true
	if f.claim, err = n.claim(ctx, node, tokens.Cached); err == nil && f.claim.Version == "" {
		f.claim, err = n.claim(ctx, node, tokens.Live) // the machine may have just joined through another replica
	}
	if err != nil {
		return a, err
	}
	p := planRenewal(f, r)
	if p.admitted.claim = f.claim; p.next.Equal(f.claim) && p.err == nil {
		return p.admitted, nil // mostly: then a cached claim is enough
	}
	return n.settle(ctx, f, func(now facts) plan {
		if !f.claim.Released() && !now.claim.Same(f.claim) { // it is not the claim of this node any more
			return plan{next: now.claim, admitted: p.admitted}
		}
		return planRenewal(now, r)
	})
}

// admitRejoin admits a node that has proven a key in place of a valid certificate.
func (n *Nodes) admitRejoin(ctx context.Context, r approval.Request, node string) (a Admitted, err error) {
	f := n.live(ctx, node)
	if f.err != nil {
		return a, f.err
	}
	p := planRejoin(f, r) // StoreIdentity writes it
	p.admitted.claim = f.claim
	return p.admitted, p.err
}

// Bound returns nil if a key is bound to a node, and an error that wraps [tokens.ErrNotFound] if it is not. It reads the
// cache, because anyone can make a key.
func (n *Nodes) Bound(ctx context.Context, node, key string) error {
	if n == nil || n.RejoinWindow <= 0 {
		return tokens.ErrNotFound
	}
	c, err := n.claim(ctx, node, tokens.Cached)
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
	_, err := n.settle(ctx, n.live(ctx, node), func(f facts) plan { return planBinding(f, by, key) })
	return err
}

// BoundBy returns the fingerprint of the certificate that has bound a key to a node, read live; empty if none has.
func (n *Nodes) BoundBy(ctx context.Context, node string) (string, error) {
	if n == nil {
		return "", nil
	}
	c, err := n.claim(ctx, node, tokens.Live)
	return c.Identity.Bound.Fingerprint, err
}

// Unbind removes the bound key of a node if the certificate with this fingerprint has bound it.
func (n *Nodes) Unbind(ctx context.Context, node, by string) error {
	_, err := n.settle(ctx, n.live(ctx, node), func(f facts) plan {
		if f.claim.Identity.Bound.Fingerprint == by {
			f.claim.Identity.Bound = tokens.Credential{}
		}
		return plan{next: f.claim}
	})
	return err
}

// nodeOf returns the node that a client certificate would authenticate. It goes by the subject, regardless of the
// signer, because API servers do.
func nodeOf(r approval.Request) (name string, ok bool) {
	name, ok = strings.CutPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix)
	return name, ok && slices.Contains(r.CSR.Subject.Organization, tokens.NodesGroup) &&
		r.SignerName != certificates.KubeletServingSignerName && authenticates(r.Usages)
}

// isOwn reports whether a node requests a certificate for itself.
func isOwn(r approval.Request) bool {
	return strings.HasPrefix(r.User, tokens.NodeUserPrefix) && r.User == r.CSR.Subject.CommonName && slices.Contains(r.Groups, tokens.NodesGroup)
}

// authenticates reports whether an API server accepts a client certificate with these usages. A certificate without
// extended usages is valid for all of them (RFC 5280, section 4.2.1.12).
func authenticates(usages []certificates.KeyUsage) bool {
	_, extended, _ := approval.X509Usages(usages) // unknown usages are refused elsewhere
	return len(extended) == 0 || slices.Contains(extended, x509.ExtKeyUsageClientAuth) || slices.Contains(extended, x509.ExtKeyUsageAny)
}

func (n *Nodes) start() {
	if n.log = n.Logger; n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.counts = metrics.Counter(n.Registerer, "kubejoin_claim_changes_total",
		"Changes of node name claims: made, another_key, taken_over, repaired (a token got lost names or limits back), released.", "change")
}
