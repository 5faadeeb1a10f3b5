package clusterinfo

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
)

// Where cluster-info is, and the names of the keys in it.
const (
	Namespace       = metav1.NamespacePublic
	Name            = bootstrapapi.ConfigMapClusterInfo
	KubeconfigKey   = bootstrapapi.KubeConfigKey
	SignaturePrefix = bootstrapapi.JWSSignatureKeyPrefix
)

// MaxData is the most bytes that the values of a ConfigMap may have in sum, as kube-apiserver
// has it.
const MaxData = corev1.MaxSecretSize

// SignatureKey is the key of the signature by the token of that ID.
func SignatureKey(id string) string { return SignaturePrefix + id }

// MarshalConfigMap gives the v1 ConfigMap kube-public/cluster-info with that data as JSON: what
// kubeadm reads from GET /api/v1/namespaces/kube-public/configmaps/cluster-info.
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
