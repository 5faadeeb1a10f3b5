package secretstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/internal/kube/freshness"
	"github.com/kubejoin/kubejoin/tokens"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProofLease is the name of the Lease that every replica writes to prove that its cache of claims is current. It is not a
// claim, but has the label that the watch of claims selects.
const ProofLease = tokens.OwnName + "-proof"

// proof is the claimLabel of ProofLease.
const proof = "proof"

// writeProof proves that all cached claims are current. It writes a Lease, and waits until the watch of claims shows
// this write. The watch shows changes in their order, so the cache then has all earlier ones.
func (s *Claims) writeProof(ctx context.Context) (freshness.Current, error) {
	ctx, cancel := context.WithTimeout(ctx, tokens.MaxAge)
	defer cancel()
	back, before := s.proofs.Watch(ctx), s.cache.Version()
	version, err := s.touchProof(ctx)
	if err != nil {
		return nil, fmt.Errorf("write Lease %s/%s: %w", s.namespace, ProofLease, err)
	}
	if s.restored = s.restored || newer(before, version); s.restored {
		// The watch omits all changes up to the version of the cache.
		return nil, errRestored
	}
	for {
		if seen := s.cache.Peek(ProofLease); seen != nil && !newer(version, seen.Version) {
			return func(string, string) bool { return true }, nil
		}
		select {
		case <-back:
		case <-ctx.Done():
			return nil, fmt.Errorf("the watch has not brought back Lease %s/%s within %s: %w", s.namespace, ProofLease, tokens.MaxAge, ctx.Err())
		}
	}
}

// newer reports whether resourceVersion a is newer than b. It compares them as decimal numbers (KEP-5504). The empty
// version is older than all others.
func newer(a, b string) bool {
	return len(a) > len(b) || len(a) == len(b) && a > b
}

// errRestored means that etcd has an older resourceVersion than the cache.
var errRestored = errors.New("etcd was restored from a backup; restart kubejoin, like all programs that watch the API server")

// touchProof writes the Lease ProofLease and returns its new resourceVersion.
func (s *Claims) touchProof(ctx context.Context) (version string, err error) {
	lease := s.proof
	for s.proof = nil; ; {
		creating, now := lease == nil, metav1.NowMicro()
		if creating {
			lease, err = s.leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: ProofLease, Labels: map[string]string{claimLabel: proof}},
				Spec:       coordinationv1.LeaseSpec{RenewTime: &now},
			}, metav1.CreateOptions{})
		} else {
			lease.Labels, lease.Spec.RenewTime = map[string]string{claimLabel: proof}, &now
			lease, err = s.leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) { // another replica was faster
			lease, err = s.leases.Get(ctx, ProofLease, metav1.GetOptions{})
			creating = false
		} else if err == nil {
			s.proof = lease
			return lease.ResourceVersion, nil
		}
		if apierrors.IsNotFound(err) && !creating { // the Lease was deleted
			lease, err = nil, nil
		}
		if err != nil {
			return "", err
		}
	}
}
