package csr_test

import (
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// createNode creates or updates a Node that reports addresses. The Node is deleted after the test.
func (w *world) createNode(name string, addresses ...string) *corev1.Node {
	w.Helper()
	nodes := w.admin.CoreV1().Nodes()
	node, err := nodes.Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		node, err = nodes.Get(w.Context(), name, metav1.GetOptions{})
	} else {
		w.Cleanup(func() { _ = nodes.Delete(context.Background(), name, metav1.DeleteOptions{}) })
	}
	if err != nil {
		w.Fatal(err)
	}
	node.Status.Addresses = nil
	for i, address := range addresses {
		kind := corev1.NodeInternalIP
		if net.ParseIP(address) == nil {
			kind = []corev1.NodeAddressType{corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS}[i%3]
		}
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: kind, Address: address})
	}
	if node, err = nodes.UpdateStatus(w.Context(), node, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	return node
}

// createEndpoints creates the EndpointSlice in which an API server publishes its own addresses.
func (w *world) createEndpoints(addresses ...string) {
	w.Helper()
	slices := w.admin.DiscoveryV1().EndpointSlices("default")
	_, err := slices.Create(w.Context(), &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discovery.LabelServiceName: "kubernetes"}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{{Addresses: addresses}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { _ = slices.Delete(context.Background(), "kubernetes", metav1.DeleteOptions{}) })
}

// waitForPermissions waits until the API server knows the permissions of the controller.
func (w *world) waitForPermissions() {
	w.Helper()
	w.poll("the controller's rights", func() bool {
		_, err := w.restrict.NetworkingV1().ServiceCIDRs().List(w.Context(), metav1.ListOptions{})
		if err != nil && !apierrors.IsForbidden(err) {
			w.Fatal(err)
		}
		return err == nil
	})
}

func (w *world) nodes() *csr.Nodes {
	w.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w.Cleanup(stop)
	nodes, err := csr.OpenNodes(ctx, w.restrict)
	if err != nil {
		w.Fatal(err)
	}
	return nodes
}

func TestFactsFollowAddressesOfNodes(t *testing.T) {
	w := newWorld(t)
	node := w.createNode("facts-1", "198.51.100.1", "Facts-1", "facts-1.Example.com")
	w.createNode("facts-2", "198.51.100.2", "2001:db8:0:0::2", "facts-2.example.com", "shared.example.com")
	w.createNode("facts-3", "198.51.100.3", "shared.example.com")
	facts := &csr.Facts{Client: w.restrict, Nodes: w.nodes()}

	got, err := facts.Node(t.Context(), approval.Request{}, "facts-1")
	if err != nil || got.Name != "facts-1" || got.UID != string(node.UID) || !slices.Equal(got.Addresses, []string{"198.51.100.1", "Facts-1", "facts-1.Example.com"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := facts.Node(t.Context(), approval.Request{}, "facts-0"); !errors.Is(err, approval.ErrNoNode) {
		t.Errorf("missing Node: got %v, want ErrNoNode", err)
	}

	asked := []string{"198.51.100.1", "198.51.100.2", "2001:DB8::2", "::ffff:198.51.100.2", "SHARED.example.com", "facts-3", "198.51.100.9", "facts-2.example.com."}
	reporters, err := facts.Reporters(t.Context(), "facts-1", asked)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range asked {
		var want []string
		switch address {
		case "198.51.100.2", "2001:DB8::2", "::ffff:198.51.100.2", "facts-2.example.com.":
			want = []string{"facts-2"}
		case "SHARED.example.com":
			want = []string{"facts-2", "facts-3"}
		case "facts-3": // its own name, which it need not report
			want = []string{"facts-3"}
		}
		if !slices.Equal(reporters[address], want) {
			t.Errorf("%s: got reporters %q, want %q", address, reporters[address], want)
		}
	}
	// The facts follow the reported addresses.
	w.createNode("facts-3", "198.51.100.9")
	w.poll("the new address", func() bool {
		reporters, err := facts.Reporters(t.Context(), "facts-1", []string{"198.51.100.9", "198.51.100.3"})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(reporters["198.51.100.9"], []string{"facts-3"}) && len(reporters["198.51.100.3"]) == 0
	})

	without := &csr.Facts{Client: w.restrict}
	if _, err := without.Node(t.Context(), approval.Request{}, "facts-1"); err == nil {
		t.Error("Node without an informer: got no error")
	}
	if _, err := without.Reporters(t.Context(), "facts-1", asked); err == nil {
		t.Error("Reporters without an informer: got no error")
	}
	stopped, stop := context.WithCancel(context.Background())
	stop()
	unread, err := csr.OpenNodes(stopped, w.restrict)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&csr.Facts{Client: w.restrict, Nodes: unread}).Reporters(stopped, "facts-1", asked); !errors.Is(err, context.Canceled) {
		t.Errorf("informer that has not synced: got %v", err)
	}
}

// oldAPIServer is a transport to an API server without ServiceCIDRs, until has is set. It counts the requests.
type oldAPIServer struct {
	next  http.RoundTripper
	has   *atomic.Bool
	asked *atomic.Int32
}

func (o oldAPIServer) RoundTrip(r *http.Request) (*http.Response, error) {
	o.asked.Add(1)
	if !o.has.Load() {
		// Causes the response for a path that the API server does not serve.
		r.URL.Path = strings.Replace(r.URL.Path, "networking.k8s.io/v1/", "networking.k8s.io/v0/", 1)
	}
	return o.next.RoundTrip(r)
}

func TestReservedCombinesAllSources(t *testing.T) {
	w := newWorld(t)
	config, err := w.cluster.Config(w.identity)
	if err != nil {
		t.Fatal(err)
	}
	var has atomic.Bool
	var asked atomic.Int32
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return oldAPIServer{next, &has, &asked} })
	client := unlimited(t, config)
	server := func(hosts ...string) func(context.Context) ([]string, error) {
		return func(context.Context) ([]string, error) { return hosts, nil }
	}
	prefix := netip.MustParsePrefix
	const services, first = "10.96.0.0/16", "10.96.0.1" // of the test cluster
	check := func(name string, facts *csr.Facts, wantPrefixes []netip.Prefix, wantHosts []string, wantErr string) {
		t.Helper()
		facts.Client = client
		got, err := facts.ClusterAddresses(t.Context())
		if wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), wantErr) {
				t.Errorf("%s: %+v, %v, want an error about %q", name, got, err, wantErr)
			}
			return
		}
		if err != nil || !slices.Equal(got.Prefixes, wantPrefixes) || !slices.Equal(got.APIServer, wantHosts) || got.Source == "" {
			t.Errorf("%s: %+v, %v, want %v and %q", name, got, err, wantPrefixes, wantHosts)
		}
	}
	failing := func(context.Context) ([]string, error) { return nil, errors.New("no cluster-info") }

	check("old cluster", &csr.Facts{APIServers: server("api.example.com")}, nil, nil, "--service-cluster-ip-range")
	check("old cluster, wrong range", &csr.Facts{APIServers: server("a"), ServiceCIDRs: []netip.Prefix{prefix("10.97.0.0/16")}}, nil, nil, "--service-cluster-ip-range")
	check("old cluster, range given", &csr.Facts{APIServers: server("a"), ServiceCIDRs: []netip.Prefix{prefix(services)}}, []netip.Prefix{prefix(services)}, []string{"a", first}, "")
	has.Store(true)
	check("no source for the API server", &csr.Facts{}, nil, nil, "default/kubernetes")
	check("source of the API server fails", &csr.Facts{APIServers: failing}, nil, nil, "no cluster-info")
	check("ServiceCIDRs of the cluster", &csr.Facts{APIServers: server("a", "b")}, []netip.Prefix{prefix(services)}, []string{"a", "b", first}, "")
	w.createEndpoints("198.51.100.10", "198.51.100.11")
	check("endpoints", &csr.Facts{}, []netip.Prefix{prefix(services)}, []string{"198.51.100.10", "198.51.100.11", first}, "")
	check("everything", &csr.Facts{APIServers: server("a"), ServiceCIDRs: []netip.Prefix{prefix("fd00:1::/112")}},
		[]netip.Prefix{prefix(services), prefix("fd00:1::/112")}, []string{"198.51.100.10", "198.51.100.11", "a", first}, "")
	check("source fails after endpoints exist", &csr.Facts{APIServers: failing}, nil, nil, "no cluster-info")

	// Results are cached; failures are not.
	facts := &csr.Facts{Client: client}
	before := asked.Load()
	for range 10 {
		got, err := facts.ClusterAddresses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		clear(got.Prefixes) // the result belongs to the caller
	}
	if n := asked.Load() - before; n != 3 {
		t.Errorf("got %d requests for ten calls, want 3", n)
	}
	if got, _ := facts.ClusterAddresses(t.Context()); !slices.Equal(got.Prefixes, []netip.Prefix{prefix(services)}) {
		t.Errorf("a caller changed the cached prefixes: got %v", got.Prefixes)
	}
	denied := &csr.Facts{Client: w.as("somebody")}
	if _, err := denied.ClusterAddresses(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("without permission: got %v, want Forbidden", err)
	}
}

// The rule for serving certificates works with real Nodes and CSR objects.
func TestApprovesServingCertificatesOnEvidence(t *testing.T) {
	w := newWorld(t)
	w.createEndpoints("198.51.100.10")
	w.createNode("serving-1", "198.51.100.1", "serving-1")
	w.createNode("serving-2", "198.51.100.2", "serving-2")
	nodes := w.nodes()
	facts := &csr.Facts{Client: w.restrict, Nodes: nodes}
	rule := approval.KubeletServing{ServingScope: approval.ServingScope{CIDRs: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("10.0.0.0/8")}}}
	signers := signer.KubernetesSigners(signer.Fixed(w.ca), time.Hour)
	s := signers[serving]
	s.Rules = []approval.Rule{rule}
	signers[serving] = s
	w.run(csr.Controller{
		Client: w.restrict, Authority: &signer.Authority{Facts: facts, Signers: signer.FixedSigners(signers)}, Approve: true, Sign: true, Registerer: w.metrics,
	}.Run)

	askAs := func(client kubernetes.Interface, node string, addresses ...string) string {
		t.Helper()
		template := &x509.CertificateRequest{}
		for _, text := range addresses {
			if a, err := netip.ParseAddr(text); err == nil {
				template.IPAddresses = append(template.IPAddresses, a.AsSlice())
			} else {
				template.DNSNames = append(template.DNSNames, text)
			}
		}
		return w.ask(client, serving, node, template, nil).Name
	}
	as := func(node string) kubernetes.Interface { return w.as("system:node:"+node, "system:nodes") }

	// Twice, because a renewal follows the same rule.
	for range 2 {
		name := askAs(as("serving-1"), "serving-1", "198.51.100.1", "serving-1")
		w.await(name, "certificate", func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })
	}
	for _, test := range []struct {
		node      string
		addresses []string
		reason    string
	}{
		{"serving-1", []string{"198.51.100.1", "127.0.0.1"}, approval.ReasonNameForbidden},
		{"serving-1", []string{"198.51.100.1", "kubernetes.default.svc"}, approval.ReasonNameForbidden},
		{"serving-1", []string{"10.96.0.1"}, approval.ReasonNameReserved},
		{"serving-1", []string{"198.51.100.10"}, approval.ReasonNameReserved},
	} {
		name := askAs(as(test.node), test.node, test.addresses...)
		w.await(name, test.reason, func(r *certificates.CertificateSigningRequest) bool {
			if len(r.Status.Certificate) > 0 || condition(r, certificates.CertificateApproved) != nil {
				t.Fatalf("%v: %v", test, r.Status.Conditions)
			}
			c := condition(r, certificates.CertificateDenied)
			return c != nil && c.Reason == test.reason
		})
	}

	// Left to a person, who approves it.
	outside := askAs(as("serving-1"), "serving-1", "198.51.100.1", "fe80::1")
	w.poll("left alone", func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=none", "reason="+approval.ReasonNameOutOfScope) > 0
	})
	if r := w.await(outside, "request", func(*certificates.CertificateSigningRequest) bool { return true }); len(r.Status.Conditions) > 0 {
		t.Errorf("got conditions %v, want none", r.Status.Conditions)
	}
	w.approve(outside)
	w.await(outside, "certificate", func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })

	// Left alone until the other Node is gone.
	taken := askAs(as("serving-1"), "serving-1", "198.51.100.2")
	w.poll("left alone", func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=none", "reason="+approval.ReasonNameOfOther) > 0
	})
	w.createNode("serving-1", "198.51.100.1", "198.51.100.2", "serving-1")
	if err := w.admin.CoreV1().Nodes().Delete(t.Context(), "serving-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.await(taken, "certificate", func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })

	// The request waits for a Node and its address, and is approved when both exist.
	early := askAs(as("serving-3"), "serving-3", "198.51.100.3", "serving-3")
	waits := func(reason string) {
		t.Helper()
		w.poll(reason, func() bool { return w.count("kubejoin_csr_decisions_total", "verdict=wait", "reason="+reason) > 0 })
	}
	waits(approval.ReasonNodeNotFound)
	w.createNode("serving-3")
	waits(approval.ReasonAddressNotReported)
	w.createNode("serving-3", "198.51.100.3", "serving-3")
	w.await(early, "certificate", func(r *certificates.CertificateSigningRequest) bool { return len(r.Status.Certificate) > 0 })

	// Requests of users other than the node need manual approval.
	other := askAs(w.bootstrap(), "serving-1", "198.51.100.1") // a node would be refused by admission
	w.poll("left alone", func() bool {
		return w.count("kubejoin_csr_decisions_total", "verdict=none", "reason="+approval.ReasonNotByNode) > 0
	})
	if r := w.await(other, "request", func(*certificates.CertificateSigningRequest) bool { return true }); len(r.Status.Conditions) > 0 {
		t.Errorf("got conditions %v, want none", r.Status.Conditions)
	}
}
