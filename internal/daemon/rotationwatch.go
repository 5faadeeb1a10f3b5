package daemon

import (
	"context"
	"crypto/x509"
	"fmt"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/kube/caobserver"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/server/operations/kube"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// rotationObserver returns the observer of rotations of CAs.
func (c *cluster) rotationObserver() *caobserver.Observer {
	o := &caobserver.Observer{Client: c.client, Tokens: c.tokens.List, Record: c.record, Revocations: c.trust.revocations, NoRecord: "grep PIN FILE # of --issuance-record, on each host of kubejoin"}
	if c.options.Advertise != "" {
		o.Servers = []string{c.options.Advertise}
	}
	return o
}

// rotations returns the rotations of the cluster's CAs for the HTTPS API.
func (c *cluster) rotations() *operations.Rotations {
	rotations := kube.Rotations(c.client, c.PKIDir)
	rotations.Desk.Observer, rotations.Desk.ExpireTokens = c.rotationObserver(), operations.ExpireTokens(&mint.Minter{Tokens: c.tokens, ClusterInfo: c.info})
	if crossInFiles := rotations.Cross; c.ca != nil {
		rotations.Cross = func(ca rotation.CA, fresh *x509.Certificate) (*x509.Certificate, error) {
			if ca == rotation.Cluster {
				return c.ca.Get().CrossSign(fresh)
			}
			return crossInFiles(ca, fresh)
		}
	}
	return rotations
}

// watchRotations returns a controller that reports rotations in metrics and Events, and corrects their copy for hosts.
func (c *cluster) watchRotations() func(context.Context) error {
	store := clusterstore.New(c.client)
	publish := c.rotation.publish
	if c.Shadow {
		publish = nil
	}
	desk := &rotation.Desk{Store: store, Keys: store, Observer: c.rotationObserver()}
	return caobserver.Watch{
		Publish: publish,
		Get: func(ctx context.Context, ca rotation.CA) (rotation.Rotation, error) {
			r, _, err := store.Get(ctx, ca)
			return r, err
		},
		Status: desk.Status, Event: c.rotationEvent, Changed: c.rotation.hints(c.watch), Logger: c.log, Registerer: c.registry,
	}.Run
}

// rotationEvent creates the Event of the last change of a rotation. The name of the Event identifies the change, so that
// the next leader does not create the Event again. The recorder would choose another name each time.
func (c *connection) rotationEvent(ctx context.Context, r rotation.Rotation) error {
	at := metav1.NewTime(r.Changed())
	_, err := c.client.CoreV1().Events(c.LeaseNamespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: c.LeaseNamespace, Name: fmt.Sprintf("%s.ca-%s.%x", c.LeaseName, r.ID, at.UnixNano())},
		InvolvedObject: *c.lease(), Source: corev1.EventSource{Component: eventComponent},
		Type: codes.CARotation.Type(), Reason: codes.CARotation.Reason(), Message: rotationMessage(r),
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// rotationMessage returns a sentence about the last change of a rotation, with the next command.
func rotationMessage(r rotation.Rotation) string {
	subject, status := fmt.Sprintf("The rotation of the %s CA ", r.CA), "; next: kubejoin ca status --ca "+string(r.CA)
	switch {
	case !r.InProgress() && r.Aborting:
		return subject + "was aborted, and the old CA stays"
	case !r.InProgress():
		return subject + "has ended, and the new CA has replaced the old one"
	case r.Aborting:
		return subject + "is being aborted, and went back to stage " + string(r.Stage) + status
	}
	return subject + "began stage " + string(r.Stage) + status
}
