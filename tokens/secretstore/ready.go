package secretstore

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ErrNoNamespace is wrapped when the namespace of claims does not exist. No machine joins with a
// limited token until somebody creates it.
var ErrNoNamespace = errors.New("namespace does not exist")

// Ready reports why no claim can be created now, or nil. It asks the API server and writes nothing:
// the request is a dry run. The error wraps [ErrNoNamespace] if the namespace does not exist.
func (s *Claims) Ready(ctx context.Context) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: "kubejoin-"}}
	_, err := s.leases.Create(ctx, lease, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return s.notCreated(err)
	}
	return nil
}

// notCreated is an error of the API server about a claim that was to be created.
func (s *Claims) notCreated(err error) error {
	if apierrors.IsNotFound(err) { // a create of a Lease finds everything but the namespace
		return fmt.Errorf("%w: %s; create it with: kubectl create namespace %s", ErrNoNamespace, s.namespace, s.namespace)
	}
	return fmt.Errorf("create Leases in %s: %w", s.namespace, err)
}
