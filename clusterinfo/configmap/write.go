package configmap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// errStartOver says that the write was made for an object that is another one now.
var errStartOver = errors.New("cluster-info has changed")

// write puts the data in place of what current holds, nil if there is none, and only of that.
func (s *signing) write(ctx context.Context, current *corev1.ConfigMap, m clusterinfo.Merged) error {
	var err error
	result := "updated"
	if current == nil {
		result = "created"
		s.written, err = s.create(ctx, m.Data)
	} else {
		changed := *current // the watch's object: only the copy's own fields are set
		changed.Data = m.Data
		// One empty entry asks for no notes on who set which field. They would take a fifth of
		// the object, which then outgrows etcd (1.5 MiB) before the ConfigMap is full.
		changed.ManagedFields = []metav1.ManagedFieldsEntry{{}}
		s.written, err = s.update(ctx, &changed)
	}
	switch {
	case err == nil:
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
		// It may have taken effect all the same.
		s.written, s.live = nil, true
		return fmt.Errorf("writing cluster-info: %w", err)
	}
}

// metadataOnly asks for no more of an object than what the API server adds to it.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// update is the Update of the typed client, without the object itself as the answer: up to a
// megabyte that was just sent, and that the watch brings once more.
func (s *signing) update(ctx context.Context, changed *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	result := s.ConfigMap.client.CoreV1().RESTClient().Put().Namespace(clusterinfo.Namespace).Resource("configmaps").Name(clusterinfo.Name).
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
		return nil, fmt.Errorf("answer of the API server: %w", err)
	}
	changed.ObjectMeta = written.ObjectMeta
	return changed, nil
}

// logWrite logs a write: creation and another kubeconfig are news, signatures are not.
func (s *signing) logWrite(current *corev1.ConfigMap, m clusterinfo.Merged) {
	kubeconfig := m.Data[clusterinfo.KubeconfigKey]
	switch {
	case current == nil:
		s.Logger.Info("cluster-info created", "signatures", m.Signed)
	case current.Data[clusterinfo.KubeconfigKey] != kubeconfig:
		server, cas, _ := clusterinfo.ParseKubeconfig([]byte(kubeconfig))
		s.Logger.Info("cluster-info has another kubeconfig", "server", server, "ca_pins", clusterinfo.Pins(cas), "signatures", m.Signed)
	default:
		s.Logger.Debug("cluster-info written", "signatures", m.Signed, "bytes", m.Bytes)
	}
}

// lower reduces what is tried after a write that was too large. What is there has been accepted
// once, so that no signature in it is given up for a new one.
func (s *signing) lower(current *corev1.ConfigMap, m clusterinfo.Merged, refused error) error {
	others := 0 // what no signature less makes smaller
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
		return fmt.Errorf("writing cluster-info with %d bytes of values that are not signatures: %w", others, refused)
	}
	s.limit = limit + binary
	return errStartOver
}

// isTooLarge reports whether an object was refused for its size: by the API server for more
// than 1 MiB of values, or for a request of more than 3 MiB, or by etcd for more than 1.5 MiB
// with keys and metadata, which comes as an error of no particular type.
func isTooLarge(err error) bool {
	if apierrors.IsRequestEntityTooLargeError(err) || apierrors.HasStatusCause(err, metav1.CauseType(field.ErrorTypeTooLong)) {
		return true
	}
	text := err.Error()
	return strings.Contains(text, "etcdserver: request is too large") || strings.Contains(text, "message larger than max")
}
