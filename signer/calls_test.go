package signer_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/kube/nodeproperties"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// A counted is kubejoin with one kind of store, and counts the calls of the store.
type counted struct {
	*testing.T
	signer.Authority
	store   tokens.Store
	claims  tokens.Claims
	client  *fake.Clientset                // nil with rows
	addNode func(name string) (uid string) // a Node registers
	reset   func()
	calls   func() []string
	now     time.Time
}

// countedOnKubernetes counts requests to the API server.
func countedOnKubernetes(t *testing.T) *counted {
	client := fake.NewClientset()
	version := 0
	for _, verb := range []string{"create", "update"} { // the fake API server sets neither UIDs nor versions
		client.PrependReactor(verb, "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
			version++
			o := a.(kubetesting.CreateAction).GetObject().(metav1.Object)
			o.SetResourceVersion(fmt.Sprint(version))
			if verb == "create" {
				o.SetUID(types.UID(fmt.Sprint("uid-", version)))
			}
			return false, nil, nil
		})
	}
	client.PrependReactor("patch", "*", func(a kubetesting.Action) (bool, runtime.Object, error) { // the fake API server does not compare versions either
		patch := a.(kubetesting.PatchAction)
		now, err := client.Tracker().Get(patch.GetResource(), patch.GetNamespace(), patch.GetName())
		if lease, is := now.(*coordinationv1.Lease); err == nil && is && !strings.Contains(string(patch.GetPatch()), fmt.Sprintf(`"resourceVersion":%q`, lease.ResourceVersion)) {
			return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), lease.Name, nil)
		}
		_, patched, err := kubetesting.ObjectReaction(client.Tracker())(a)
		if err == nil {
			version++
			patched.(metav1.Object).SetResourceVersion(fmt.Sprint(version))
			err = client.Tracker().Update(patch.GetResource(), patched, patch.GetNamespace())
		}
		return true, patched, err
	})
	store := must.Get(secretstore.Open(t.Context(), client, nil))
	claims := must.Get(secretstore.OpenClaims(t.Context(), client, store, secretstore.ClaimNamespace, nil))
	nodes := kubefacts.OpenNodes(t.Context(), client)
	return &counted{
		T: t, store: store, claims: claims, client: client, Authority: signer.Authority{Nodes: &admission.Nodes{Node: nodes.Node, Ready: nodes.Ready}},
		addNode: func(name string) string {
			return string(must.Get(client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})).UID)
		},
		reset: client.ClearActions,
		calls: func() (all []string) {
			for _, a := range client.Actions() {
				all = append(all, a.GetVerb()+" "+a.GetResource().Resource)
			}
			return all
		},
	}
}

// countedOnRows counts calls of a store that keeps tokens and claims in one database, except calls that read a cache.
func countedOnRows(t *testing.T) *counted {
	var all []string
	count := storetest.Faulty(func(c *storetest.Call, do func() error) error {
		if !slices.Contains([]string{"change", "cached", "Find"}, c.Method[strings.LastIndex(c.Method, ".")+1:]) {
			all = append(all, c.Method)
		}
		return do()
	})
	db := memdb.Open()
	return &counted{
		T: t, store: count.Store(db), claims: count.Claims(db.Claims()), Authority: signer.Authority{Nodes: &admission.Nodes{}},
		addNode: func(string) string { return "" }, reset: func() { all = nil }, calls: func() []string { return all },
	}
}

// start lets kubejoin sign, with the clock c.now.
func (c *counted) start() {
	c.Helper()
	c.now = time.Now()
	clock := func() time.Time { return c.now }
	c.Facts, c.Now = allowsAll{}, clock
	signers := must.Get(signer.KubernetesSigners(signer.Fixed(newCA(c.T)), time.Hour))
	for name, s := range signers {
		s.Rules = []approval.Rule{rule{Verdict: approval.Approve}}
		signers[name] = s
	}
	c.Signers = signer.FixedSigners(signers)
	c.Authority.Nodes.Tokens, c.Authority.Nodes.Claims, c.Authority.Nodes.Now = c.store, c.claims, clock
}

func (c *counted) token(limits tokens.Limits) string {
	c.Helper()
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	r.Limits = limits
	if _, err := c.store.Create(c.Context(), r); err != nil {
		c.Fatal(err)
	}
	return r.Token.ID()
}

// first requests the first certificate of a node.
func (c *counted) first(id, node string) error {
	r := nodeRequest(c, tokens.BootstrapUserPrefix+id, node)
	r.Created = time.Time{}
	_, err := c.Issue(c.Context(), r)
	return err
}

// own requests a certificate for a node that already has one.
func (c *counted) own(node string, change func(*approval.Request)) error {
	r := nodeRequest(c, tokens.NodeUserPrefix+node, node)
	r.Groups = []string{tokens.NodesGroup}
	change(&r)
	_, err := c.Issue(c.Context(), r)
	return err
}

// renew renews the certificate of a node, which authenticates with its last one.
func (c *counted) renew(node string) error {
	claim, _ := c.claims.Get(c.Context(), node, tokens.Cached) // the zero Claim if there is none, for example for an invalid name
	c.reset()
	return c.own(node, func(r *approval.Request) {
		r.Extra = map[string][]string{revocation.CredentialIDKey: {revocation.Fingerprint(claim.Identity.Last().Fingerprint).CredentialID()}}
	})
}

// Each call of an operation slows down the join of a rack or the renewals of a cluster. A call that is not in these
// lists needs a good reason. The API server also gets the CSR object: one write to approve it, and one with the
// certificate.
func TestCallsOfEachOperation(t *testing.T) {
	one, many, names := tokens.Limits{MaxNodes: 1}, tokens.Limits{MaxNodes: 9}, tokens.Limits{NodeNames: []string{"worker-*"}}
	labels := tokens.NodeProperties{Labels: "a=b", Taints: "c:NoSchedule", ReadyAfter: tokens.ReadyAfterServingCertificate}
	labeled := tokens.Limits{MaxNodes: 1, Node: labels}
	joined := func(limits tokens.Limits) func(*counted) string {
		return func(c *counted) string {
			id := c.token(limits)
			if err := c.first(id, "worker-1"); err != nil {
				c.Fatal(err)
			}
			c.addNode("worker-1")
			return id
		}
	}
	withToken := func(limits tokens.Limits) func(*counted) string {
		return func(c *counted) string { return c.token(limits) }
	}
	joins := func(node string) func(*counted, string) error {
		return func(c *counted, id string) error { return c.first(id, node) }
	}
	for _, test := range []struct {
		name       string
		identities bool // with --rejoin-window
		existing   bool // with --existing-nodes=allow
		before     func(*counted) string
		do         func(c *counted, of string) error // of is the result of before
		refused    string
		kube, rows string
	}{
		{name: "first certificate, without limits", before: withToken(tokens.Limits{}), do: joins("worker-1"),
			kube: "get leases, get nodes, get secrets, list leases", rows: "Claims.Get.recent, Claims.HeldBy.recent, Store.Get.recent"},
		{name: "first certificate, one node", before: withToken(one), do: joins("worker-1"),
			kube: "create leases, get nodes, get secrets, list leases, update secrets", rows: "Claims.Commit, Claims.HeldBy"},
		{name: "first certificate, existing Nodes allowed", existing: true, before: withToken(one), do: joins("worker-1"),
			kube: "create leases, get secrets, list leases, update secrets", rows: "Claims.Commit, Claims.HeldBy"},
		{name: "second machine of a token for many", before: joined(many), do: joins("worker-2"),
			kube: "create leases, get nodes, get secrets, update secrets", rows: "Claims.Commit"},
		{name: "first certificate, names", before: withToken(names), do: joins("worker-1"),
			kube: "create leases, get nodes, get secrets, list leases", rows: "Claims.Commit, Claims.HeldBy, Store.Get"},
		{name: "first certificate, one node with labels", before: withToken(labeled), do: joins("worker-1"),
			kube: "create leases, get nodes, get secrets, list leases, update secrets", rows: "Claims.Commit, Claims.HeldBy"},
		{name: "first certificate, labels alone", before: withToken(tokens.Limits{Node: labels}), do: joins("worker-1"),
			kube: "create leases, get nodes, get secrets, list leases", rows: "Claims.Commit, Claims.HeldBy, Store.Get"},
		{name: "the same machine again, another key", before: func(c *counted) string {
			id := c.token(one)
			if err := c.first(id, "worker-1"); err != nil {
				c.Fatal(err)
			}
			return id
		}, do: joins("worker-1"), kube: "get leases, get nodes, 2 get secrets, patch leases", rows: "Claims.Commit, Claims.Get, Store.Get"},
		{name: "spent token", before: joined(one), do: joins("worker-2"), refused: "TokenSpent", kube: "get secrets", rows: "Store.Get"},
		{name: "renewal", before: joined(one), do: func(c *counted, _ string) error { return c.renew("worker-1") }, kube: "get nodes", rows: "Claims.Update"},
		{name: "renewal, with labels", before: joined(labeled), do: func(c *counted, _ string) error { return c.renew("worker-1") }, kube: "get nodes", rows: "Claims.Update"},
		{name: "renewal, without limits", before: joined(tokens.Limits{}), do: func(c *counted, _ string) error { return c.renew("worker-1") }, kube: "get leases, get nodes", rows: "Claims.Get"},
		{name: "renewal of a name that can have no claim", before: func(c *counted) string { c.addNode("Worker_1"); return "" },
			do: func(c *counted, _ string) error { return c.renew("Worker_1") }, kube: "get nodes", rows: ""},
		{name: "serving certificate", before: joined(one), do: func(c *counted, _ string) error {
			return c.own("worker-1", func(r *approval.Request) {
				r.SignerName, r.Usages, r.CSR = certificates.KubeletServingSignerName, servingUsages, kubernetesRequest(c, certificates.KubeletServingSignerName, nil).CSR
			})
		}, kube: "", rows: "Claims.Update"},
		{name: "first certificate with identity, without limits", identities: true, before: withToken(tokens.Limits{}), do: joins("worker-1"), kube: "create leases, get leases, get nodes, get secrets, list leases", rows: "Claims.Create, Claims.Get.recent, Claims.HeldBy.recent, Store.Get.recent"},
		{name: "first certificate with identity, one node", identities: true, before: withToken(one), do: joins("worker-1"), kube: "create leases, get nodes, get secrets, list leases, patch leases, update secrets", rows: "Claims.Commit, Claims.HeldBy, Claims.Update"},
		{name: "renewal with identity", identities: true, before: joined(one), do: func(c *counted, _ string) error { return c.renew("worker-1") }, kube: "get nodes, patch leases", rows: "2 Claims.Update"},
		{name: "rejoin", identities: true, before: func(c *counted) (key string) {
			if err := c.first(c.token(one), "worker-1"); err != nil {
				c.Fatal(err)
			}
			uid := c.addNode("worker-1")
			claim := must.Get(storetest.UpdateClaim(c.Context(), c.claims, "worker-1", func(c *tokens.Claim) error { c.Identity.NodeUID = uid; return nil }))
			return claim.Identity.Last().Key
		}, do: func(c *counted, key string) error {
			c.now = c.now.Add(2 * time.Hour)
			return c.own("worker-1", func(r *approval.Request) {
				r.Rejoin = &approval.Rejoin{Key: key, NotAfter: c.now.Add(-time.Hour)}
			})
		}, kube: "get leases, get nodes, patch leases", rows: "Claims.Get, Claims.Update"},
		{name: "create a token", before: func(*counted) string { return "" }, do: func(c *counted, _ string) error { c.token(one); return nil },
			kube: "create secrets", rows: "Store.Create"},
		{name: "delete a token", before: joined(one), do: func(c *counted, id string) error {
			_, err := (&mint.Minter{Tokens: c.store}).Delete(c.Context(), id, mint.Deletion{})
			return err
		}, kube: "delete secrets, get secrets", rows: "Store.Delete, Store.Get"},
	} {
		for kind, want := range map[string]string{"Kubernetes": test.kube, "rows": test.rows} {
			t.Run(test.name+", "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					open := countedOnKubernetes
					if kind == "rows" {
						open = countedOnRows
					}
					c := open(t)
					c.start()
					c.Authority.Nodes.AllowExisting = test.existing
					if test.identities {
						c.Authority.Nodes.RejoinWindow = 24 * time.Hour
					}
					synctest.Wait()
					id := test.before(c)
					synctest.Wait() // the caches are current
					c.reset()
					err := test.do(c, id)
					if refused := approval.Refused(err); refused != nil && refused.Reason != test.refused || refused == nil && (err != nil || test.refused != "") {
						t.Errorf("got error %v, want a refusal with reason %q", err, test.refused)
					}
					if got := summary(c.calls()); got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				})
			})
		}
	}
}

// Each Node costs calls when it registers. Catches a call more for a Node whose token has no labels, and another call for one
// with them. Caches of all Nodes and of all requests are not counted.
func TestCallsOfRegistration(t *testing.T) {
	served := tokens.ReadyAfterServingCertificate
	for name, test := range map[string]struct {
		limits tokens.Limits
		want   string
	}{
		"limits":                     {limits: tokens.Limits{MaxNodes: 1}, want: "get nodes, patch leases"},
		"no limits":                  {want: ""},
		"labels":                     {limits: tokens.Limits{MaxNodes: 1, Node: tokens.NodeProperties{Labels: "a=b", Taints: "c:NoSchedule"}}, want: "get leases, get nodes, patch leases, patch nodes"},
		"labels after a certificate": {limits: tokens.Limits{MaxNodes: 1, Node: tokens.NodeProperties{Labels: "a=b", ReadyAfter: served}}, want: "get leases, 2 get nodes, 2 patch leases, patch nodes"},
		"certificate":                {limits: tokens.Limits{MaxNodes: 1, Node: tokens.NodeProperties{ReadyAfter: served}}, want: "get leases, 2 get nodes, 2 patch leases, patch nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := countedOnKubernetes(t)
				c.start()
				synctest.Wait()
				if err := c.first(c.token(test.limits), "worker-1"); err != nil {
					t.Fatal(err)
				}
				nodes := kubefacts.OpenNodes(t.Context(), c.client)
				properties := nodeproperties.Open(t.Context(), c.client, nodes, c.claims.Get, func() bool { return true }, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
				claims := cleaner.Claims{
					Store: c.claims, Tokens: c.store, Node: nodes.Node, Nodes: nodes.Nodes, Ready: nodes.Ready, Properties: properties,
					NodesChanged: func(ctx context.Context) <-chan struct{} {
						return loop.Either(ctx, nodes.Watch(ctx), properties.Watch(ctx))
					},
				}
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- claims.Run(ctx) }()
				time.Sleep(5 * time.Second)
				c.reset()
				node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "n"}}
				if test.limits.Node.ReadyAfter != "" {
					node.Spec.Taints = []corev1.Taint{{Key: tokens.JoiningTaint, Effect: corev1.TaintEffectNoSchedule}}
				}
				must.Get(c.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}))
				time.Sleep(5 * time.Second)
				must.Get(c.client.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificates.CertificateSigningRequest{
					ObjectMeta: metav1.ObjectMeta{Name: "serving", CreationTimestamp: metav1.Now()},
					Spec:       certificates.CertificateSigningRequestSpec{SignerName: certificates.KubeletServingSignerName, Username: tokens.NodeUserPrefix + "worker-1"},
					Status:     certificates.CertificateSigningRequestStatus{Certificate: []byte("c")},
				}, metav1.CreateOptions{}))
				time.Sleep(20 * time.Second)
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				cached := func(call string) bool {
					return strings.HasPrefix(call, "create ") || strings.HasPrefix(call, "list ") || strings.HasPrefix(call, "watch ")
				}
				if got := summary(slices.DeleteFunc(c.calls(), cached)); got != test.want {
					t.Errorf("got %q, want %q", got, test.want)
				}
			})
		})
	}
}

// summary lists calls by name, with how often each was made.
func summary(calls []string) string {
	n := map[string]int{}
	for _, c := range calls {
		n[c]++
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(n)) {
		if n[name] > 1 {
			name = fmt.Sprint(n[name], " ", name)
		}
		all = append(all, name)
	}
	return strings.Join(all, ", ")
}
