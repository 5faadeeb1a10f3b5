package secretstore

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/kubejoin/kubejoin/internal/kube/outage"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcache "k8s.io/client-go/tools/cache"
)

// A consistent read of kube-apiserver 1.37 may return 429. Catches a read that takes it as an absent token or claim: the
// signer would deny the node of that token, or give its name to another machine.
func TestThrottledTokenAndClaimAreNotAbsent(t *testing.T) {
	record := tokens.Record{Token: tokens.Generate()}
	secret := encode(record)
	secret.TypeMeta = metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}
	lease := encodeLease("ns", worker)
	lease.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
	for name, after := range map[string]string{"with Retry-After": "0", "without Retry-After": ""} {
		t.Run(name, func(t *testing.T) {
			throttled := 0 // how many of the next requests are
			client := apitest.Client(t, func(w http.ResponseWriter, r *http.Request) {
				if throttled > 0 {
					throttled--
					if after != "" {
						w.Header().Set("Retry-After", after)
					}
					w.WriteHeader(http.StatusTooManyRequests) // as a load balancer does, without a Status
					return
				}
				single := r.URL.Query().Get("labelSelector") == ""
				switch {
				case r.URL.Path == "/api/v1/namespaces/kube-system/secrets":
					apitest.Write(w, http.StatusOK, corev1.SecretList{TypeMeta: metav1.TypeMeta{Kind: "SecretList", APIVersion: "v1"}, Items: []corev1.Secret{*secret}})
				case single && r.URL.Path == "/api/v1/namespaces/kube-system/secrets/"+secret.Name:
					apitest.Write(w, http.StatusOK, secret)
				case single:
					apitest.Write(w, http.StatusOK, lease)
				default:
					apitest.Write(w, http.StatusOK, coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"}, Items: []coordinationv1.Lease{*lease}})
				}
			})
			store := &Store{secrets: client.CoreV1().Secrets(metav1.NamespaceSystem)}
			claims := &Claims{leases: client.CoordinationV1().Leases("ns"), namespace: "ns"}
			reads := map[string]func(context.Context) error{
				"token": func(ctx context.Context) error { _, err := store.Get(ctx, record.Token.ID(), tokens.Live); return err },
				"tokens": func(ctx context.Context) error {
					one, other := &getCall{id: record.Token.ID()}, &getCall{id: "zzzzzz"}
					store.getAll(ctx, []*getCall{one, other})
					return one.err
				},
				"claim": func(ctx context.Context) error { _, err := claims.Get(ctx, worker.Node, tokens.Live); return err },
				"claims of a token": func(ctx context.Context) error {
					all, err := claims.HeldBy(ctx, worker.TokenID, tokens.Live)
					if err == nil && len(all) != 1 {
						t.Errorf("got %d claims, want 1", len(all))
					}
					return err
				},
				"first list": func(ctx context.Context) error {
					list, err := clientcache.ToListerWatcherWithContext(outage.Follow(nil, labelled{claims.leases}, "", nil)).ListWithContext(ctx, metav1.ListOptions{})
					if err == nil && len(list.(*coordinationv1.LeaseList).Items) != 1 {
						t.Errorf("got %v, want one Lease", list)
					}
					return err
				},
			}
			for what, read := range reads {
				throttled = 3
				var err error
				for range 4 { // a controller repeats a request until no outage is left
					if err = read(t.Context()); !outage.Is(err) {
						break
					}
					if after != "" || what == "first list" {
						t.Errorf("%s: got %v, want a retry inside", what, err)
					}
					if errors.Is(err, tokens.ErrNotFound) {
						t.Errorf("%s: got %v, want no absence", what, err)
					}
				}
				if err != nil || throttled > 0 {
					t.Errorf("%s: got %v with %d throttled requests left, want success", what, err, throttled)
				}
			}
		})
	}
}
