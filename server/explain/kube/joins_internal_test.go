package kube

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/callcache"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8s "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

var start = time.Date(2025, 3, 14, 15, 9, 26, 0, time.UTC)

// requestOf returns the request of a node for a client certificate, ago before start.
func requestOf(tb testing.TB, node, user string, ago time.Duration) object {
	tb.Helper()
	return requestFor(tb, tokens.NodeUserPrefix+node, node, user, ago)
}

// requestFor returns a request for a certificate with this common name.
func requestFor(tb testing.TB, commonName, node, user string, ago time.Duration) object {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must.OK(tb, err)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: commonName, Organization: []string{"system:nodes"}}}, key))(tb)
	return &certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-" + node, CreationTimestamp: metav1.NewTime(start.Add(-ago))},
		Spec: certificates.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificates.KubeAPIServerClientKubeletSignerName, Username: user,
			Groups: []string{"system:bootstrappers", tokens.DefaultGroup},
		},
	}
}

func decided(o object, kind certificates.RequestConditionType, ago time.Duration) object {
	o.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: kind, Reason: "TokenSpent", LastUpdateTime: metav1.NewTime(start.Add(-ago))}}
	return o
}

func signed(o object, ago time.Duration) object {
	decided(o, certificates.CertificateApproved, ago).Status.Certificate = []byte("certificate")
	return o
}

// seen returns a look at a cluster with the tokens.
func seen(all ...tokens.Record) *look {
	l := &look{now: start, requests: map[string][]listedRequest{}, claims: map[string]tokens.Claim{}, nodes: map[string]kubefacts.SeenNode{}}
	l.common = gathering{Reader: Reader{}.withDefaults(), facts: explain.Facts{Tokens: all}}
	l.index()
	return l
}

// read returns the list of Joins after the look.
func (l *look) read(tb testing.TB, node, token string) api.JoinList {
	tb.Helper()
	reader := Reader{Client: fake.NewClientset(), Now: func() time.Time { return start }}
	j := OpenJoins(tb.Context(), reader, kubefacts.OpenNodes(tb.Context(), reader.Client))
	_, _, err := j.watches().looks.Get(tb.Context(), nil, func(context.Context) (*look, bool, error) { return l, true, nil })
	must.OK(tb, err)
	return must.Value(j.List(tb.Context(), node, token))(tb)
}

// list returns the names of the machines in the list.
func (l *look) list(tb testing.TB, node, token string) string {
	tb.Helper()
	var names []string
	for _, join := range l.read(tb, node, token).Items {
		names = append(names, join.Node)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// Catches a time of a kubelet that JSON cannot have: one machine would end the list for all callers.
func TestShowsMachineWithAnyTime(t *testing.T) {
	for _, seconds := range []int64{1 << 50, -1 << 50, time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600)).Unix()} {
		ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(seconds, 0)}
		l := seen()
		l.nodes["a"] = kubefacts.SeenNode{Registration: kubefacts.Registration{UID: "n", Created: start}, Ready: ready}
		_, err := json.Marshal(l.read(t, "", ""))
		g := gathering{Reader: Reader{Client: fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{ready}}})}, facts: explain.Facts{Node: "a"}}
		must.OK(t, g.node(t.Context()))
		_, failed := json.Marshal(explain.Explain(g.facts, start))
		if err := errors.Join(err, failed); err != nil || g.facts.Object.Ready != "True" {
			t.Errorf("Ready since %d: %v", seconds, err)
		}
	}
}

// Catches a machine that the list lacks, and one that it has although it does not join.
func TestListsMachinesThatJoin(t *testing.T) {
	node := func(created, changed time.Duration, ready corev1.ConditionStatus) kubefacts.SeenNode {
		return kubefacts.SeenNode{
			Registration: kubefacts.Registration{UID: "n", Created: start.Add(-created)},
			Ready:        corev1.NodeCondition{Status: ready, LastTransitionTime: metav1.NewTime(start.Add(-changed))},
		}
	}
	tainted := node(9*time.Hour, 9*time.Hour, corev1.ConditionTrue)
	tainted.Joining = &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: tokens.JoiningTaint}}}}
	machine := tokens.Machine{Key: "lusab-babad-gutih-tugad", Added: start}
	revoked, expired := machine, machine
	revoked.Revoked, expired.Expires = true, start.Add(-time.Second)
	const user, itself = "jane", tokens.NodeUserPrefix + "a"
	limited := func(change func(*tokens.Record)) tokens.Record {
		r := tokens.NewRecord(tokens.Generate(), time.Hour, start)
		r.Created, r.Authentication, r.Limits.NodeNames, r.Limits.MaxNodes = start, true, []string{"a", "b-*"}, 2
		change(&r)
		return r
	}
	waiting := seen()
	waiting.common.facts.Turn = &api.TurnEvidence{Holder: "cp-1", Waiting: []api.WaitingEvidence{{Node: "a"}}}
	if waiting.knows("b") {
		t.Error("a machine that waits makes another one known")
	}
	for about, test := range map[string]struct {
		look     *look
		requests []object
		node     *kubefacts.SeenNode
		claim    tokens.Claim
		want     bool
	}{
		"nothing":                  {},
		"a new Node":               {node: new(node(59*time.Minute, 58*time.Minute, corev1.ConditionTrue)), want: true},
		"an old Node":              {node: new(node(61*time.Minute, 60*time.Minute, corev1.ConditionTrue))},
		"never Ready":              {node: new(node(9*time.Hour, 9*time.Hour, corev1.ConditionFalse)), want: true},
		"never reported":           {node: new(kubefacts.SeenNode{Registration: kubefacts.Registration{Created: start.Add(-9 * time.Hour)}}), want: true},
		"always Ready":             {node: new(node(9*time.Hour, 9*time.Hour, corev1.ConditionTrue))},
		"no longer Ready":          {node: new(node(9*time.Hour, time.Minute, corev1.ConditionUnknown))},
		"taint":                    {node: &tainted, want: true},
		"pending":                  {requests: []object{requestOf(t, "a", user, 9*time.Hour)}, want: true},
		"just refused":             {requests: []object{decided(requestOf(t, "a", user, 9*time.Hour), certificates.CertificateDenied, time.Minute)}, want: true},
		"just failed":              {requests: []object{decided(requestOf(t, "a", user, 9*time.Hour), certificates.CertificateFailed, time.Minute)}, want: true},
		"refused long ago":         {requests: []object{decided(requestOf(t, "a", user, 9*time.Hour), certificates.CertificateDenied, 2*time.Hour)}},
		"failed long ago":          {requests: []object{decided(requestOf(t, "a", user, 9*time.Hour), certificates.CertificateFailed, 2*time.Hour)}},
		"just issued":              {requests: []object{signed(requestOf(t, "a", user, 9*time.Hour), time.Minute)}, want: true},
		"issued long ago":          {requests: []object{signed(requestOf(t, "a", user, 9*time.Hour), 2*time.Hour)}},
		"renews":                   {requests: []object{requestOf(t, "a", itself, time.Minute)}, node: new(node(9*time.Hour, 2*time.Hour, corev1.ConditionTrue))},
		"another wants its name":   {requests: []object{requestOf(t, "a", user, time.Minute)}, node: new(node(9*time.Hour, 2*time.Hour, corev1.ConditionTrue)), want: true},
		"replaced":                 {requests: []object{signed(requestOf(t, "a", user, time.Minute), time.Minute)}, node: new(node(9*time.Hour, 2*time.Hour, corev1.ConditionUnknown)), want: true},
		"pending since before":     {requests: []object{requestOf(t, "a", user, 10*time.Hour)}, node: new(node(9*time.Hour, 2*time.Hour, corev1.ConditionTrue))},
		"claimed":                  {claim: tokens.Claim{TokenID: "abcdef", Created: start.Add(-9 * time.Hour)}, want: true},
		"its Node was deleted":     {claim: tokens.Claim{TokenID: "abcdef", NodeUID: "n"}},
		"claimed, with its Node":   {claim: tokens.Claim{TokenID: "abcdef"}, node: new(node(9*time.Hour, 2*time.Hour, corev1.ConditionTrue))},
		"released":                 {claim: tokens.Claim{Past: tokens.ReleasedClaim{Until: start.Add(time.Hour)}}},
		"a machine":                {claim: tokens.Claim{Machine: machine}, want: true},
		"a revoked machine":        {claim: tokens.Claim{Machine: revoked}},
		"an expired machine":       {claim: tokens.Claim{Machine: expired}},
		"a machine that is Ready":  {claim: tokens.Claim{Machine: machine}, node: new(node(9*time.Hour, 2*time.Hour, corev1.ConditionTrue))},
		"a machine that joined":    {claim: tokens.Claim{Machine: machine, Identity: tokens.Identity{NodeUID: "n"}}},
		"expected":                 {look: seen(limited(func(*tokens.Record) {})), want: true},
		"expected, with its Node":  {look: seen(limited(func(*tokens.Record) {})), node: new(node(9*time.Hour, 2*time.Hour, corev1.ConditionTrue))},
		"an expired token":         {look: seen(limited(func(r *tokens.Record) { r.Expires = start }))},
		"a spent token":            {look: seen(limited(func(r *tokens.Record) { r.Nodes = []string{"x", "y"} }))},
		"a token that has used it": {look: seen(limited(func(r *tokens.Record) { r.Nodes = []string{"a"} }))},
		"a malformed token":        {look: seen(limited(func(r *tokens.Record) { r.Problem = errors.New("malformed") }))},
		"waits for its turn":       {look: waiting, want: true},
		"a token of another use":   {look: seen(limited(func(r *tokens.Record) { r.Authentication = false }))},
	} {
		l := test.look
		if l == nil {
			l = seen()
		}
		for _, o := range test.requests {
			l.requests["a"] = append(l.requests["a"], must.Value(decodeRequest(o))(t))
		}
		if test.node != nil {
			l.nodes["a"] = *test.node
		}
		if test.claim.Created = start; !test.claim.Empty() {
			test.claim.Node = "a"
			l.claims["a"] = test.claim
		}
		if got := l.list(t, "", ""); got != map[bool]string{true: "a"}[test.want] {
			t.Errorf("%s: got %q, want it listed: %t", about, got, test.want)
		}
	}
}

// Catches a machine that counts for a token that it has not joined with.
func TestListsMachinesOfToken(t *testing.T) {
	r := tokens.NewRecord(tokens.Generate(), time.Hour, start)
	r.UID, r.Created, r.Nodes = "u", start.Add(-4*time.Hour), []string{"counted", "released"}
	r.Limits.NodeNames = []string{"counted", "*"}
	id := r.Token.ID()
	l := seen(r)
	for name, c := range map[string]tokens.Claim{
		"claimed": {TokenID: id, TokenUID: "u", NodeUID: "n"}, "past": {Past: tokens.ReleasedClaim{Until: start.Add(time.Hour)}}, "before": {TokenID: id, TokenUID: "other"}, "other": {TokenID: "abcdef", TokenUID: "u"},
		"unlimited": {Identity: tokens.Identity{TokenID: id, NodeUID: "n"}},
	} {
		c.Node, c.Created = name, start
		l.claims[name] = c
	}
	for _, name := range []string{"claimed", "counted", "unlimited", "stranger"} {
		l.nodes[name] = kubefacts.SeenNode{
			Registration: kubefacts.Registration{UID: "n", Created: start.Add(-3 * time.Hour)},
			Ready:        corev1.NodeCondition{Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start.Add(-2 * time.Hour))},
		}
	}
	for name, ago := range map[string]time.Duration{"requested": time.Minute, "requested-before": 5 * time.Hour} {
		l.requests[name] = []listedRequest{must.Value(decodeRequest(requestOf(t, name, tokens.BootstrapUserPrefix+id, ago)))(t)}
	}
	if got, want := l.list(t, "", id), "claimed counted requested unlimited"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for node, want := range map[string]string{"claimed": "claimed", "before": "", "released": "", "nobody": "", "past": ""} {
		if got := l.list(t, node, id); got != want {
			t.Errorf("got %q for node %s, want %q", got, node, want)
		}
	}
	for node, want := range map[string]string{"before": "before", "past": "", "released": ""} {
		if got := l.list(t, node, ""); got != want {
			t.Errorf("got %q for node %s without a token, want %q", got, node, want)
		}
	}
	l.revoked = map[revocation.Key]revocation.Entry{"revoked": {Node: "revoked", Since: start.Add(-time.Minute)}}
	if got := l.join("revoked").Reason; got != explain.Revoked {
		t.Errorf("got reason %s for a revoked node, want %s", got, explain.Revoked)
	}
	if l.revoked = nil; l.join("revoked").Reason != explain.Revoked {
		t.Error("explains a machine twice in one look")
	}
}

// Catches a wrong "12 of 40": the number of nodes of a token is unknown if it allows any of many names.
func TestCountsNodesOfToken(t *testing.T) {
	for about, test := range map[string]struct {
		limits tokens.Limits
		want   int
	}{
		"no limit": {}, "nodes": {tokens.Limits{MaxNodes: 3, NodeNames: []string{"a"}}, 3}, "names": {tokens.Limits{NodeNames: []string{"a", "b"}}, 2},
		"patterns": {tokens.Limits{NodeNames: []string{"a", "b-*"}}, 0}, "a Node": {tokens.Limits{Replaces: tokens.NodeRef{Name: "a", UID: "n"}}, 1},
	} {
		r := tokens.NewRecord(tokens.Generate(), time.Hour, start)
		r.Limits = test.limits
		if got := seen(r).read(t, "", r.Token.ID()).Nodes; got != test.want {
			t.Errorf("%s: got %d nodes, want %d", about, got, test.want)
		}
	}
}

// Requesters choose the labels, the annotations and the request. Catches a list that keeps them in memory.
func TestListKeepsLittleOfRequest(t *testing.T) {
	o := requestOf(t, "a", "jane", time.Minute)
	large := strings.Repeat("x", 1<<16)
	o.Annotations, o.Labels, o.Spec.Usages = map[string]string{"a": large}, map[string]string{"a": large}, []certificates.KeyUsage{certificates.KeyUsage(large)}
	o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: large}}
	ca := certtest.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "kubernetes"}, NotAfter: start, IsCA: true, BasicConstraintsValid: true}, nil)
	o.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Leaf.Raw})
	kept := must.Value(decodeRequest(o))(t)
	kept.object.Status.Certificate = nil
	if kept.evidence.Certificate == nil || kept.evidence.Certificate.Chain != nil {
		t.Errorf("got the certificate %+v, want one that is not parsed", kept.evidence.Certificate)
	}
	if size := kept.object.Size(); size > 500 {
		t.Errorf("keeps %d bytes", size)
	}
	for name, o := range map[string]object{"malformed": {}, "no node name": requestOf(t, "A", "jane", time.Minute), "another user": requestFor(t, "a", "a", "jane", time.Minute)} {
		if got, err := decodeRequest(o); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

// Catches a review for each request, without an end, and a requester beyond the limit whose permission is not reported as unread.
func TestChecksFewPermissions(t *testing.T) {
	reviews := 0
	client := apitest.Reviews(t, func() any { reviews++; return authorization.SubjectAccessReviewStatus{} })
	var all []listedRequest
	add := func(user string, change func(object)) {
		o := requestOf(t, "a", user, time.Minute)
		o.Spec.Groups = nil
		change(o)
		all = append(all, must.Value(decodeRequest(o))(t))
	}
	pending := func(object) {}
	for range 100 {
		add("jane", pending)
	}
	add("decided", func(o object) { decided(o, certificates.CertificateDenied, 0) })
	add("serving", func(o object) { o.Spec.SignerName = certificates.KubeletServingSignerName })
	g := gathering{Reader: Reader{Client: client}}
	if g.permissions(t.Context(), all); len(g.facts.Unread) > 0 || reviews != 1 || all[99].evidence.Permitted == nil || all[100].evidence.Permitted != nil {
		t.Errorf("got %d reviews, %v, want 1", reviews, g.facts.Unread)
	}
	for i := range maxPermissions {
		add(fmt.Sprint("user-", i), pending)
	}
	add("jane", pending)
	if g.permissions(t.Context(), all); len(g.facts.Unread) != 1 || reviews != 1+maxPermissions || all[len(all)-2].evidence.Permitted != nil || all[len(all)-1].evidence.Permitted == nil {
		t.Errorf("got %d reviews, %v, want %d and an error for the last user", reviews, g.facts.Unread, 1+maxPermissions)
	}
}

// opened returns the Joins of an empty cluster, with the calls of its client.
func opened(ctx context.Context, change func(*Reader)) (*Joins, *fake.Clientset) {
	client := fake.NewClientset()
	db := memdb.Open()
	r := Reader{Client: client, Tokens: db, Claims: db.Claims(), ClusterInfo: noInfo{}}
	change(&r)
	return OpenJoins(ctx, r, kubefacts.OpenNodes(ctx, client)), client
}

func calls(c *fake.Clientset, verb, resource string) (n int) {
	for _, a := range c.Actions() {
		if a.Matches(verb, resource) {
			n++
		}
	}
	return n
}

// Catches a look for each viewer, and any call to the API server without a viewer.
func TestLooksOnceASecondAndOnlyForViewers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, client := opened(t.Context(), func(*Reader) {})
		var mu sync.Mutex
		var watching []*watch.FakeWatcher
		client.PrependWatchReactor("*", func(kubetesting.Action) (bool, watch.Interface, error) {
			w := watch.NewFake()
			mu.Lock()
			defer mu.Unlock()
			watching = append(watching, w)
			return true, w, nil
		})
		watches := func() []*watch.FakeWatcher {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return watching
		}
		synctest.Wait()
		if n := len(client.Actions()); n != 0 {
			t.Errorf("%d calls before the first viewer", n)
		}
		view := func() {
			var viewers sync.WaitGroup
			for range 50 {
				viewers.Go(func() {
					if list, err := j.List(t.Context(), "", ""); err != nil || len(list.Unread) != 0 {
						t.Errorf("got %+v, %v", list, err)
					}
				})
			}
			viewers.Wait()
		}
		for range 100 { // more than joinsIdle
			view()
			time.Sleep(joinsAge + time.Nanosecond)
		}
		if n := calls(client, "get", "leases"); n != 200 { // the leader and the turn
			t.Errorf("got %d calls of 50 viewers in 100 s, want 200", n)
		}
		if n := calls(client, "list", "certificatesigningrequests") + calls(client, "list", "nodes"); n != 2 || len(watches()) != 2 {
			t.Errorf("got %d lists and %d watches, want one of each for the requests and for the Nodes", n, len(watches()))
		}
		time.Sleep(joinsIdle)
		synctest.Wait()
		before := len(client.Actions())
		for _, w := range watches() {
			if !w.IsStopped() {
				t.Error("a watch goes on without a viewer")
			}
		}
		time.Sleep(time.Hour)
		if n := len(client.Actions()) - before; n != 0 {
			t.Errorf("%d calls without a viewer", n)
		}
		if view(); len(watches()) != 4 {
			t.Errorf("got %d watches, want two more for the next viewer", len(watches()))
		}
		time.Sleep(joinsIdle - time.Second)
		view() // the timers of before must not end it
		time.Sleep(joinsIdle - time.Second)
		if view(); len(watches()) != 4 {
			t.Errorf("got %d watches, want none more while somebody looks", len(watches()))
		}
	})
}

// Catches a second watch of Nodes in the replica that watches them anyway.
func TestSharesNodesWithLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		nodes := kubefacts.OpenNodes(t.Context(), client)
		must.Value(nodes.Nodes(t.Context()))(t)
		db := memdb.Open()
		j := OpenJoins(t.Context(), Reader{Client: client, Tokens: db, ClusterInfo: noInfo{}}, nodes)
		must.Value(j.List(t.Context(), "", ""))(t)
		if n := calls(client, "list", "nodes"); n != 1 {
			t.Errorf("%d lists of Nodes, want 1", n)
		}
	})
}

// A caller left during a look. Catches its error in the list of the next caller.
func TestLookOfCallerThatLeftIsNotShared(t *testing.T) {
	j, client := opened(t.Context(), func(*Reader) {})
	must.Value(j.List(t.Context(), "", ""))(t) // fills the caches
	j.open.looks = callcache.New[*look](joinsAge, 0, 0)
	ctx, leave := context.WithCancel(t.Context())
	client.PrependReactor("get", "leases", func(kubetesting.Action) (bool, k8s.Object, error) {
		if ctx.Err() == nil {
			leave()
			time.Sleep(10 * time.Millisecond) // until the context of the look has ended
			return true, nil, context.Canceled
		}
		return false, nil, nil
	})
	if _, err := j.List(ctx, "", ""); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	if list, err := j.List(t.Context(), "", ""); err != nil || len(list.Unread) > 0 {
		t.Errorf("got %+v, %v, want a list", list, err)
	}
}

// Somebody created the token after the look. Catches a list that says that it does not exist.
func TestListsNodesOfNewToken(t *testing.T) {
	db := memdb.Open()
	j, _ := opened(t.Context(), func(r *Reader) { r.Tokens = staleList{db} })
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits.MaxNodes = 2
	must.Value(db.Create(t.Context(), r))(t)
	if list, err := j.List(t.Context(), "", r.Token.ID()); err != nil || list.Nodes != 2 {
		t.Errorf("got %+v, %v, want an empty list for 2 nodes", list, err)
	}
}

// Catches a list that takes what it could not read for nothing.
func TestListNeedsItsFacts(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("no"))
	for name, change := range map[string]func(*Reader){
		"tokens": func(r *Reader) { r.Tokens = storetest.Fail(forbidden).Store(memdb.Open()) },
		"claims": func(r *Reader) { r.Claims = storetest.Fail(forbidden).Claims(memdb.Open().Claims()) },
		"nodes":  func(r *Reader) { r.Timeout = time.Second; fails(r, "list", "nodes", forbidden) },
		"requests": func(r *Reader) {
			r.Timeout = time.Second
			fails(r, "list", "certificatesigningrequests", forbidden)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			j, _ := opened(t.Context(), change)
			for _, token := range []string{"", "abcdef"} {
				if list, err := j.List(t.Context(), "", token); !apierrors.IsForbidden(err) {
					t.Errorf("%s: got %+v, %v, want an error", name, list, err)
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		j, _ := opened(t.Context(), func(r *Reader) {
			r.ClusterInfo = noInfo{errors.New("down\x1b" + strings.Repeat("x", 1<<16))}
			fails(r, "get", "leases", forbidden)
		})
		list, err := j.List(t.Context(), "", "")
		if err != nil || len(list.Unread) != 3 || !slices.IsSortedFunc(list.Unread, func(a, b api.UnreadFact) int { return cmp.Compare(a.Fact, b.Fact) }) {
			t.Errorf("got %+v, %v, want three facts in order", list.Unread, err)
		}
		for _, u := range list.Unread {
			if len(u.Reason) > 2000 || strings.Contains(u.Reason, "\x1b") {
				t.Errorf("got a reason of %d bytes for %s, want a short and printable one", len(u.Reason), u.Fact)
			}
		}
		if _, err := j.List(t.Context(), "", "abcdef"); !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("got %v, want %v", err, tokens.ErrNotFound)
		}
	})
}

func fails(r *Reader, verb, resource string, err error) {
	client, _ := r.Client.(*fake.Clientset)
	client.PrependReactor(verb, resource, func(kubetesting.Action) (bool, k8s.Object, error) { return true, nil, err })
}

func BenchmarkTenThousandMachines(b *testing.B) {
	const size = 10_000
	ca := certtest.Issue(b, &x509.Certificate{Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: start.Add(-time.Hour), NotAfter: start.Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	leaf := certtest.Issue(b, &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:x"}, NotBefore: start.Add(-time.Hour), NotAfter: start.Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca).Leaf
	one := tokens.NewRecord(tokens.Generate(), time.Hour, start.Add(-time.Hour))
	one.Created, one.UID, one.Authentication = start.Add(-time.Hour), "u", true
	info := must.Value(clusterinfo.Document{}.Update(must.Value(clusterinfo.Kubeconfig("https://api.example.com:6443", []*x509.Certificate{ca.Leaf}))(b), []tokens.Record{one}, start))(b).Data()
	for kind, fill := range map[string]func(l *look, node string){
		"expected": func(l *look, node string) {
			r := tokens.NewRecord(tokens.Generate(), time.Hour, start)
			r.Created, r.Limits.NodeNames, r.Authentication = start, []string{node}, true
			l.common.facts.Tokens = append(l.common.facts.Tokens, r)
		},
		"refused": func(l *look, node string) {
			o := requestOf(b, node, tokens.BootstrapUserPrefix+one.Token.ID(), time.Minute)
			o.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateDenied, Reason: "TokenSpent", Message: "token abcdef is spent", LastUpdateTime: metav1.NewTime(start)}}
			l.requests[node] = append(l.requests[node], must.Value(decodeRequest(o))(b))
		},
		"pending": func(l *look, node string) {
			l.requests[node] = append(l.requests[node], must.Value(decodeRequest(requestOf(b, node, tokens.BootstrapUserPrefix+one.Token.ID(), time.Minute)))(b))
		},
		"issued": func(l *look, node string) {
			o := requestOf(b, node, tokens.BootstrapUserPrefix+one.Token.ID(), time.Minute)
			o.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
			l.requests[node] = append(l.requests[node], must.Value(decodeRequest(o))(b))
			l.claims[node] = tokens.Claim{Node: node, TokenID: one.Token.ID(), TokenUID: "u", Created: start}
		},
		"Ready": func(l *look, node string) {
			o := requestOf(b, node, tokens.BootstrapUserPrefix+one.Token.ID(), time.Minute)
			o.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})
			l.requests[node] = append(l.requests[node], must.Value(decodeRequest(o))(b))
			l.claims[node] = tokens.Claim{Node: node, TokenID: one.Token.ID(), TokenUID: "u", Created: start, NodeUID: "n"}
			l.nodes[node] = kubefacts.SeenNode{Registration: kubefacts.Registration{UID: "n", Created: start}, Ready: corev1.NodeCondition{Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(start)}}
		},
	} {
		b.Run(kind, func(b *testing.B) {
			l := &look{now: start, requests: map[string][]listedRequest{}, claims: map[string]tokens.Claim{}, nodes: map[string]kubefacts.SeenNode{}}
			l.common = gathering{Reader: Reader{}.withDefaults(), facts: explain.Facts{Tokens: []tokens.Record{one}, ClusterInfo: explain.ParseClusterInfo(info)}}
			for i := range size {
				fill(l, fmt.Sprintf("node-%d", i))
			}
			b.ReportAllocs()
			for b.Loop() {
				l.index()
				n := 0
				for node := range l.names(tokens.Record{}) {
					if l.knows(node) {
						l.join(node)
						n++
					}
				}
				if n != size {
					b.Fatalf("got %d machines, want %d", n, size)
				}
			}
		})
	}
}
