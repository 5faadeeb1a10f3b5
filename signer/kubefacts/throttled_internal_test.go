package kubefacts

import (
	"errors"
	"net/http"
	"sync"
	"testing"

	"github.com/kubejoin/kubejoin/internal/kube/outage"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/tokens"
)

// A consistent read of kube-apiserver 1.37 may return 429. Catches a read that treats this error as a missing Node: a
// token could then claim the name of the Node.
func TestThrottledNodeIsNotAbsent(t *testing.T) {
	node := map[string]any{"name": "worker-1", "uid": "u1"}
	for name, after := range map[string]string{"with Retry-After": "0", "without Retry-After": ""} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			throttled := 3 // how many of the next requests get 429
			client := apitest.Client(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				if throttled > 0 {
					throttled--
					if after != "" {
						w.Header().Set("Retry-After", after)
					}
					apitest.Write(w, http.StatusTooManyRequests, map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429})
					return
				}
				if r.URL.Path == "/api/v1/nodes" {
					apitest.Write(w, http.StatusOK, map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": []any{map[string]any{"metadata": node}}})
					return
				}
				apitest.Write(w, http.StatusOK, map[string]any{"kind": "Node", "apiVersion": "v1", "metadata": node})
			})
			n := &NodeCache{client: client}
			one := func() error { _, err := n.Node(t.Context(), "worker-1"); return err }
			for what, read := range map[string]func() error{
				"get":   one,
				"ready": func() error { _, err := n.Ready(t.Context(), "worker-1"); return err },
				"list": func() error {
					q := &uidLookup{name: "worker-1"}
					n.list(t.Context(), []*uidLookup{q})
					return q.err
				},
			} {
				mu.Lock()
				throttled = 3
				mu.Unlock()
				var err error
				for range 4 { // a controller repeats a request until no outage is left
					if err = read(); !outage.Is(err) {
						break
					}
					if after != "" {
						t.Errorf("%s: got %v, want a retry inside the client", what, err)
					}
					if errors.Is(err, tokens.ErrNotFound) {
						t.Errorf("%s: got %v, want no absence", what, err)
					}
				}
				if err != nil {
					t.Errorf("%s: got %v, want the Node", what, err)
				}
			}
		})
	}
}
