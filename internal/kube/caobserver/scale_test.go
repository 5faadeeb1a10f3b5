package caobserver

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// fleet returns an Observer of a cluster with this number of nodes and of namespaces. A few servers act as the
// kubelets of all nodes.
func fleet(t testing.TB, nodes int) (*Observer, *apiServer, rotation.Rotation) {
	t.Helper()
	old, fresh := certtest.CA(t, "old"), certtest.CA(t, "new")
	r := begun(t, rotation.Trust, old, fresh)
	var servers []string
	for range 4 {
		servers = append(servers, serve(t, tlsConfig(t, old, old, fresh)))
	}
	n := &network{}
	a := &apiServer{lists: map[string][]any{}}
	for i := range nodes {
		address := fmt.Sprintf("10.0.%d.%d", i/250, i%250+1)
		n.listen(address+":10250", servers[i%len(servers)])
		one := reported(t, node(fmt.Sprintf("worker-%05d", i), address), r, rotation.File{Name: "pki/ca.crt", Trusts: &rotation.Trusted{Old: true, New: true}})
		a.lists[nodesPath] = append(a.lists[nodesPath], object(t, one))
		a.lists[rootCAsPath] = append(a.lists[rootCAsPath], object(t, configMap(fmt.Sprint("namespace-", i), "kube-root-ca.crt", "ca.crt", bundleOf(old, fresh))))
	}
	return a.start(t, n), a, r
}

// TestListsArePaged catches an observer that sees only the first page, or that holds all objects of a large cluster.
func TestListsArePaged(t *testing.T) {
	const nodes = page + 1
	o, a, r := fleet(t, nodes)
	for i := range 2*bundlesPage + 1 {
		a.lists[apiServices] = append(a.lists[apiServices], map[string]any{"metadata": map[string]any{"name": fmt.Sprint("v1.", i)}, "spec": map[string]any{"caBundle": r.Old.PEM()}})
	}
	count := map[rotation.Kind]int{}
	for _, one := range must.Value(o.Observe(t.Context(), r))(t) {
		if count[one.Kind]++; one.Unseen != "" && one.Kind == rotation.KindKubelet {
			t.Fatal(line(one))
		}
	}
	for kind, want := range map[rotation.Kind]int{rotation.KindKubelet: nodes, rotation.KindRootCA: nodes, rotation.KindCABundle: 2*bundlesPage + 1} {
		if count[kind] != want {
			t.Errorf("%d observations of kind %s, want %d", count[kind], kind, want)
		}
	}
	for path, most := range map[string]int{nodesPath: page / 5, rootCAsPath: page, apiServices: bundlesPage} {
		if a.largest[path] != most {
			t.Errorf("%s: %d objects in a page, want %d", path, a.largest[path], most)
		}
	}
}

// BenchmarkObserve10000Nodes includes the server side of 10,000 handshakes.
func BenchmarkObserve10000Nodes(b *testing.B) {
	o, _, r := fleet(b, 10_000)
	for b.Loop() {
		seen := must.Value(o.Observe(b.Context(), r))(b)
		for _, one := range seen {
			if one.Kind == rotation.KindKubelet && strings.Contains(one.Unseen, "deadline") {
				b.Fatal(line(one))
			}
		}
		b.ReportMetric(float64(len(seen)), "observations")
	}
}
