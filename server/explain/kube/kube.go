// Package kube reads the facts of package explain from a cluster: certificate requests, the Node object, the claim of
// its name, tokens, cluster-info and kubejoin's Lease. It reads the current state and writes nothing.
package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/kube/nodeproperties"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/controlplane"
	"github.com/kubejoin/kubejoin/server/controlplane/leases"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// DefaultTimeout limits the reading of one fact if Reader.Timeout is zero.
const DefaultTimeout = 5 * time.Second

// The Lease that a Reader reads by default.
const (
	DefaultLeaseNamespace = secretstore.ClaimNamespace
	DefaultLeaseName      = tokens.OwnName
)

// A Reader reads the facts of a cluster. Its methods are safe for concurrent use.
type Reader struct {
	// Client calls the API server. It needs list on certificatesigningrequests, get on nodes and on the Leases, and
	// create on subjectaccessreviews. The explanation names the facts that Client may not read.
	Client kubernetes.Interface
	// Tokens reads the bootstrap tokens.
	Tokens tokens.Store
	// Claims reads the claims; nil means that there are none.
	Claims tokens.Claims
	// ClusterInfo is usually a configmap.ConfigMap.
	ClusterInfo ClusterInfo
	// Revocations reads the revocations; nil means that there are none.
	Revocations revocation.Store
	// LeaseNamespace and LeaseName identify the leader election Lease of kubejoin's replicas; empty means the
	// defaults.
	LeaseNamespace, LeaseName string
	// Timeout limits the reading of one fact; zero means DefaultTimeout. A fact that takes longer is added to Unread.
	Timeout time.Duration
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// ClusterInfo reads cluster-info.
type ClusterInfo interface {
	// Data returns the data of the ConfigMap. The error wraps clusterinfo.ErrNotFound if there is none. Callers do
	// not modify the map.
	Data(ctx context.Context) (map[string]string, error)
}

// Explain returns why a machine with this node name has or has not joined. It fails if the API server does not
// respond, but not if access is forbidden.
func (r Reader) Explain(ctx context.Context, node string) (api.NodeExplanation, error) {
	facts, err := r.Facts(ctx, node)
	if err != nil {
		return api.NodeExplanation{}, err
	}
	return explain.Explain(facts, r.withDefaults().Now()), nil
}

// Facts reads the facts about a node name.
func (r Reader) Facts(ctx context.Context, node string) (explain.Facts, error) {
	if err := tokens.CheckNodeName(node); err != nil {
		return explain.Facts{}, err
	}
	g := &gathering{Reader: r.withDefaults(), facts: explain.Facts{Node: node}}
	// Read these facts concurrently. The token depends on the requests.
	g.all(ctx, map[api.Fact]func(context.Context) error{
		explain.FactRequests:    g.requests,
		explain.FactNode:        g.node,
		explain.FactClaim:       g.claim,
		explain.FactTokens:      g.tokens,
		explain.FactClusterInfo: g.clusterInfo,
		explain.FactRevocation:  g.revocation,
		explain.FactLeader:      g.leader,
		explain.FactTurn:        g.turn,
	})
	if g.failure == nil {
		g.all(ctx, map[api.Fact]func(context.Context) error{explain.FactTokens: g.requestersToken})
	}
	if err := ctx.Err(); err != nil {
		return explain.Facts{}, err
	}
	g.requested()
	g.properties()
	if g.failure != nil {
		return explain.Facts{}, fmt.Errorf("explain node %s: %w", node, g.failure)
	}
	return g.facts, nil
}

// withDefaults returns the Reader with its defaults.
func (r Reader) withDefaults() Reader {
	if r.LeaseNamespace == "" {
		r.LeaseNamespace = DefaultLeaseNamespace
	}
	if r.LeaseName == "" {
		r.LeaseName = DefaultLeaseName
	}
	if r.Timeout <= 0 {
		r.Timeout = DefaultTimeout
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	return r
}

// A gathering is one call of Facts.
type gathering struct {
	Reader

	mu      sync.Mutex
	facts   explain.Facts
	object  *corev1.Node
	known   tokens.Claim    // of the name, released or not
	listed  []listedRequest // all requests; for requestersToken, the newest is the first
	patches bool            // whether kubejoin may patch Nodes
	strict  bool            // whether failure also has the errors of listNeeds
	failure error           // errors, other than forbidden, of the facts that every explanation needs
}

// all reads facts concurrently, each with its own timeout.
func (g *gathering) all(ctx context.Context, read map[api.Fact]func(context.Context) error) {
	var reading sync.WaitGroup
	for fact, f := range read {
		reading.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, g.Timeout)
			defer cancel()
			if err := f(ctx); err != nil {
				g.unread(fact, err)
			}
		})
	}
	reading.Wait()
}

// listNeeds are the facts without which a list of machines would not be complete.
var listNeeds = []api.Fact{explain.FactRequests, explain.FactNode, explain.FactClaim, explain.FactTokens}

func (g *gathering) unread(fact api.Fact, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	needed := !apierrors.IsForbidden(err) && (fact == explain.FactRequests || fact == explain.FactNode)
	if needed || g.strict && slices.Contains(listNeeds, fact) {
		g.failure = errors.Join(g.failure, fmt.Errorf("%s: %w", fact, err))
	}
	if slices.ContainsFunc(g.facts.Unread, func(u api.UnreadFact) bool { return u.Fact == fact }) {
		return
	}
	g.facts.Unread = append(g.facts.Unread, api.UnreadFact{Fact: fact, Reason: safetext.Text(strings.ReplaceAll(err.Error(), "\n", "; "), safetext.MaxMessage)})
}

func (g *gathering) set(f func(*explain.Facts)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(&g.facts)
}

func (g *gathering) node(ctx context.Context) error {
	n, err := g.Client.CoreV1().Nodes().Get(ctx, g.facts.Node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var ready corev1.NodeCondition
	if at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }); at >= 0 {
		ready = n.Status.Conditions[at]
	}
	found := nodeEvidence(string(n.UID), n.CreationTimestamp.Time, ready)
	g.set(func(f *explain.Facts) { f.Object, g.object = found, n })
	return nil
}

// nodeEvidence returns the evidence of a Node with the condition Ready, without a year that JSON cannot have: its kubelet sets it.
func nodeEvidence(uid string, created time.Time, ready corev1.NodeCondition) *api.NodeEvidence {
	e := &api.NodeEvidence{UID: uid, Created: created, Ready: string(ready.Status), Reason: ready.Reason, Message: ready.Message}
	if at := ready.LastTransitionTime.Time; at.Year() > 0 && at.Year() < 9999 {
		e.Since = at
	}
	return e
}

// properties sets what the Node waits for, from the facts that were read.
func (g *gathering) properties() {
	f := &g.facts
	unread := func(u api.UnreadFact) bool { return u.Fact == explain.FactClaim || u.Fact == explain.FactRequests }
	if g.object == nil || slices.ContainsFunc(f.Unread, unread) {
		return
	}
	f.Joining = nodeproperties.Joining(g.object)
	if !f.Joining && (g.known.Node == "" || g.known.Released() || g.known.NodeUID != "" && !g.known.Waits) {
		return
	}
	requested := false // a serving certificate
	served := slices.ContainsFunc(g.listed, func(r listedRequest) bool {
		requested = requested || r.evidence.User == tokens.NodeUserPrefix+f.Node && r.evidence.Signer == certificates.KubeletServingSignerName
		return nodeproperties.Serves(r.object, f.Node, g.known.Created)
	})
	patch, waits := nodeproperties.Plan(g.object, g.known.Remaining().Node, served)
	switch {
	case waits.For == nodeproperties.ForCertificate && !requested:
		f.Waits = fmt.Sprintf("%s, but there is no request for one: set serverTLSBootstrap: true in its configuration and restart it, or if 'kubectl logs' works: kubectl taint node %s %s-", waits.Text, f.Node, tokens.JoiningTaint)
	case waits.Text != "":
		f.Waits = waits.Text
	case patch != nil && f.Leaderless(g.Now()):
		f.Waits = fmt.Sprintf("kubejoin runs: no replica renews its Lease %s/%s", f.Leader.Namespace, f.Leader.Lease)
	case patch != nil && f.Leader != nil && !g.patches:
		f.Waits = nodeproperties.WaitsForRight.Text
	case patch != nil:
		f.Waits = "kubejoin has patched it, which takes seconds"
		for _, w := range f.FailedWrites {
			if w.Verb == "patch" && w.Resource == "nodes" {
				f.Waits = "kubejoin can patch Nodes, which failed at " + w.At.Format(time.RFC3339) + ": " + w.Message
			}
		}
	}
}

func (g *gathering) claim(ctx context.Context) error {
	if g.Claims == nil {
		return nil
	}
	c, err := g.Claims.Get(ctx, g.facts.Node, tokens.Live)
	if errors.Is(err, tokens.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	g.claimed(c)
	return nil
}

func (g *gathering) claimed(c tokens.Claim) {
	g.set(func(f *explain.Facts) {
		f.Identity, f.Machine, g.known = c.Identity, c.Machine, c
		if !c.Released() {
			f.Claim = &c
		}
	})
}

func (g *gathering) revocation(ctx context.Context) error {
	if g.Revocations == nil {
		return nil
	}
	key, err := revocation.NodeKey(g.facts.Node)
	if err != nil {
		return err
	}
	e, err := g.Revocations.Get(ctx, key, tokens.Live)
	if errors.Is(err, revocation.ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	g.set(func(f *explain.Facts) { f.Revocation = revocationEvidence(e, time.Now()) })
	return nil
}

// revocationEvidence returns the evidence of a revocation, or nil if it has ended.
func revocationEvidence(e revocation.Entry, now time.Time) *api.RevocationEvidence {
	if e.Ended(now) {
		return nil
	}
	found := &api.RevocationEvidence{Since: e.Since, Reason: e.Reason}
	for _, end := range e.Allowed {
		if now.Before(end) {
			found.Allowed++
		}
	}
	return found
}

func (g *gathering) tokens(ctx context.Context) error {
	all, err := g.Tokens.List(ctx)
	if err != nil {
		return err
	}
	g.set(func(f *explain.Facts) { f.Tokens = all })
	return nil
}

// requestersToken re-reads the token of the machine and that of the newest request, because the list may be stale.
func (g *gathering) requestersToken(ctx context.Context) error {
	ids := []string{g.known.Machine.TokenID}
	for _, r := range g.listed {
		if id := tokens.IDOfUser(r.evidence.User); id != "" && r.evidence.Signer == certificates.KubeAPIServerClientKubeletSignerName {
			ids = append(ids, id)
			break
		}
	}
	for _, id := range ids {
		if id == "" {
			continue
		}
		live, err := g.Tokens.Get(ctx, id, tokens.Live)
		if err != nil && !errors.Is(err, tokens.ErrNotFound) {
			return err
		}
		g.set(func(f *explain.Facts) {
			f.Tokens = slices.DeleteFunc(f.Tokens, func(r tokens.Record) bool { return r.Token.ID() == id })
			if err == nil {
				f.Tokens = append(f.Tokens, live)
			}
		})
	}
	return nil
}

func (g *gathering) clusterInfo(ctx context.Context) error {
	data, err := g.ClusterInfo.Data(ctx)
	if errors.Is(err, clusterinfo.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	g.set(func(f *explain.Facts) { f.ClusterInfo = explain.ParseClusterInfo(data) })
	return nil
}

func (g *gathering) turn(ctx context.Context) error {
	s, err := (&leases.Turns{Client: g.Client, Namespace: g.LeaseNamespace}).Read(ctx)
	if err != nil || s.Holder == (controlplane.Machine{}) && len(s.Waiting) == 0 {
		return err
	}
	t := &api.TurnEvidence{Holder: s.Holder.Node, Since: s.Since, Renewed: s.Renewed, Learner: s.Learner}
	for _, w := range s.StillWaiting(g.Now()) {
		t.Waiting = append(t.Waiting, api.WaitingEvidence{Node: w.Node, Since: w.Since})
	}
	g.set(func(f *explain.Facts) { f.Turn = t })
	return nil
}

func (g *gathering) leader(ctx context.Context) error {
	lease, err := g.Client.CoordinationV1().Leases(g.LeaseNamespace).Get(ctx, g.LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	l := &api.LeaderEvidence{Namespace: g.LeaseNamespace, Lease: g.LeaseName}
	if s := lease.Spec; s.HolderIdentity != nil {
		l.Holder = *s.HolderIdentity
	}
	if s := lease.Spec; s.RenewTime != nil {
		l.Renewed = s.RenewTime.Time
	}
	if s := lease.Spec; s.LeaseDurationSeconds != nil {
		l.Duration = time.Duration(*s.LeaseDurationSeconds) * time.Second
	}
	g.set(func(f *explain.Facts) {
		f.Leader, f.FailedWrites = l, failedwrites.Of(lease, g.Now())
		g.patches = lease.Annotations[leader.NodePropertiesAnnotation] != ""
	})
	return nil
}
