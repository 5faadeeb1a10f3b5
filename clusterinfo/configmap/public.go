package configmap

import (
	"context"

	"github.com/kubejoin/kubejoin/clusterinfo"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PublicRole is the name of the Role and the RoleBinding that allow anybody to read cluster-info. kubeadm uses
// the same name.
const PublicRole = "kubeadm:bootstrap-signer-clusterinfo"

// create creates cluster-info. kube-apiserver creates its namespace. kubejoin does not create the Role that
// makes it public: a right to create Roles would outlast a stolen kubejoin credential.
func (s *signing) create(ctx context.Context, data map[string]string) (*corev1.ConfigMap, error) {
	return s.ConfigMap.client.CoreV1().ConfigMaps(clusterinfo.Namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name},
		Data:       data,
	}, metav1.CreateOptions{})
}

func public() (*rbacv1.RoleBinding, *rbacv1.Role) {
	meta := metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: PublicRole}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: PublicRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}},
	}
	role := &rbacv1.Role{
		ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{clusterinfo.Name}, Verbs: []string{"get"},
		}},
	}
	return binding, role
}
