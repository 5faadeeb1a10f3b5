package configmap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/fakeclient"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// errStartOver means that the step must start over: the object has changed, or the data must become smaller.
var errStartOver = errors.New("cluster-info has changed")

// write replaces the data of current, or creates cluster-info if current is nil. It fails if the object has
// changed.
func (s *signing) write(ctx context.Context, current *corev1.ConfigMap, m clusterinfo.Merged) error {
	var err error
	result := "updated"
	if current == nil {
		result = "created"
		s.written, err = s.create(ctx, m.Data)
	} else {
		changed := *current // shares the rest with the cached object, which must not change
		changed.Data = m.Data
		// One empty entry disables managedFields. They would take a fifth of the object, which then exceeds
		// etcd's limit (1.5 MiB) before the ConfigMap is full.
		changed.ManagedFields = []metav1.ManagedFieldsEntry{{}}
		s.written, err = s.update(ctx, &changed)
	}
	switch {
	case err == nil:
		// After a removal that did not wait for its gap, the next write waits for both gaps. So a burst of removals
		// has gaps, too.
		s.lastWrite = s.lastWrite.Add(writeGap(s.signed))
		if now := time.Now(); now.After(s.lastWrite) {
			s.lastWrite = now
		}
		s.writes.WithLabelValues(result).Inc()
		s.logWrite(current, m)
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), current != nil && apierrors.IsNotFound(err):
		s.writes.WithLabelValues("conflict").Inc()
		s.written = nil
		return errStartOver
	case isTooLarge(err):
		s.writes.WithLabelValues("too_large").Inc()
		s.written = nil
		return s.lower(current, m, err)
	default:
		s.writes.WithLabelValues("error").Inc()
		// The write may have succeeded.
		s.written, s.live = nil, true
		return fmt.Errorf("write cluster-info: %w", err)
	}
}

// metadataOnly requests only the metadata of an object as the response.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// update is the Update of the typed client without the object in the response. The object has up to a
// megabyte, was just sent, and the watch sends it again.
func (s *signing) update(ctx context.Context, changed *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	api := s.ConfigMap.client.CoreV1()
	if fakeclient.Is(api) {
		return api.ConfigMaps(clusterinfo.Namespace).Update(ctx, changed, metav1.UpdateOptions{})
	}
	result := api.RESTClient().Put().Namespace(clusterinfo.Namespace).Resource("configmaps").Name(clusterinfo.Name).
		Body(changed).SetHeader("Accept", metadataOnly).Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	answer, err := result.Raw()
	if err != nil {
		return nil, err
	}
	var written metav1.PartialObjectMetadata
	if err := json.Unmarshal(answer, &written); err != nil {
		return nil, fmt.Errorf("response from the API server: %w", err)
	}
	changed.ObjectMeta = written.ObjectMeta
	return changed, nil
}

// logWrite logs a write. Creation and a new kubeconfig are logged as Info, new signatures as Debug.
func (s *signing) logWrite(current *corev1.ConfigMap, m clusterinfo.Merged) {
	kubeconfig := m.Data[clusterinfo.KubeconfigKey]
	switch {
	case current == nil:
		s.Logger.Info("cluster-info created", "signatures", m.Signed)
	case current.Data[clusterinfo.KubeconfigKey] != kubeconfig:
		server, cas, _ := clusterinfo.ParseKubeconfig([]byte(kubeconfig))
		s.Logger.Info("kubeconfig in cluster-info changed", "server", server, "ca_pins", clusterinfo.Pins(cas), "signatures", m.Signed)
	default:
		s.Logger.Debug("cluster-info written", "signatures", m.Signed, "bytes", m.Bytes)
	}
}

// lower reduces the limit after a write that was too large. The API server has accepted the size of the current
// object, so the limit does not drop below this size to fit a new signature.
func (s *signing) lower(current *corev1.ConfigMap, m clusterinfo.Merged, refused error) error {
	others := 0 // bytes that do not depend on the number of signatures
	for key, value := range m.Data {
		if !strings.HasPrefix(key, clusterinfo.SignaturePrefix) {
			others += len(value)
		}
	}
	there, binary := 0, 0
	if current != nil {
		for _, value := range current.Data {
			there += len(value)
		}
		for _, value := range current.BinaryData {
			binary += len(value)
		}
	}
	limit := others + (m.Bytes-others)*7/8
	if there < m.Bytes {
		limit = max(limit, there)
	}
	if m.Signed == 0 || limit+binary >= s.limit {
		return fmt.Errorf("write cluster-info with %d bytes besides the signatures: %w", others, refused)
	}
	s.limit = limit + binary
	return errStartOver
}

// isTooLarge reports whether an object was rejected because of its size. The API server rejects more than 1 MiB
// of values, or a request of more than 3 MiB. etcd rejects more than 1.5 MiB with keys and metadata, but its
// error has no specific type.
func isTooLarge(err error) bool {
	if apierrors.IsRequestEntityTooLargeError(err) || apierrors.HasStatusCause(err, metav1.CauseType(field.ErrorTypeTooLong)) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, "etcdserver: request is too large") || strings.Contains(text, "message larger than max")
}
