package pki

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/kube/imagetag"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const leaseNamespace, leaseName = metav1.NamespaceSystem, "kubejoin-ca-apply"

// State returns the last rotation of each CA.
func State(ctx context.Context, client kubernetes.Interface) (map[rotation.CA]rotation.Rotation, error) {
	object, err := client.CoreV1().ConfigMaps(clusterstore.Namespace).Get(ctx, clusterstore.Name, metav1.GetOptions{})
	all := map[rotation.CA]rotation.Rotation{}
	if apierrors.IsNotFound(err) {
		return all, nil
	}
	if apierrors.IsForbidden(err) {
		return nil, fmt.Errorf("state of the rotation: %w; to permit it, apply rbac.yaml of deploy/manifests of this version, or upgrade the chart", err)
	}
	if err != nil {
		return nil, fmt.Errorf("state of the rotation: %w", err)
	}
	for _, ca := range rotation.CAs {
		r, err := clusterstore.FromConfigMap(object, ca)
		if err != nil {
			return nil, err
		}
		if r.ID != "" {
			all[ca] = r
		}
	}
	return all, nil
}

// Publish stores a report in the annotation of a Node. If the API server is restarting, Publish waits for it.
func Publish(ctx context.Context, client kubernetes.Interface, node string, report *rotation.Report) error {
	content, err := report.Encode()
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{rotation.Annotation(report.CA): content}}})
	if err != nil {
		return err
	}
	for began, first := time.Now(), true; ; first = false {
		_, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			return nil
		}
		// The next control plane may already be restarting its API server.
		away := apierrors.ReasonForError(err) == metav1.StatusReasonUnknown || apierrors.IsServiceUnavailable(err) || apierrors.IsForbidden(err) && !first
		if !away || time.Since(began) > outage {
			return fmt.Errorf("report to Node %s: %w", node, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(4 * poll):
		}
	}
}

// Event creates an Event about a Node.
func Event(ctx context.Context, client kubernetes.Interface, node string, e codes.Event, message string) error {
	now := metav1.Now()
	_, err := client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node + "."}, Type: e.Type(), Reason: e.Reason(), Message: safetext.Text(message, safetext.MaxMessage),
		// The kubelet also uses the node name as UID.
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: node, UID: types.UID(node)},
		Source:         corev1.EventSource{Component: "kubejoin", Host: node}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
	return err
}

// KubeletReloads reports whether the kubelet of a node re-reads a changed client CA file. Kubelets do so from Kubernetes 1.36
// on.
func KubeletReloads(ctx context.Context, client kubernetes.Interface, node string) (bool, error) {
	n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return !imagetag.Before("kubelet:"+n.Status.NodeInfo.KubeletVersion, "1.36"), nil
}

// longest is the maximum time that take respects a Lease of another holder. Many users can write Leases, so the times
// in a Lease may be wrong.
const longest = time.Hour

// outage is how long Lock and Publish wait for an API server. API servers that use the lock holder's etcd do not
// respond while that etcd restarts.
const outage = 2 * time.Minute

// Lock returns a function for Host.Lock. That function holds a Lease, so that control planes restart one after the
// other. If the holder was killed, its Lease lasts for the time life.
func Lock(client kubernetes.Interface, holder string, life time.Duration, log func(string)) func(context.Context) (func(), error) {
	leases := client.CoordinationV1().Leases(leaseNamespace)
	return func(ctx context.Context) (func(), error) {
		var last hold
		var logged time.Time
		first := true
		for responded := time.Now(); ; first = false {
			held, err := take(ctx, client, holder, life, last)
			if err == nil && held.holder == "" {
				break
			}
			switch {
			case err == nil:
				last, responded = held, time.Now()
				if time.Since(logged) >= time.Minute {
					logged = time.Now()
					log(fmt.Sprintf("waiting: %s restarts its control plane, until %s at most; if it is gone: kubectl -n %s delete lease %s", safetext.Text(held.holder, safetext.MaxName), held.until.UTC().Format(time.RFC3339), leaseNamespace, leaseName))
				}
			case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			// After the first request, Forbidden may be temporary: an API server that has just started forbids all
			// requests until it has read the roles.
			case apierrors.IsForbidden(err) && first, time.Since(responded) > outage:
				return nil, fmt.Errorf("hold Lease %s/%s: %w", leaseNamespace, leaseName, err)
			default:
				log("waiting for the API server: " + safetext.Text(err.Error(), safetext.MaxMessage))
			}
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(4 * poll):
			}
		}
		return func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), life)
			defer cancel()
			for ctx.Err() == nil { // the API server may have just restarted
				object, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
				if err == nil && (object.Spec.HolderIdentity == nil || *object.Spec.HolderIdentity != holder) {
					return
				}
				if err == nil {
					err = leases.Delete(ctx, leaseName, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &object.UID, ResourceVersion: &object.ResourceVersion}})
				}
				if err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(poll):
				}
			}
		}, nil
	}
}

// A hold describes one version of a Lease that another host holds. The zero hold means that this host holds the Lease.
type hold struct {
	holder, version string
	until           time.Time
}

// clock returns the time of the API server. The clocks of two hosts may differ by more than the duration of a Lease.
func clock(ctx context.Context, client kubernetes.Interface) (metav1.MicroTime, error) {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{GenerateName: leaseName + "-"}}
	made, err := client.CoordinationV1().Leases(leaseNamespace).Create(ctx, lease, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case apierrors.IsBadRequest(err): // an admission webhook does not support dry run
		return metav1.NowMicro(), nil
	case err != nil:
		return metav1.MicroTime{}, err
	case made.CreationTimestamp.IsZero():
		return metav1.NowMicro(), nil
	}
	return metav1.NewMicroTime(made.CreationTimestamp.Time), nil
}

// take takes the Lease, unless another holder has it. last is the hold that the previous call returned. Holders do not renew
// the Lease, so until never changes for a version.
func take(ctx context.Context, client kubernetes.Interface, holder string, life time.Duration, last hold) (hold, error) {
	leases := client.CoordinationV1().Leases(leaseNamespace)
	now, err := clock(ctx, client)
	if err != nil {
		return hold{}, err
	}
	seconds := int32(life / time.Second) //nolint:gosec // minutes
	spec := coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now}
	object, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}, Spec: spec}, metav1.CreateOptions{})
		return hold{}, err
	}
	if err != nil {
		return hold{}, err
	}
	if s := object.Spec; s.HolderIdentity != nil && *s.HolderIdentity != holder && s.RenewTime != nil && s.LeaseDurationSeconds != nil {
		held := last
		if held.holder == "" || held.version != object.ResourceVersion {
			until := s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds) * time.Second)
			if limit := now.Add(max(life, longest)); until.After(limit) {
				until = limit
			}
			held = hold{*s.HolderIdentity, object.ResourceVersion, until}
		}
		if now.Before(&metav1.MicroTime{Time: held.until}) {
			return held, nil
		}
	}
	object.Spec = spec
	_, err = leases.Update(ctx, object, metav1.UpdateOptions{})
	return hold{}, err
}
