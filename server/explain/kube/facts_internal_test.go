package kube

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// noInfo is a missing cluster-info, or one that fails with err.
type noInfo struct{ err error }

func (i noInfo) Data(context.Context) (map[string]string, error) {
	return nil, cmp.Or(i.err, clusterinfo.ErrNotFound)
}

func TestFactsOfCanceledCallAreAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := Reader{Client: fake.NewClientset(), Tokens: memdb.Open(), ClusterInfo: noInfo{}}
	if f, err := r.Facts(ctx, "worker-1"); err != nil || len(f.Unread) > 0 {
		t.Errorf("got %+v, %v, want all facts", f, err)
	}
	cancel()
	if f, err := r.Facts(ctx, "worker-1"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %+v, %v, want %v", f, err, context.Canceled)
	}
}

func TestFactsThatCannotBeReadAreReported(t *testing.T) {
	down := errors.New("down")
	for fact, r := range map[api.Fact]Reader{
		explain.FactTokens:      {Tokens: storetest.Fail(down).Store(memdb.Open()), ClusterInfo: noInfo{}},
		explain.FactClusterInfo: {Tokens: memdb.Open(), ClusterInfo: noInfo{down}},
	} {
		r.Client = fake.NewClientset()
		f, err := r.Facts(t.Context(), "worker-1")
		if err != nil || !slices.Equal(f.Unread, []api.UnreadFact{{Fact: fact, Reason: "down"}}) {
			t.Errorf("got unread %+v, %v, want %s", f.Unread, err, fact)
		}
	}
}

func TestIgnoresConditionsThatAreNotTrue(t *testing.T) {
	for status, want := range map[corev1.ConditionStatus]bool{"": true, corev1.ConditionTrue: true, corev1.ConditionFalse: false, corev1.ConditionUnknown: false} {
		o := by("jane")
		o.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateFailed, Status: status}}
		if got := request(o).Failed != nil; got != want {
			t.Errorf("status %q: got failed %t, want %t", status, got, want)
		}
	}
}

func by(user string) object {
	return &certificates.CertificateSigningRequest{Spec: certificates.CertificateSigningRequestSpec{Username: user}}
}

// Catches needless reads, and one of the token of a request for a serving certificate, which does not let a machine join.
func TestReadsTokenOfNewestBootstrapUser(t *testing.T) {
	const abc, other, serving = "system:bootstrap:abc123", "system:bootstrap:def456", "system:bootstrap:bad000"
	for name, test := range map[string]struct {
		users []string // newest first
		want  []string
	}{
		"bootstrap user":     {[]string{abc}, []string{"abc123"}},
		"not one":            {[]string{"abc123"}, nil},
		"not a token ID":     {[]string{"system:bootstrap:ABC123"}, nil},
		"the newest":         {[]string{abc, other}, []string{"abc123"}},
		"the node itself":    {[]string{"system:node:a", abc}, []string{"abc123"}},
		"serving, then join": {[]string{serving, abc}, []string{"abc123"}},
	} {
		var read []string
		store := storetest.Faulty(func(c *storetest.Call, do func() error) error {
			if c.Method == "Store.Get" {
				read = append(read, c.Key)
			}
			return do()
		}).Store(memdb.Open())
		g := &gathering{Reader: Reader{Tokens: store}}
		for _, user := range test.users {
			r := requestOf(t, "a", user, 0)
			if user == serving {
				r.Spec.SignerName = certificates.KubeletServingSignerName
			}
			g.listed = append(g.listed, must.Value(decodeRequest(r))(t))
		}
		if err := g.requestersToken(t.Context()); err != nil || !slices.Equal(read, test.want) {
			t.Errorf("%s: got reads %q, %v, want %q", name, read, err, test.want)
		}
	}
	g := &gathering{Reader: Reader{Tokens: storetest.Fail(errors.New("down"), "Store.Get").Store(memdb.Open())}, listed: []listedRequest{must.Value(decodeRequest(requestOf(t, "a", abc, 0)))(t)}}
	if err := g.requestersToken(t.Context()); err == nil {
		t.Error("got no error for a token that cannot be read")
	}
}

func TestUnreadableRequestIsAnError(t *testing.T) {
	down := errors.New("down")
	fails := fake.NewClientset()
	fails.PrependReactor("get", "certificatesigningrequests", func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, down })
	known := func() (*signer.Authority, error) { return &signer.Authority{}, nil }
	unknown := func() (*signer.Authority, error) { return nil, down }
	for name, test := range map[string]struct {
		requests Requests
		object   *certificates.CertificateSigningRequest
		want     error
	}{
		"no such request": {Requests{Client: fake.NewClientset(), Authority: known}, nil, tokens.ErrNotFound},
		"no API server":   {Requests{Client: fails, Authority: known}, nil, down},
		"no authority":    {Requests{Authority: unknown}, by("jane"), down},
		"a request":       {Requests{Authority: known}, by("jane"), nil},
	} {
		if _, err := test.requests.Explain(t.Context(), "csr-1", test.object); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v, want %v", name, err, test.want)
		}
	}
}

// Catches an explanation that names the wrong reason why a Node waits, or one for a Node that does not wait.
func TestFindsWhatNodeWaitsFor(t *testing.T) {
	created := metav1.NewTime(time.Now().Truncate(time.Second))
	want := tokens.NodeProperties{Labels: "a=b", ReadyAfter: tokens.ReadyAfterServingCertificate}
	claim := func(uid string) tokens.Claim {
		return tokens.Claim{Node: "worker-1", TokenID: "abcdef", NodeUID: uid, Created: created.Add(-time.Minute), Limits: tokens.Limits{Node: want}}
	}
	serving := func(at metav1.Time) []object {
		return []object{{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at},
			Spec:       certificates.CertificateSigningRequestSpec{SignerName: certificates.KubeletServingSignerName, Username: tokens.NodeUserPrefix + "worker-1"},
			Status:     certificates.CertificateSigningRequestStatus{Certificate: []byte("c")},
		}}
	}
	failed := []failedwrites.Write{{Verb: "patch", Resource: "nodes", Message: "webhook down"}}
	for name, test := range map[string]struct {
		claim   tokens.Claim
		joining bool
		label   string
		served  []object
		right   bool
		failed  []failedwrites.Write
		age     time.Duration // of the Lease
		want    string
	}{
		"no certificate":         {claim: claim(""), joining: true, right: true, want: "restart it, or if 'kubectl logs' works: kubectl taint node worker-1 kubejoin.io/joining-"},
		"certificate before":     {claim: claim(""), joining: true, right: true, served: serving(metav1.NewTime(created.Add(-2 * time.Minute))), want: "its kubelet gets a serving certificate"},
		"older than the Node":    {claim: claim(""), joining: true, right: true, served: serving(metav1.NewTime(created.Add(-time.Second))), want: "kubejoin has patched it"},
		"certificate":            {claim: claim(""), joining: true, right: true, served: serving(created), want: "kubejoin has patched it"},
		"no right":               {claim: claim(""), joining: true, served: serving(created), want: "kubejoin may patch Nodes"},
		"clocks differ":          {claim: claim(""), joining: true, right: true, served: serving(created), age: 40 * time.Second, want: "kubejoin has patched it"},
		"no kubejoin runs":       {claim: claim(""), joining: true, right: true, served: serving(created), age: time.Minute, want: "kubejoin runs: no replica renews its Lease kubejoin-system/kubejoin"},
		"patch fails":            {claim: claim(""), joining: true, right: true, served: serving(created), failed: failed, want: "webhook down"},
		"label":                  {claim: claim(""), right: true, label: "c", want: "its label a is gone"},
		"has everything":         {claim: claim("u"), right: true},
		"registered, then label": {claim: claim("u"), right: true, label: "c"},
		"registered again":       {claim: claim("u0"), joining: true, right: true, want: "kubejoin has patched it"},
		"released":               {claim: tokens.Claim{Node: "worker-1", Past: tokens.ReleasedClaim{Node: want}}, right: true},
		"no claim, taint":        {joining: true, right: true, want: "kubejoin has patched it"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1", UID: "u", CreationTimestamp: created, Labels: map[string]string{"x": "y"}}}
		if test.joining {
			node.Spec.Taints = []corev1.Taint{{Key: tokens.JoiningTaint}}
		}
		if test.label != "" {
			node.Labels["a"] = test.label
		}
		leader := api.LeaderEvidence{Namespace: DefaultLeaseNamespace, Lease: DefaultLeaseName, Holder: "a", Renewed: time.Now().Add(-test.age), Duration: 15 * time.Second}
		g := &gathering{Reader: Reader{Now: time.Now}, object: node, known: test.claim, patches: test.right, facts: explain.Facts{Node: "worker-1", Leader: &leader, FailedWrites: test.failed}}
		for _, o := range test.served {
			g.listed = append(g.listed, listedRequest{node: "worker-1", object: o, evidence: request(o)})
		}
		g.properties()
		if got := g.facts.Waits; !strings.Contains(got, test.want) || got == "" != (test.want == "") || g.facts.Joining != test.joining {
			t.Errorf("%s: waits until %q, joining %t, want %q", name, got, g.facts.Joining, test.want)
		}
	}
}

// Catches an explanation without the machine, if no token holds the name.
func TestReadsMachineOfReleasedClaim(t *testing.T) {
	claims := memdb.Open().Claims()
	must.Value(storetest.CreateClaim(t.Context(), claims, tokens.Claim{Node: "worker-1", Machine: tokens.Machine{Key: "lusab-babad-gutih-tugad"}}))(t)
	f, err := Reader{Client: fake.NewClientset(), Tokens: memdb.Open(), Claims: claims, ClusterInfo: noInfo{}}.Facts(t.Context(), "worker-1")
	if err != nil || f.Claim != nil || f.Machine.IsZero() {
		t.Errorf("got %+v, %v, want the machine and no claim of a token", f, err)
	}
}

// A machine has just got its token, which a stale list does not have. Catches an explanation that says that the token has ended.
func TestReadsTokenOfMachineLive(t *testing.T) {
	db := memdb.Open()
	r := must.Value(db.Create(t.Context(), tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())))(t)
	m := tokens.Machine{Key: "lusab-babad-gutih-tugad", TokenID: r.Token.ID(), TokenUID: r.UID}
	must.Value(storetest.CreateClaim(t.Context(), db.Claims(), tokens.Claim{Node: "worker-1", Machine: m}))(t)
	f, err := Reader{Client: fake.NewClientset(), Tokens: staleList{db}, Claims: db.Claims(), ClusterInfo: noInfo{}}.Facts(t.Context(), "worker-1")
	if err != nil || len(f.Tokens) != 1 || f.Tokens[0].UID != r.UID {
		t.Errorf("got tokens %+v, %v, want the one of the machine", f.Tokens, err)
	}
}

// staleList has none of its tokens in the list.
type staleList struct{ tokens.Store }

func (staleList) List(context.Context) ([]tokens.Record, error) { return nil, nil }
