package secretstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// After a restore of etcd, the watch omits all changes up to the version of the cache.
func TestRestoredEtcdEndsProofs(t *testing.T) {
	c := fake.NewClientset()
	c.PrependReactor("list", "leases", func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &coordinationv1.LeaseList{ListMeta: metav1.ListMeta{ResourceVersion: "5000"}}, nil
	})
	var version string
	write := func(kubetesting.Action) (bool, runtime.Object, error) {
		return true, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: ProofLease, ResourceVersion: version}}, nil
	}
	c.PrependReactor("create", "leases", write)
	c.PrependReactor("update", "leases", write)
	s, err := OpenClaims(t.Context(), c, nil, "ns", nil)
	if err == nil {
		_, err = s.List(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, version = range []string{"1000", "6000"} {
		if _, err := s.writeProof(t.Context()); !errors.Is(err, errRestored) {
			t.Errorf("a proof of version %s beside a cache of version 5000: %v, want %v", version, err, errRestored)
		}
	}
}

// A proof changes no claim, so it must not send hints to those that watch claims.
func TestProofIsNoHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		c := fake.NewClientset()
		s, err := OpenClaims(ctx, c, nil, "ns", nil)
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		hints := s.Watch(ctx)
		hinted := func() bool {
			synctest.Wait()
			select {
			case <-hints:
				return true
			default:
				return false
			}
		}
		for i := range 3 {
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: ProofLease, Labels: map[string]string{claimLabel: proof}, ResourceVersion: fmt.Sprint(i + 1)}}
			if i == 0 {
				_, err = c.CoordinationV1().Leases("ns").Create(ctx, lease, metav1.CreateOptions{})
			} else {
				_, err = c.CoordinationV1().Leases("ns").Update(ctx, lease, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			if hinted() && i > 0 {
				t.Errorf("proof %d was a hint", i+1)
			}
		}
		if seen := s.cache.Peek(ProofLease); seen == nil {
			t.Fatal("the watch has brought no proof")
		}
		if _, err := s.create(ctx, worker); err != nil || !hinted() {
			t.Errorf("a claim, %v, was no hint", err)
		}
		if all, err := s.List(ctx); err != nil || len(all) != 1 {
			t.Errorf("List gives %+v, %v, want the claim alone", all, err)
		}
		if _, err := s.Get(ctx, ProofLease, tokens.Cached); !errors.Is(err, tokens.ErrNotFound) {
			t.Errorf("cached Get of the proof gives %v", err)
		}
	})
}
