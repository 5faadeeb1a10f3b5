package admission

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
)

// Reasons of a [*approval.Refused] that [Nodes] gives.
const (
	// ReasonTokenSpent: as many nodes have joined with the token as its limits allow.
	ReasonTokenSpent = "TokenSpent"
	// ReasonTokenExpired: the token is past its expiration.
	ReasonTokenExpired = "TokenExpired"
	// ReasonTokenRevoked: there is no such token any more, or it may not authenticate.
	ReasonTokenRevoked = "TokenRevoked"
	// ReasonTokenReplaced: the token is younger than the request that was made with it.
	ReasonTokenReplaced = "TokenReplaced"
	// ReasonTokenLimitsMalformed: what the token is good for cannot be read.
	ReasonTokenLimitsMalformed = "TokenLimitsMalformed"
	// ReasonNodeNameNotAllowed: the token is for other names, or no Node can have this one.
	ReasonNodeNameNotAllowed = "NodeNameNotAllowed"
	// ReasonNodeNameReserved: the name is for tokens of role control-plane.
	ReasonNodeNameReserved = "NodeNameReserved"
	// ReasonNodeNameClaimed: another token has taken the name.
	ReasonNodeNameClaimed = "NodeNameClaimed"
	// ReasonNodeNameReleased: a node renews whose name was released, where there are no Nodes.
	ReasonNodeNameReleased = "NodeNameReleased"
	// ReasonNodeExists: a Node has the name.
	ReasonNodeExists = "NodeExists"
	// ReasonNodeReplaced: the Node that the token is to replace is another one by now.
	ReasonNodeReplaced = "NodeReplaced"
	// ReasonTooManyKeys: a machine of this name has asked with [tokens.MaxKeys] other keys.
	ReasonTooManyKeys = "TooManyKeys"
	// ReasonNodeNotFound: a node renews that has no Node. It is a reason to wait.
	ReasonNodeNotFound = "NodeNotFound"
	// ReasonNotForBootstrap: a bootstrap token is for a node's client certificate alone.
	ReasonNotForBootstrap = "NotForBootstrapToken"
)

// DefaultRetention is how long a spent token stays.
const DefaultRetention = time.Hour

// unlimitedTTL is how long the word of a store that a token has no limits is good for, and for how
// long an [Admitted] is: between a decision and the certificate there is one write.
const unlimitedTTL = time.Second

// A Nodes says who may have which node's name. It stands between approval and every
// client certificate of a node, whoever approved the request. Its zero value lets renewals pass
// and refuses every bootstrap token. It must not be copied once it is used.
//
//   - A Node that exists is not handed out again, to anybody.
//   - A bootstrap token lets in as many nodes, under such names, as its [tokens.Limits] say, and
//     leaves a claim for each: a name is with one token at a time.
//   - A node renews its certificate while its Node exists, for as long as its claim says.
type Nodes struct {
	// Tokens and Claims are asked about requests of bootstrap tokens; nil is that there are
	// none.
	Tokens tokens.Store
	Claims tokens.Claims
	// Node gives the UID of a Node, as it is now and not from a cache; the error wraps
	// [tokens.ErrNotFound] if there is none. Nil is for where there are no Nodes.
	Node func(ctx context.Context, name string) (uid string, err error)
	// Ready says which spell of being Ready a Node is in now, as the Ready of cleaner.Claims does. A
	// new spell ends what a token that replaces the Node is good for: its UID stays. The error is as
	// with Node. Nil lets such a token admit as many keys as one for a new node.
	Ready func(ctx context.Context, name string) (spell string, err error)
	// AllowExisting hands out the names of Nodes that exist, as kube-controller-manager does.
	AllowExisting bool
	// Reserved are names and patterns, as in [tokens.Limits], that only tokens of role
	// control-plane may take.
	Reserved []string
	// Lease is the name of kubejoin's own Lease, if claims are Leases beside it. No machine gets
	// this node name: its claim would be that Lease.
	Lease string
	// Retention is how long a spent token stays, for the node to fetch its certificate and
	// others to be told why they are refused. Zero is [DefaultRetention].
	Retention time.Duration
	// Logger is told of claims; nil is nobody.
	Logger *slog.Logger
	// Registerer has the kubejoin_claim_* metrics; nil counts nothing.
	Registerer prometheus.Registerer
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	dry bool // nothing is written, and so nothing is there to be confirmed

	once   sync.Once
	log    *slog.Logger
	counts *prometheus.CounterVec

	mu        sync.Mutex
	unlimited map[string]remembered // by token ID

	slots batch.Queue[string, *slotRequest] // by token ID
}

type remembered struct {
	record tokens.Record
	at     time.Time
}

// An Admitted request may have its certificate. It is bound to the CSR, the user and
// groups, the signer, the usages and the CSR object that [Nodes.Admit] saw. The zero Admitted is no request.
type Admitted struct {
	// Duration is the longest lifetime; zero leaves it to the signer.
	Duration time.Duration
	// TokenID is the token that the name was claimed with; empty if there is no claim.
	TokenID string
	// Keys is how many keys have been admitted on the claim. More than one is a machine that
	// began anew, or two machines.
	Keys int

	request approval.Request // what Admit saw
	at      time.Time
}

// Waiting is the error of a request that is in order and waits for something that may come.
type Waiting struct {
	// Reason is for machines: one word in CamelCase.
	Reason string
	// Message is a sentence for the requester.
	Message string
}

// Error is the message.
func (w *Waiting) Error() string { return w.Message }

// Admit says that a request may have its certificate, and makes the claim that goes with it. It
// may be asked any number of times about the same request. The error of what breaks a limit wraps a
// [*approval.Refused]; every other error may pass by itself.
func (n *Nodes) Admit(ctx context.Context, r approval.Request) (*Admitted, error) {
	if n == nil {
		n = &Nodes{}
	}
	n.once.Do(n.start)
	if r.CSR == nil {
		return nil, approval.Refuse("no certificate request given")
	}
	now := n.now()
	a := &Admitted{request: r, at: now}
	a.request.Groups, a.request.Usages = slices.Clone(r.Groups), slices.Clone(r.Usages)
	id, bootstrap := strings.CutPrefix(r.User, tokens.BootstrapUserPrefix)
	node, ok := nodeOf(r)
	switch {
	case !ok && bootstrap:
		return nil, approval.RefuseFor(ReasonNotForBootstrap, "%s asks for a certificate of signer %s with subject %q; a bootstrap token is for the client certificate of a node", r.User, r.SignerName, r.CSR.Subject)
	case !ok && !isOwn(r):
		return a, nil
	case !ok:
		return admitted(a, n.serves(ctx, strings.TrimPrefix(r.User, tokens.NodeUserPrefix)))
	case isOwn(r):
		return admitted(a, n.renew(ctx, node, a))
	}
	if err := tokens.CheckNodeName(node); err != nil {
		return nil, approval.RefuseFor(ReasonNodeNameNotAllowed, "no Node can have this name: %v", err)
	}
	if n.Lease != "" && node == n.Lease {
		return nil, approval.RefuseFor(ReasonNodeNameNotAllowed, "the name %s is that of kubejoin's own Lease; give the machine another name", node)
	}
	if !bootstrap {
		if n.reserved(node) {
			return nil, n.refuseReserved(node)
		}
		return admitted(a, n.checkNameFree(ctx, node))
	}
	return admitted(a, n.admitToken(ctx, r, id, node, a))
}

func admitted(a *Admitted, err error) (*Admitted, error) {
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Lifetime is what is asked for, and no more than is allowed; zero leaves it to the signer.
func (a Admitted) Lifetime(r approval.Request) time.Duration {
	if a.Duration > 0 && (r.Expiration == 0 || a.Duration < r.Expiration) {
		return a.Duration
	}
	return r.Expiration
}

// Holds reports whether the admission is for this request and younger than a second.
func (a Admitted) Holds(r approval.Request, now time.Time) bool {
	age := now.Sub(a.at)
	return a.Of(r) && age >= 0 && age < unlimitedTTL
}

// Of reports whether the admission is for this request: everything that Admit reads is the same.
func (a Admitted) Of(r approval.Request) bool {
	if a.request.CSR == nil || r.CSR == nil {
		return false
	}
	seen := a.request
	return bytes.Equal(seen.CSR.Raw, r.CSR.Raw) && seen.User == r.User && slices.Equal(seen.Groups, r.Groups) &&
		seen.SignerName == r.SignerName && slices.Equal(seen.Usages, r.Usages) &&
		seen.UID == r.UID && seen.Created.Equal(r.Created)
}

// nodeOf is the node that a client certificate would be for: whatever signer it is asked of, the
// subject is what an API server goes by.
func nodeOf(r approval.Request) (name string, ok bool) {
	name, ok = strings.CutPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix)
	return name, ok && slices.Contains(r.CSR.Subject.Organization, tokens.NodesGroup) &&
		r.SignerName != certificates.KubeletServingSignerName && authenticates(r.Usages)
}

// isOwn reports whether a node asks for a certificate of its own.
func isOwn(r approval.Request) bool {
	return strings.HasPrefix(r.User, tokens.NodeUserPrefix) && r.User == r.CSR.Subject.CommonName && slices.Contains(r.Groups, tokens.NodesGroup)
}

// authenticates reports whether an API server takes a certificate of these usages from a client:
// one without extended usages is good for all of them (RFC 5280, section 4.2.1.12).
func authenticates(usages []certificates.KeyUsage) bool {
	_, extended, _ := approval.X509Usages(usages) // what there is none of is refused elsewhere
	return len(extended) == 0 || slices.Contains(extended, x509.ExtKeyUsageClientAuth) || slices.Contains(extended, x509.ExtKeyUsageAny)
}

func (n *Nodes) start() {
	if n.log = n.Logger; n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.counts = metrics.Counter(n.Registerer, "kubejoin_claim_changes_total",
		"What happened to claims of node names: made, another_key, taken_over, undone, repaired (names or limits put back on a token), released.", "change")
	n.unlimited = map[string]remembered{}
}

func (n *Nodes) now() time.Time {
	if n.Now != nil {
		return n.Now()
	}
	return time.Now()
}

func (n *Nodes) count(change string) { n.counts.WithLabelValues(change).Inc() }

// renew lets a node renew while its Node exists: a node that was deleted does not come back by
// itself.
func (n *Nodes) renew(ctx context.Context, node string, a *Admitted) error {
	if n.Node != nil {
		switch _, err := n.Node(ctx, node); {
		case errors.Is(err, tokens.ErrNotFound):
			return &Waiting{ReasonNodeNotFound, fmt.Sprintf("node %s renews its certificate, and there is no such Node (any more): the request waits until there is", foreign.Text(node, foreign.MaxName))}
		case err != nil:
			return fmt.Errorf("node %s: %w", node, err)
		}
	}
	if n.Claims == nil || tokens.CheckNodeName(node) != nil {
		return nil
	}
	c, err := n.Claims.Find(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		// What lags may not have the claim of a machine that has just joined elsewhere.
		c, err = n.Claims.Get(ctx, node)
	}
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil
	case err != nil:
		return fmt.Errorf("claim of node %s: %w", node, err)
	case c.Released():
		a.Duration, err = n.renewReleased(ctx, c)
		return err
	}
	a.Duration = c.Limits.CertificateDuration
	return n.joined(ctx, c)
}

func (n *Nodes) reserved(node string) bool {
	return slices.ContainsFunc(n.Reserved, func(pattern string) bool { return tokens.MatchNodeName(pattern, node) })
}

func (n *Nodes) refuseReserved(node string) error {
	return approval.RefuseFor(ReasonNodeNameReserved, "the name %s is reserved for the control plane; a token for it is made with: kubejoin token create --role control-plane --node-name %s", node, node)
}

// checkNode refuses the name of a Node that exists, unless it is the one to be replaced, which it
// reports.
func (n *Nodes) checkNode(ctx context.Context, node string, ref tokens.NodeRef) (bool, error) {
	if n.Node == nil || n.AllowExisting && ref == (tokens.NodeRef{}) {
		return false, nil
	}
	uid, err := n.Node(ctx, node)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("node %s: %w", node, err)
	case ref == tokens.NodeRef{Name: node, UID: uid}:
		return true, nil
	case ref.Name == node:
		return false, approval.RefuseFor(ReasonNodeReplaced, "the token may replace the Node %s of UID %s, and the one of that name has UID %s now; make another token with: kubejoin token create --replace-node %s",
			node, ref.UID, uid, node)
	}
	return false, approval.RefuseFor(ReasonNodeExists, "a Node %s exists; to put another machine in its place make a token with: kubejoin token create --replace-node %s; if it is gone for good: kubectl delete node %s", node, node, node)
}

// checkNameFree refuses a name that a Node has, or that a limited token has taken. It reads the claim live: a stale cache would
// give the name away.
func (n *Nodes) checkNameFree(ctx context.Context, node string) error {
	if _, err := n.checkNode(ctx, node, tokens.NodeRef{}); err != nil || n.Claims == nil {
		return err
	}
	for range attempts {
		c, err := n.Claims.Get(ctx, node)
		switch {
		case errors.Is(err, tokens.ErrNotFound):
			return nil
		case err != nil:
			return fmt.Errorf("claim of node %s: %w", node, err)
		case c.Released():
			return n.forget(ctx, c)
		case c.NodeUID != "" && n.Node != nil: // not yet released, perhaps
			if gone, err := n.gone(ctx, node); err != nil {
				return err
			} else if gone {
				return n.forget(ctx, c)
			}
			return refuseClaimed(c)
		case !n.abandoned(c):
			return refuseClaimed(c)
		}
		if err := n.releaseAbandoned(ctx, node); err != nil {
			return err
		}
	}
	return fmt.Errorf("claim of node %s: it changed %d times in a row", node, attempts)
}

func (n *Nodes) gone(ctx context.Context, node string) (bool, error) {
	_, err := n.Node(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("node %s: %w", node, err)
	}
	return false, nil
}

func refuseClaimed(c tokens.Claim) error {
	return approval.RefuseFor(ReasonNodeNameClaimed, "the name %s was taken with token %s at %s; if that machine is not to join: kubejoin claim release %s",
		c.Node, c.TokenID, c.Created.UTC().Format(time.RFC3339), c.Node)
}
