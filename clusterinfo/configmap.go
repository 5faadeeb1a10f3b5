package clusterinfo

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// The namespace and name of cluster-info, and the names of its keys.
const (
	Namespace       = metav1.NamespacePublic
	Name            = bootstrapapi.ConfigMapClusterInfo
	KubeconfigKey   = bootstrapapi.KubeConfigKey
	SignaturePrefix = bootstrapapi.JWSSignatureKeyPrefix
)

// MaxData is kube-apiserver's limit for the sum of all values of a ConfigMap, in bytes.
const MaxData = corev1.MaxSecretSize

// SignatureKey returns the key of the signature by the token with that ID.
func SignatureKey(id string) string { return SignaturePrefix + id }

// MarshalConfigMap returns the v1 ConfigMap kube-public/cluster-info with that data as JSON. kubeadm reads
// it from GET /api/v1/namespaces/kube-public/configmaps/cluster-info.
func MarshalConfigMap(data map[string]string) ([]byte, error) {
	b, err := json.Marshal(corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: Name},
		Data:       data,
	})
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	return b, nil
}
