package secretstore

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/tokens"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// limitedToken returns the Secret of a token for two nodes that has counted some.
func limitedToken(nodes ...string) *corev1.Secret {
	return encode(tokens.Record{Token: tokens.Generate(), Authentication: true, Limits: tokens.Limits{MaxNodes: 2}, Nodes: nodes})
}

func idOf(secret *corev1.Secret) string { return secret.Name[len(secret.Name)-6:] }

// Calls of Get that wait for an earlier one share a list. Each still gets its own token or error, with the rules that apply.
func TestConcurrentGetsShareOneList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		counted, also, fresh, damaged := limitedToken("worker-1"), limitedToken("worker-2"), limitedToken(), limitedToken("worker-3")
		damaged.Type = corev1.SecretTypeOpaque
		client := fake.NewClientset(counted, also, fresh, damaged)
		leave := make(chan struct{})
		client.PrependReactor("get", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { <-leave; return false, nil, nil })
		s := &Store{secrets: client.CoreV1().Secrets("kube-system"), rules: func() []tokens.LimitRule {
			return []tokens.LimitRule{{Rule: tokens.Rule{Name: "all", Limits: tokens.Limits{MaxNodes: 1}}}}
		}}
		var asking sync.WaitGroup
		get := func(id string, want error, nodes ...string) {
			asking.Go(func() {
				r, err := s.Get(t.Context(), id, tokens.Live)
				if !errors.Is(err, want) || err == nil && (r.Token.ID() != id || !slices.Equal(r.Nodes, nodes) || r.Limits.NodeLimit() != 1) {
					t.Errorf("Get of %s: got %+v, %v, want nodes %q and error %v", id, r, err, nodes, want)
				}
			})
			synctest.Wait()
		}
		get(idOf(counted), nil, "worker-1") // this call is alone
		get(idOf(counted), nil, "worker-1")
		get(idOf(also), nil, "worker-2")
		get(idOf(also), nil, "worker-2")
		get(idOf(fresh), nil)
		get(idOf(damaged), tokens.ErrNotFound)
		get(tokens.Generate().ID(), tokens.ErrNotFound)
		close(leave)
		asking.Wait()
		// Tokens that are not in the list are read one by one.
		if lists, gets := calls(client, "list"), calls(client, "get"); lists != 1 || gets != 1+3 {
			t.Errorf("got %d lists and %d gets, want 1 and 4", lists, gets)
		}
	})
}

// Update of a token with a node limit starts from the cache. If the cache is stale, or change fails on it, Update reads.
func TestUpdateStartsFromCache(t *testing.T) {
	add := func(node string) func(*tokens.Record) error {
		return func(r *tokens.Record) error {
			if slices.Contains(r.Nodes, "gone") {
				return errDown
			}
			r.Nodes = append(r.Nodes, node)
			return nil
		}
	}
	for name, test := range map[string]struct {
		stale func(cached *corev1.Secret) // changes what the cache has
		gets  int
	}{
		"current":           {func(*corev1.Secret) {}, 0},
		"an older version":  {func(s *corev1.Secret) { s.ResourceVersion = "0" }, 1},
		"change fails":      {func(s *corev1.Secret) { s.Annotations["kubejoin.io/nodes"] = "+gone" }, 1},
		"without a limit":   {func(s *corev1.Secret) { s.Annotations = nil }, 1},
		"another Secret":    {func(s *corev1.Secret) { s.Name = "bootstrap-token-zzzzzz" }, 1},
		"damaged":           {func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, 1},
		"malformed in part": {func(s *corev1.Secret) { s.Annotations["kubejoin.io/max-nodes"] = "x" }, 1},
	} {
		secret := limitedToken("worker-1")
		client := fake.NewClientset(secret)
		stored := must.Value(client.CoreV1().Secrets("kube-system").Get(t.Context(), secret.Name, metav1.GetOptions{}))(t)
		cached := stored.DeepCopy()
		test.stale(cached)
		client.ClearActions()
		client.PrependReactor("update", "secrets", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if a.(clienttesting.UpdateAction).GetObject().(*corev1.Secret).ResourceVersion != stored.ResourceVersion {
				return true, nil, conflict()
			}
			return false, nil, nil
		})
		s := &Store{secrets: client.CoreV1().Secrets("kube-system"), cache: filledTokenCache(t, cached)}
		r, err := s.Update(t.Context(), idOf(secret), add("worker-2"))
		if err != nil || !slices.Equal(r.Nodes, []string{"worker-1", "worker-2"}) {
			t.Errorf("%s: got %+v, %v", name, r, err)
		}
		if gets := calls(client, "get"); gets != test.gets {
			t.Errorf("%s: got %d reads, want %d", name, gets, test.gets)
		}
	}
}

// The signer of cluster-info takes a record with the same address for unchanged.
func TestSharedRecordsKeepTheirAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		same, counted := limitedToken(), limitedToken()
		s := must.Value(Open(t.Context(), fake.NewClientset(same, counted), nil))(t)
		shared := func() map[string]*tokens.Record {
			synctest.Wait()
			all := map[string]*tokens.Record{}
			for _, r := range must.Value(s.Shared(t.Context()))(t) {
				all[r.Token.ID()] = r
			}
			return all
		}
		before := shared()
		must.Value(s.Update(t.Context(), idOf(counted), func(r *tokens.Record) error { r.Nodes = []string{"worker-1"}; return nil }))(t)
		after := shared()
		if id := idOf(same); len(after) != 2 || after[id] == nil || after[id] != before[id] {
			t.Errorf("unchanged token: got addresses %p and %p of %d tokens, want one address", before[id], after[id], len(after))
		}
		if id := idOf(counted); after[id] == before[id] || !slices.Equal(after[id].Nodes, []string{"worker-1"}) || len(before[id].Nodes) > 0 {
			t.Errorf("changed token: got %+v at %p after %+v at %p, want another record", after[id], after[id], before[id], before[id])
		}
	})
}
