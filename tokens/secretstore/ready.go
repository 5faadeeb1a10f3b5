package secretstore

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNoNamespace is wrapped if the namespace of claims does not exist. Until somebody creates it, no
// machine can join with a token that has limits.
var ErrNoNamespace = errors.New("namespace does not exist")

// Ready returns an error if the API server does not allow creating a claim now. It checks that with a
// dry run, which writes nothing. The error wraps [ErrNoNamespace] if the namespace does not exist.
func (s *Claims) Ready(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "kubejoin-"}}
	_, err := s.leases.Create(ctx, lease, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return s.notCreated(err)
	}
	return nil
}

// notCreated returns an error of the API server about creating a claim, with its cause.
func (s *Claims) notCreated(err error) error {
	if apierrors.IsNotFound(err) { // when creating a Lease, only the namespace can be missing
		return fmt.Errorf("%w: %s; create it with: kubectl create namespace %s", ErrNoNamespace, s.namespace, s.namespace)
	}
	return fmt.Errorf("create Leases in %s: %w", s.namespace, err)
}
