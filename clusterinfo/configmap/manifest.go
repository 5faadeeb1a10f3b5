package configmap

import (
	"github.com/kubejoin/kubejoin/clusterinfo"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Manifests returns cluster-info with that data, and the Role and RoleBinding that allow anybody to read it.
// They can be applied as soon as the API server runs.
func Manifests(data map[string]string) []runtime.Object {
	binding, role := public()
	binding.TypeMeta = metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "RoleBinding"}
	role.TypeMeta = metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "Role"}
	return []runtime.Object{
		&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
			ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name},
			Data:       data,
		},
		role, binding,
	}
}
