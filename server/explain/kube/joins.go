package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	// recently is how long the list has a machine after it has registered, or after its request was refused.
	recently = time.Hour
	// joinsAge is how long all callers share one look at the cluster.
	joinsAge = time.Second
	// joinsIdle is how long the watch of certificate requests goes on after the last call.
	joinsIdle = time.Minute
	// neverReady is the longest time between the creation of a Node and its first condition Ready.
	neverReady = time.Minute
	// maxPermissions is the maximum number of requesters whose permission is checked for one look.
	maxPermissions = 20
	// maxListed is the maximum size of a request without its certificate, in bytes, that the list has.
	maxListed = 64 << 10
)

// Joins lists the machines that join. It looks at the cluster at most once a second, and only while somebody calls List. Its
// methods are safe for concurrent use. [OpenJoins] creates it.
type Joins struct {
	reader Reader
	nodes  *kubefacts.NodeCache
	facts  kubefacts.Facts
	watch  context.Context // of the certificate requests
	age    time.Duration   // joinsAge

	looking batch.Queue[struct{}, struct{}]

	mu       sync.Mutex
	last     *look
	requests *kubecache.Cache[object, listedRequest]
	idle     *time.Timer
}

// OpenJoins returns the Joins of a cluster. Its first call begins to watch certificate requests and Nodes, at the latest until
// ctx ends. The client of the Reader needs list and watch on both.
func OpenJoins(ctx context.Context, reader Reader, nodes *kubefacts.NodeCache) *Joins {
	return &Joins{reader: reader.withDefaults(), nodes: nodes, facts: kubefacts.Facts{Client: reader.Client}, watch: ctx, age: joinsAge}
}

// A listedRequest is a certificate request of a node.
type listedRequest struct {
	node     string
	object   object // without the PKCS #10 request
	evidence api.RequestEvidence
}

func decodeRequest(o object) (listedRequest, error) {
	parsed, err := pkcs10.Parse(o.Spec.Request)
	if err != nil {
		return listedRequest{}, err
	}
	node, found := strings.CutPrefix(parsed.Subject.CommonName, tokens.NodeUserPrefix)
	if !found || tokens.CheckNodeName(node) != nil || o.Spec.Size()-len(o.Spec.Request) > maxListed {
		return listedRequest{}, fmt.Errorf("request %s is not of a node", o.Name)
	}
	r := listedRequest{node: node, object: o, evidence: request(o)}
	if r.evidence.Certificate != nil {
		r.evidence.Certificate.Chain = nil // few explanations need it, and it is large
	}
	o.Spec.Request = nil
	return r, nil
}

// A look is what a List has seen.
type look struct {
	now      time.Time
	err      error
	common   gathering // the facts that all explanations share
	requests map[string][]listedRequest
	nodes    map[string]kubefacts.SeenNode
	claims   map[string]tokens.Claim
	revoked  map[revocation.Key]revocation.Entry
	tokens   map[string][]tokens.Record // the tokens that matter to a node name
	byID     map[string]tokens.Record
	lists    sync.Map // func() api.JoinList by the ID of a token; that of "" lists the machines without a filter
}

// List returns how far machines have joined: what [explain.JoinList] sets, Nodes and Unread. With a node name or the ID of a
// token, it returns only the machine of that name, or those of the token, however long ago they have joined. The error wraps
// [tokens.ErrNotFound] if there is no such token. The result must not be changed.
func (j *Joins) List(ctx context.Context, node, token string) (api.JoinList, error) {
	err := j.looking.Do(ctx, struct{}{}, struct{}{}, func(ctx context.Context, _ []struct{}) {
		j.mu.Lock()
		fresh := j.last != nil && time.Since(j.last.now) < j.age
		j.mu.Unlock()
		if !fresh {
			l := j.look(ctx)
			j.mu.Lock()
			j.last = l
			j.mu.Unlock()
		}
	})
	if err != nil {
		return api.JoinList{}, err
	}
	j.mu.Lock()
	l := j.last
	j.mu.Unlock()
	if l.err != nil {
		return api.JoinList{}, l.err
	}
	record, found := l.byID[token]
	if token != "" && !found {
		return api.JoinList{}, fmt.Errorf("token %s: %w", token, tokens.ErrNotFound)
	}
	var list api.JoinList
	if node == "" {
		list = l.list(token)
	} else {
		var only []api.Join
		if join := l.join(node); l.knows(node) && (token == "" || join.TokenID == token) {
			only = append(only, join)
		}
		list = explain.JoinList(only)
	}
	list.Unread = l.common.facts.Unread
	limits := record.Limits.Strictest()
	list.Nodes = record.Limits.NodeLimit()
	if list.Nodes == 0 && !strings.Contains(strings.Join(limits.NodeNames, ""), "*") {
		list.Nodes = len(limits.NodeNames)
	}
	return list, nil
}

// list returns the machines of a token, or those without a filter. All callers share it.
func (l *look) list(token string) api.JoinList {
	made, _ := l.lists.LoadOrStore(token, sync.OnceValue(func() api.JoinList {
		if token != "" {
			return explain.JoinList(l.ofToken(l.byID[token]))
		}
		var all []api.Join
		for node := range l.names() {
			all = append(all, l.join(node))
		}
		return explain.JoinList(all)
	}))
	return made.(func() api.JoinList)()
}

// watched returns the cache of certificate requests. The watch ends when nobody has called it for joinsIdle.
func (j *Joins) watched() *kubecache.Cache[object, listedRequest] {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.requests != nil && j.idle.Reset(joinsIdle) {
		return j.requests
	}
	ctx, stop := context.WithCancel(j.watch)
	made := kubecache.Open(ctx, j.reader.Client, j.reader.Client.CertificatesV1().CertificateSigningRequests(), "", kubecache.Config[object, listedRequest]{What: "certificate requests", Decode: decodeRequest})
	j.requests, j.idle = made, time.AfterFunc(joinsIdle, func() {
		stop()
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.requests == made {
			j.requests, j.last = nil, nil
		}
	})
	return made
}

// look reads the facts about all machines.
func (j *Joins) look(ctx context.Context) *look {
	r := j.reader
	l := &look{now: r.Now(), requests: map[string][]listedRequest{}, claims: map[string]tokens.Claim{}, revoked: map[revocation.Key]revocation.Entry{}}
	l.common = gathering{Reader: r}
	g := &l.common
	g.all(ctx, map[api.Fact]func(context.Context) error{
		explain.FactTokens:      g.tokens,
		explain.FactClusterInfo: g.clusterInfo,
		explain.FactLeader:      g.leader,
		explain.FactTurn:        g.turn,
		explain.FactRequests: func(ctx context.Context) error {
			all, err := j.watched().List(ctx)
			for _, r := range all {
				l.requests[r.node] = append(l.requests[r.node], r)
			}
			return err
		},
		explain.FactNode: func(ctx context.Context) (err error) {
			l.nodes, err = j.nodes.Seen(ctx)
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
	if l.err = g.failure; l.err == nil {
		l.err = ctx.Err()
	}
	l.indexTokens()
	j.permissions(ctx, l)
	return l
}

// indexTokens finds the tokens that matter to each node name. Most explanations need few of all tokens.
func (l *look) indexTokens() {
	l.byID, l.tokens = map[string]tokens.Record{}, map[string][]tokens.Record{}
	for _, r := range l.common.facts.Tokens {
		l.byID[r.Token.ID()] = r
		names := append(slices.Clone(r.Nodes), r.Limits.Strictest().NodeNames...)
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			l.tokens[name] = append(l.tokens[name], r)
		}
	}
}

// permissions checks whether RBAC allows the automatic approval of requests that nobody has decided.
func (j *Joins) permissions(ctx context.Context, l *look) {
	checked := 0
	for node, all := range l.requests {
		for i, r := range all {
			if len(r.object.Status.Conditions) > 0 || r.evidence.Signer != certificates.KubeAPIServerClientKubeletSignerName || checked >= maxPermissions {
				continue
			}
			checked++
			may, err := allowed(ctx, &j.facts, node, r.object)
			if err != nil {
				l.common.unread(explain.FactPermission, err)
				return
			}
			all[i].evidence.Permitted = &may
		}
	}
}

// knows reports whether there is a fact about a node name.
func (l *look) knows(node string) bool {
	_, registered := l.nodes[node]
	_, claimed := l.claims[node]
	return registered || claimed || len(l.requests[node]) > 0 || len(l.tokens[node]) > 0 || l.waits(node)
}

func (l *look) waits(node string) bool {
	t := l.common.facts.Turn
	return t != nil && slices.ContainsFunc(t.Waiting, func(w api.WaitingEvidence) bool { return w.Node == node })
}

// names returns the machines that have not joined, and those that have registered recently.
func (l *look) names() map[string]bool {
	all := map[string]bool{}
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
			e := r.evidence
			open := e.Denied == nil && e.Failed == nil && e.Certificate == nil
			if e.Signer == certificates.KubeAPIServerClientKubeletSignerName && e.User != tokens.NodeUserPrefix+name &&
				(open || recent(e.Created)) && (!registered || e.Certificate == nil && e.Created.After(n.Created)) {
				all[name] = true
			}
		}
	}
	for name, c := range l.claims {
		machine := !c.Machine.IsZero() && !c.Machine.Revoked && !c.Machine.Expired(l.now)
		if _, registered := l.nodes[name]; !registered && (!c.Released() && c.NodeUID == "" || machine && c.NodeUID == "" && c.Identity.NodeUID == "") {
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

// ofToken returns the machines of a token.
func (l *look) ofToken(r tokens.Record) (all []api.Join) {
	id, names := r.Token.ID(), map[string]bool{}
	for _, name := range r.Nodes {
		names[name] = true
	}
	for _, c := range l.claims {
		if c.TokenID == id && (c.TokenUID == "" || c.TokenUID == r.UID) {
			names[c.Node] = true
		}
	}
	for _, join := range l.list("").Items {
		if join.TokenID == id {
			all = append(all, join)
			delete(names, join.Node)
		}
	}
	for name := range names {
		if join := l.join(name); join.TokenID == id {
			all = append(all, join)
		}
	}
	return all
}

// join returns how far the machine of a node name has joined.
func (l *look) join(node string) api.Join {
	g := gathering{Reader: l.common.Reader, facts: l.common.facts, patches: l.common.patches}
	f := &g.facts
	f.Node, f.Tokens = node, slices.Clone(l.tokens[node])
	if n, found := l.nodes[node]; found {
		f.Object = &api.NodeEvidence{UID: n.UID, Created: n.Created, Ready: string(n.Ready.Status), Reason: n.Ready.Reason, Message: n.Ready.Message, Since: n.Ready.LastTransitionTime.Time}
		g.object = n.Joining
	}
	if c, found := l.claims[node]; found {
		f.Identity, f.Machine, g.known = c.Identity, c.Machine, c
		if !c.Released() {
			f.Claim = &c
		}
	}
	if key, err := revocation.NodeKey(node); err == nil {
		if e, found := l.revoked[key]; found {
			f.Revocation = revocationEvidence(e, l.now)
		}
	}
	ids := map[string]bool{}
	for _, r := range f.Tokens {
		ids[r.Token.ID()] = true
	}
	also := func(id string) {
		if r, found := l.byID[id]; found && !ids[id] {
			f.Tokens, ids[id] = append(f.Tokens, r), true
		}
	}
	also(g.known.TokenID)
	also(f.Machine.TokenID)
	for _, r := range l.requests[node] {
		also(tokens.IDOfUser(r.evidence.User))
		if c := r.evidence.Certificate; c != nil && (f.Object == nil || f.Object.Ready != "True") {
			whole := *c
			whole.Chain = pemfile.Presented(r.object.Status.Certificate)
			r.evidence.Certificate = &whole
		}
		f.Requests, g.served = append(f.Requests, r.evidence), append(g.served, r.object)
	}
	g.properties()
	return explain.Join(*f, l.now)
}
