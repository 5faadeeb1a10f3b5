package kubefacts_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

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
	var has atomic.Bool
	var asked atomic.Int32
	client := newClient(t, func(config *rest.Config) {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return oldAPIServer{next, &has, &asked} })
	})
	server := func(hosts ...string) func(context.Context) ([]string, error) {
		return func(context.Context) ([]string, error) { return hosts, nil }
	}
	prefix := netip.MustParsePrefix
	const services, first = "10.96.0.0/16", "10.96.0.1" // of the test cluster
	check := func(name string, facts *kubefacts.Facts, wantPrefixes []netip.Prefix, wantHosts []string, wantErr string) {
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
	wait.Until(t, "the first objects of the API server", func() bool {
		got, err := (&kubefacts.Facts{Client: newClient(t, func(*rest.Config) {}), APIServers: server("a")}).ClusterAddresses(t.Context())
		return err == nil && len(got.APIServer) == 2
	})
	failing := func(context.Context) ([]string, error) { return nil, errors.New("no cluster-info") }

	check("old cluster", &kubefacts.Facts{APIServers: server("api.example.com")}, nil, nil, "--service-cluster-ip-range")
	check("old cluster, wrong range", &kubefacts.Facts{APIServers: server("a"), ServiceCIDRs: []netip.Prefix{prefix("10.97.0.0/16")}}, nil, nil, "--service-cluster-ip-range")
	check("old cluster, range given", &kubefacts.Facts{APIServers: server("a"), ServiceCIDRs: []netip.Prefix{prefix(services)}}, []netip.Prefix{prefix(services)}, []string{"a", first}, "")
	has.Store(true)
	check("no source for the API server", &kubefacts.Facts{}, nil, nil, "default/kubernetes")
	check("source of the API server fails", &kubefacts.Facts{APIServers: failing}, nil, nil, "no cluster-info")
	check("ServiceCIDRs of the cluster", &kubefacts.Facts{APIServers: server("a", "b")}, []netip.Prefix{prefix(services)}, []string{"a", "b", first}, "")
	endpoints := client.DiscoveryV1().EndpointSlices("default") // in which API servers publish their addresses
	must.Value(endpoints.Create(t.Context(), &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discovery.LabelServiceName: "kubernetes"}},
		AddressType: discovery.AddressTypeIPv4, Endpoints: []discovery.Endpoint{{Addresses: []string{"198.51.100.10", "198.51.100.11"}}},
	}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() { _ = endpoints.Delete(context.Background(), "kubernetes", metav1.DeleteOptions{}) })
	check("endpoints", &kubefacts.Facts{}, []netip.Prefix{prefix(services)}, []string{"198.51.100.10", "198.51.100.11", first}, "")
	check("everything", &kubefacts.Facts{APIServers: server("a"), ServiceCIDRs: []netip.Prefix{prefix("fd00:1::/112")}},
		[]netip.Prefix{prefix(services), prefix("fd00:1::/112")}, []string{"198.51.100.10", "198.51.100.11", "a", first}, "")
	check("source fails after endpoints exist", &kubefacts.Facts{APIServers: failing}, nil, nil, "no cluster-info")

	// Results are cached; failures are not.
	facts := &kubefacts.Facts{Client: client}
	before := asked.Load()
	for range 10 {
		got := must.Value(facts.ClusterAddresses(t.Context()))(t)
		clear(got.Prefixes) // the result belongs to the caller
	}
	if n := asked.Load() - before; n != 3 {
		t.Errorf("got %d requests for ten calls, want 3", n)
	}
	if got, _ := facts.ClusterAddresses(t.Context()); !slices.Equal(got.Prefixes, []netip.Prefix{prefix(services)}) {
		t.Errorf("a caller changed the cached prefixes: got %v", got.Prefixes)
	}
	denied := &kubefacts.Facts{Client: newClient(t, func(config *rest.Config) { config.Impersonate.UserName = "somebody" })}
	if _, err := denied.ClusterAddresses(t.Context()); !apierrors.IsForbidden(err) {
		t.Errorf("without permission: got %v, want Forbidden", err)
	}
}
