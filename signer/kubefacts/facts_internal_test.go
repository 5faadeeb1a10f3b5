package kubefacts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

var errDown = errors.New("down")

func fails(c *fake.Clientset, verb, resource string) {
	c.PrependReactor(verb, resource, func(kubetesting.Action) (bool, runtime.Object, error) { return true, nil, errDown })
}

// A SubjectAccessReview that fails is an error, not a denial.
func TestFailedAccessReviewIsAnError(t *testing.T) {
	for name, test := range map[string]struct {
		status authorization.SubjectAccessReviewStatus
		down   bool
		want   bool
		fails  bool
	}{
		"allowed":                          {status: authorization.SubjectAccessReviewStatus{Allowed: true}, want: true},
		"not allowed":                      {},
		"no API server":                    {down: true, fails: true},
		"an authorizer fails":              {status: authorization.SubjectAccessReviewStatus{EvaluationError: "down"}, fails: true},
		"one fails and another one denies": {status: authorization.SubjectAccessReviewStatus{EvaluationError: "down", Denied: true}},
		"one fails and another one allows": {status: authorization.SubjectAccessReviewStatus{EvaluationError: "down", Allowed: true}, want: true},
	} {
		c := apitest.Reviews(t, func() any { return test.status })
		if test.down {
			c = apitest.Client(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
		}
		got, err := (&Facts{Client: c}).Allowed(t.Context(), approval.Request{User: "jane"}, approval.Permission{})
		if got != test.want || (err != nil) != test.fails {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}

// If Reserved ignored a source that fails, a node could get a serving certificate for the API server.
func TestReservedFailsIfOneSourceFails(t *testing.T) {
	c := fake.NewClientset(
		&networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{"10.96.0.1/12"}}},
		&discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Endpoints: []discovery.Endpoint{{Addresses: []string{"192.0.2.1"}}}},
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIPs: []string{"10.96.0.1"}}},
	)
	want := func(what string, f *Facts, prefixes, servers string) {
		t.Helper()
		got, err := f.ClusterAddresses(t.Context())
		var all []string
		for _, p := range got.Prefixes {
			all = append(all, p.String())
		}
		if err != nil || strings.Join(all, " ") != prefixes || strings.Join(got.APIServer, " ") != servers {
			t.Errorf("%s: %q and %q, %v; want %q and %q", what, all, got.APIServer, err, prefixes, servers)
		}
	}
	wantError := func(what string, f *Facts, part string) {
		t.Helper()
		if got, err := f.ClusterAddresses(t.Context()); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %+v, %v; want an error with %q", what, got, err, part)
		}
	}
	want("all sources", &Facts{Client: c}, "10.96.0.0/12", "192.0.2.1 10.96.0.1")
	working := c.ReactionChain
	for _, call := range [][]string{{"list", "servicecidrs"}, {"get", "endpointslices"}, {"get", "services"}} {
		fails(c, call[0], call[1])
		wantError(call[1], &Facts{Client: c}, "down")
		c.ReactionChain = working
	}

	malformed := fake.NewClientset(&networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0"}}})
	wantError("a malformed range", &Facts{Client: malformed}, "ServiceCIDR bad")
	servers := func(context.Context) ([]string, error) { return []string{"192.0.2.2"}, nil }
	wantError("no ranges", &Facts{Client: fake.NewClientset(), APIServers: servers}, "--service-cluster-ip-range")
	given := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}
	want("neither Service nor EndpointSlice", &Facts{Client: fake.NewClientset(), APIServers: servers, ServiceCIDRs: given}, "10.0.0.0/16", "192.0.2.2")
}

// A failed read of a Node must be an error, neither "exists" nor "not found".
func TestFailedReadOfNodeIsAnError(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	c := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}})
	fails(c, "get", "nodes")
	nodes := OpenNodes(ctx, c)
	_, factErr := (&Facts{Client: c, Nodes: nodes}).Node(t.Context(), approval.Request{}, "worker-1")
	_, uidErr := nodes.Node(t.Context(), "worker-1")
	_, readyErr := nodes.Ready(t.Context(), "worker-1")
	for what, err := range map[string]error{"Facts.Node": factErr, "Node": uidErr, "Ready": readyErr} {
		if !errors.Is(err, errDown) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, err := nodes.Nodes(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Nodes before the first list: got %v, %v", all, err)
	}
}

// Listing all Nodes is cheaper than many single reads only if the cluster has few Nodes.
func TestListsNodesOnlyIfFew(t *testing.T) {
	for _, test := range []struct {
		filled bool
		nodes  int
		few    []int // numbers of lookups
	}{
		{true, 0, []int{1, 10}},
		{true, nodesPerLookup, []int{1, 10}},
		{true, nodesPerLookup + 1, []int{10}},
		{true, 10*nodesPerLookup + 1, nil},
		{false, 0, nil},
	} {
		c := fake.NewClientset()
		for i := range test.nodes {
			must.OK(t, c.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("worker-", i)}}))
		}
		if !test.filled {
			fails(c, "list", "nodes")
		}
		n := OpenNodes(t.Context(), c)
		if test.filled {
			must.Value(n.Nodes(t.Context()))(t)
		}
		for _, lookups := range []int{1, 10} {
			if got := n.isFew(lookups); got != slices.Contains(test.few, lookups) {
				t.Errorf("%d Nodes, filled: %v: few for %d lookups: got %v", test.nodes, test.filled, lookups, got)
			}
		}
	}
}

// Names with different invalid bytes are different users, but JSON encodes both in the same way. A cached
// permission must not apply to the other user.
func TestPermissionIsCachedForOneUser(t *testing.T) {
	want := true
	f := &Facts{Client: apitest.Reviews(t, func() any { return authorization.SubjectAccessReviewStatus{Allowed: want} })}
	for _, user := range []string{"proxy-\xfe", "proxy-\xff"} {
		for range 2 {
			if got, err := f.Allowed(t.Context(), approval.Request{User: user}, approval.Permission{}); got != want || err != nil {
				t.Errorf("%q: %v, %v; want %v", user, got, err, want)
			}
		}
		want = false // the other user lacks the permission
	}
}
