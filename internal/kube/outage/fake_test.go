package outage_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// TestCachesFillFromFakeClient catches a cache that never fills in the tests of an importer, because it requests a
// streamed list. The fake client of client-go does not stream lists.
func TestCachesFillFromFakeClient(t *testing.T) {
	for name, read := range map[string]func(context.Context, kubernetes.Interface) error{
		"cluster-info": func(ctx context.Context, client kubernetes.Interface) error {
			if _, err := configmap.Open(ctx, client).Data(ctx); !errors.Is(err, clusterinfo.ErrNotFound) {
				return err
			}
			return nil
		},
		"tokens": func(ctx context.Context, client kubernetes.Interface) error {
			store, err := secretstore.Open(ctx, client, nil)
			if err == nil {
				_, err = store.List(ctx)
			}
			return err
		},
		"claims": func(ctx context.Context, client kubernetes.Interface) error {
			claims, err := secretstore.OpenClaims(ctx, client, nil, secretstore.ClaimNamespace, nil)
			if err == nil {
				_, err = claims.List(ctx)
			}
			return err
		},
		"revocations": func(ctx context.Context, client kubernetes.Interface) error {
			list, err := configmaps.Open(ctx, client, secretstore.ClaimNamespace, nil)
			if err == nil {
				_, err = list.List(ctx, tokens.Cached)
			}
			return err
		},
		"nodes": func(ctx context.Context, client kubernetes.Interface) error {
			_, err := kubefacts.OpenNodes(ctx, client).Nodes(ctx)
			return err
		},
		"requests": func(ctx context.Context, client kubernetes.Interface) error {
			informer := csr.NewInformer(client)
			go informer.RunWithContext(ctx)
			if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
				return ctx.Err()
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := read(ctx, fake.NewClientset()); err != nil {
				t.Error(err)
			}
		})
	}
}
