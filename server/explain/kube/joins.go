package kube

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/callcache"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// recently is how long the list has a machine after it has registered, or after its request was decided.
	recently = time.Hour
	// joinsAge is how long all callers share one look at the cluster.
	joinsAge = time.Second
	// joinsIdle is how long a replica watches certificate requests and Nodes after the last call.
	joinsIdle = time.Minute
	// neverReady is the longest time between the creation of a Node and its first condition Ready.
	neverReady = time.Minute
)

// Joins lists the machines that join. It looks at the cluster at most once a second, and only while somebody calls List. Its
// methods are safe for concurrent use. [OpenJoins] creates it.
type Joins struct {
	reader Reader
	nodes  *kubefacts.NodeCache
	ctx    context.Context // of the watches
	age    time.Duration   // joinsAge

	mu   sync.Mutex
	open *watches // nil before the first call of List, and joinsIdle after the last one
}

// watches has what a list reads while somebody calls List.
type watches struct {
	requests *kubecache.Cache[object, listedRequest]
	nodes    *kubefacts.NodeCache
	looks    *callcache.Cache[*look]
	idle     *time.Timer
}

// OpenJoins returns the Joins of a cluster. It watches certificate requests only while somebody calls List, and Nodes too if
// nobody else uses the cache of nodes. The client of the Reader needs list and watch on both. The watches end with ctx.
func OpenJoins(ctx context.Context, reader Reader, nodes *kubefacts.NodeCache) *Joins {
	return &Joins{reader: reader.withDefaults(), nodes: nodes, ctx: ctx, age: joinsAge}
}

// A look has what a List reads from the cluster at one time.
type look struct {
	now      time.Time
	common   gathering // the facts that all explanations share
	requests map[string][]listedRequest
	nodes    map[string]kubefacts.SeenNode
	claims   map[string]tokens.Claim
	revoked  map[revocation.Key]revocation.Entry
	tokens   map[string][]tokens.Record // the tokens that are limited to a node name, and those that have admitted it
	byID     map[string]tokens.Record

	mu    sync.Mutex
	joins map[string]api.Join // what join has returned
	lists sync.Map            // func() api.JoinList by node name and ID of a token
}

// List returns how far machines have joined: what [explain.JoinList] sets, Nodes and Unread. With a node name or the ID of a
// token, it returns only the machine of that name, or those of the token, however long ago they have joined. The error wraps
// [tokens.ErrNotFound] if there is no such token. The result must not be changed.
func (j *Joins) List(ctx context.Context, node, token string) (api.JoinList, error) {
	w := j.watches()
	l, _, err := w.looks.Get(ctx, nil, func(ctx context.Context) (*look, bool, error) {
		l, err := j.look(ctx, w)
		return l, true, err
	})
	if err != nil {
		return api.JoinList{}, err
	}
	record, found := l.byID[token]
	if token != "" && !found { // it may be younger than the look
		if record, err = j.reader.Tokens.Get(ctx, token, tokens.Live); err != nil {
			return api.JoinList{}, err
		}
	}
	return l.shared(node, token, record), nil
}

// shared returns the list for a node name or a token ID. Callers with the same arguments share it. record is the token.
func (l *look) shared(node, token string, record tokens.Record) api.JoinList {
	made, _ := l.lists.LoadOrStore([2]string{node, token}, sync.OnceValue(func() api.JoinList {
		names, all := map[string]bool{node: true}, []api.Join{}
		if node == "" {
			names = l.names(record)
		}
		for name := range names {
			if !l.knows(name) {
				continue
			}
			if join := l.join(name); token == "" || join.TokenID == token && join.Steps[0].State == api.StepDone { // else it was another token with this ID
				all = append(all, join)
			}
		}
		list := explain.JoinList(all)
		list.Unread, list.Nodes = l.common.facts.Unread, record.Limits.NodeLimit()
		if limit := record.Limits.Strictest().NodeNames; list.Nodes == 0 && !strings.Contains(strings.Join(limit, ""), "*") {
			list.Nodes = len(limit)
		}
		return list
	}))
	return made.(func() api.JoinList)()
}

// watches returns the open watches, or opens them. They end joinsIdle after the last call.
func (j *Joins) watches() *watches {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.open != nil && j.open.idle.Reset(joinsIdle) {
		return j.open
	}
	ctx, stop := context.WithCancel(j.ctx)
	client := j.reader.Client
	w := &watches{nodes: j.nodes.Until(ctx), looks: callcache.New[*look](j.age, 0, 0), requests: kubecache.Open(ctx, client, client.CertificatesV1().CertificateSigningRequests(), "", kubecache.Config[object, listedRequest]{What: "certificate requests", Decode: decodeRequest})}
	w.idle = time.AfterFunc(joinsIdle, func() {
		stop()
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.open == w {
			j.open = nil
		}
	})
	j.open = w
	return w
}

// look reads the facts about all machines.
func (j *Joins) look(ctx context.Context, w *watches) (*look, error) {
	r := j.reader
	l := &look{now: r.Now(), common: gathering{Reader: r, strict: true}, requests: map[string][]listedRequest{}, claims: map[string]tokens.Claim{}, revoked: map[revocation.Key]revocation.Entry{}}
	g := &l.common
	g.all(ctx, map[api.Fact]func(context.Context) error{
		explain.FactTokens:      g.tokens,
		explain.FactClusterInfo: g.clusterInfo,
		explain.FactLeader:      g.leader,
		explain.FactTurn:        g.turn,
		explain.FactRequests: func(ctx context.Context) error {
			all, err := w.requests.List(ctx)
			g.permissions(ctx, all)
			for _, r := range all {
				l.requests[r.node] = append(l.requests[r.node], r)
			}
			return err
		},
		explain.FactNode: func(ctx context.Context) (err error) {
			l.nodes, err = w.nodes.Seen(ctx)
			return err
		},
		explain.FactClaim: func(ctx context.Context) error {
			if r.Claims == nil {
				return nil
			}
			all, err := r.Claims.List(ctx)
			for _, c := range all {
				l.claims[c.Node] = c
			}
			return err
		},
		explain.FactRevocation: func(ctx context.Context) error {
			if r.Revocations == nil {
				return nil
			}
			all, err := r.Revocations.List(ctx, tokens.Cached)
			for _, e := range all {
				l.revoked[e.Key()] = e
			}
			return err
		},
	})
	slices.SortFunc(g.facts.Unread, func(a, b api.UnreadFact) int { return cmp.Compare(a.Fact, b.Fact) })
	l.index()
	return l, cmp.Or(g.failure, ctx.Err())
}

// index finds the tokens of each node name. Most explanations need few of all tokens.
func (l *look) index() {
	l.joins, l.byID, l.tokens = map[string]api.Join{}, map[string]tokens.Record{}, map[string][]tokens.Record{}
	for _, r := range l.common.facts.Tokens {
		l.byID[r.Token.ID()] = r
		names := slices.Concat(r.Nodes, r.Limits.Strictest().NodeNames)
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			l.tokens[name] = append(l.tokens[name], r)
		}
	}
}

// knows reports whether there is a machine with a node name, or one is expected.
func (l *look) knows(node string) bool {
	_, registered := l.nodes[node]
	c := l.claims[node]
	return registered || c.Node != "" && !c.Released() || !c.Machine.IsZero() || len(l.requests[node]) > 0 || l.waits(node) ||
		slices.ContainsFunc(l.tokens[node], func(r tokens.Record) bool { return slices.Contains(r.Limits.Strictest().NodeNames, node) })
}

func (l *look) waits(node string) bool {
	t := l.common.facts.Turn
	return t != nil && slices.ContainsFunc(t.Waiting, func(w api.WaitingEvidence) bool { return w.Node == node })
}

// names returns the machines that have not joined, those that have joined recently, and those of the token, if any.
func (l *look) names(of tokens.Record) map[string]bool {
	all := map[string]bool{}
	for _, name := range of.Nodes {
		all[name] = true
	}
	recent := func(at time.Time) bool { return l.now.Sub(at) < recently }
	for name, n := range l.nodes {
		first := n.Ready.LastTransitionTime.Sub(n.Created) < neverReady // since the Node exists
		if recent(n.Created) || n.Joining != nil || n.Ready.Status != corev1.ConditionTrue && first {
			all[name] = true
		}
	}
	for name, requests := range l.requests {
		n, registered := l.nodes[name]
		for _, r := range requests {
			e, decided := r.evidence, l.now
			switch {
			case e.Denied != nil:
				decided = e.Denied.At
			case e.Failed != nil:
				decided = e.Failed.At
			case e.Certificate != nil:
				decided = e.Certificate.At
			}
			if e.Signer == certificates.KubeAPIServerClientKubeletSignerName && e.User != tokens.NodeUserPrefix+name && recent(decided) && (!registered || e.Created.After(n.Created)) {
				all[name] = true
			}
		}
	}
	for name, c := range l.claims {
		machine := !c.Machine.IsZero() && !c.Machine.Revoked && !c.Machine.Expired(l.now) && c.Identity.NodeUID == ""
		_, registered := l.nodes[name]
		if id := of.Token.ID(); !registered && c.NodeUID == "" && (!c.Released() || machine) || id != "" && (c.TokenID == id || c.Identity.TokenID == id) {
			all[name] = true
		}
	}
	for _, r := range l.common.facts.Tokens {
		if !r.Authentication || r.Expired(l.now) || r.Problem != nil || r.Spent() {
			continue
		}
		for _, name := range r.Limits.Strictest().NodeNames {
			if _, registered := l.nodes[name]; !registered && !strings.Contains(name, "*") && !slices.Contains(r.Nodes, name) {
				all[name] = true
			}
		}
	}
	if t := l.common.facts.Turn; t != nil {
		for _, w := range t.Waiting {
			all[w.Node] = true
		}
	}
	return all
}

// join returns how far the machine of a node name has joined.
func (l *look) join(node string) api.Join {
	l.mu.Lock()
	defer l.mu.Unlock()
	if j, found := l.joins[node]; found {
		return j
	}
	g := gathering{Reader: l.common.Reader, facts: l.common.facts, patches: l.common.patches, listed: l.requests[node]}
	f := &g.facts
	f.Node, f.Tokens = node, slices.Clone(l.tokens[node])
	if n, found := l.nodes[node]; found {
		f.Object = nodeEvidence(n.UID, n.Created, n.Ready)
		g.object = n.Joining
	}
	if c, found := l.claims[node]; found {
		g.claimed(c)
	}
	if e, found := l.revoked[revocation.Key(node)]; found {
		f.Revocation = revocationEvidence(e, l.now)
	}
	ids := []string{g.known.TokenID, f.Machine.TokenID, f.Identity.TokenID}
	for _, r := range g.listed {
		ids = append(ids, tokens.IDOfUser(r.evidence.User))
	}
	for _, id := range ids {
		if r, found := l.byID[id]; found && !slices.ContainsFunc(f.Tokens, func(o tokens.Record) bool { return o.Token.ID() == id }) {
			f.Tokens = append(f.Tokens, r)
		}
	}
	g.requested()
	g.properties()
	l.joins[node] = explain.Join(*f, l.now)
	return l.joins[node]
}
