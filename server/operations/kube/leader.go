package kube

import (
	"context"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/kube/tokenwarning"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// leaderLease is the Lease for the leader election of replicas, in the namespace of claims.
const leaderLease = tokens.OwnName

// A signerState has the leader Lease of kubejoin, which shows whether kubejoin runs on the cluster.
type signerState struct {
	lease *coordinationv1.Lease // nil: it does not exist, or known is false
	known bool                  // false: kubejoin was not allowed to read the Lease
	now   time.Time
}

// ReachTimeout limits how long the first response of an API server may take.
const ReachTimeout = 10 * time.Second

// findSigner reads the leader Lease. It is also the first request, so it fails if the API server does not respond.
// forbidden reports that the user may not read Leases.
func findSigner(ctx context.Context, client kubernetes.Interface) (s signerState, forbidden bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ReachTimeout)
	defer cancel()
	lease, err := client.CoordinationV1().Leases(secretstore.ClaimNamespace).Get(ctx, leaderLease, metav1.GetOptions{})
	s.now = time.Now()
	switch {
	case apierrors.IsForbidden(err):
		return s, true, nil
	case apierrors.IsNotFound(err):
		s.known = true
		return s, false, nil
	case err != nil:
		return s, false, err
	}
	s.lease, s.known = lease, true
	return s, false, nil
}

// clockSkew is the tolerated difference between the clocks of this machine and of the leader.
const clockSkew = 30 * time.Second

// holder returns the identity of the current leader. It is empty if no replica leads, or if the Lease has expired.
func (s signerState) holder() string {
	if s.lease == nil || s.lease.Spec.HolderIdentity == nil || s.lease.Spec.RenewTime == nil || s.lease.Spec.LeaseDurationSeconds == nil {
		return ""
	}
	lasts := time.Duration(*s.lease.Spec.LeaseDurationSeconds) * time.Second
	if s.now.After(s.lease.Spec.RenewTime.Add(lasts + clockSkew)) {
		return ""
	}
	return *s.lease.Spec.HolderIdentity
}

func (s signerState) why() string {
	switch {
	case !s.known:
		return fmt.Sprintf("the Lease %s/%s cannot be read", secretstore.ClaimNamespace, leaderLease)
	case s.lease == nil:
		return fmt.Sprintf("there is no Lease %s/%s", secretstore.ClaimNamespace, leaderLease)
	case s.holder() == "":
		return fmt.Sprintf("no replica holds the Lease %s/%s", secretstore.ClaimNamespace, leaderLease)
	}
	return fmt.Sprintf("%s holds the Lease %s/%s", s.holder(), secretstore.ClaimNamespace, leaderLease)
}

// warning returns a warning for new tokens with limits if no kubejoin runs on the cluster.
func (s signerState) warning() tokenwarning.Warning {
	if !s.known || s.holder() != "" {
		return tokenwarning.None
	}
	return tokenwarning.Limits(fmt.Sprintf("and no kubejoin is known to run on this cluster (%s): if none runs with --leader-elect=false, start one with 'kubejoin serve --kubeconfig FILE'", s.why()))
}

func (s signerState) signedBy() string {
	if holder := s.holder(); holder != "" {
		return fmt.Sprintf("the bootstrap-signer of kubejoin (%s), or if it is switched off there the bootstrap-signer-controller of kube-controller-manager; see its log", s.why())
	}
	return fmt.Sprintf("the bootstrap-signer-controller of kube-controller-manager, or the bootstrap-signer of kubejoin (%s)", s.why())
}

// NodeProperties returns the NodeProperties of [operations.Readers]. The leader says in its Lease whether it may patch Nodes.
func NodeProperties(client kubernetes.Interface, namespace, name string) func(ctx context.Context, field string) error {
	return func(ctx context.Context, field string) error {
		lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return &tokens.Refusal{
				Reason: "node-unavailable", Retry: true, Err: err,
				Message: fmt.Sprintf("cannot read the Lease %s/%s, which says whether kubejoin may patch Nodes; retry", namespace, name),
			}
		case err != nil || lease.Annotations[leader.NodePropertiesAnnotation] == "":
			return operations.NodesNotPatched(field)
		}
		return nil
	}
}
