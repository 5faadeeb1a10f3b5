package configmap

import (
	"context"
	"fmt"

	"github.com/kubejoin/kubejoin/clusterinfo"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PublicRole is the name of the Role, and of the RoleBinding in the same namespace, that let
// anybody read cluster-info: kubeadm's.
const PublicRole = "kubeadm:bootstrap-signer-clusterinfo"

// create makes cluster-info and, before it, what lets joining nodes read it. What is there
// already stays as it is. The namespace is kube-apiserver's to make.
func (s *signing) create(ctx context.Context, data map[string]string) (*corev1.ConfigMap, error) {
	client := s.ConfigMap.client
	// The Role comes last, and the binding only where it is missing: a Role without a binding
	// is an operator's way to keep cluster-info from the public, and stays so even if
	// cluster-info itself is lost.
	_, err := client.RbacV1().Roles(clusterinfo.Namespace).Get(ctx, PublicRole, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("role %s: %w", PublicRole, err)
	}
	if apierrors.IsNotFound(err) {
		binding, role := public()
		_, err := client.RbacV1().RoleBindings(clusterinfo.Namespace).Create(ctx, binding, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("role binding %s: %w", PublicRole, err)
		}
		_, err = client.RbacV1().Roles(clusterinfo.Namespace).Create(ctx, role, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("role %s: %w", PublicRole, err)
		}
	}
	return client.CoreV1().ConfigMaps(clusterinfo.Namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: clusterinfo.Name},
		Data:       data,
	}, metav1.CreateOptions{})
}

func public() (*rbacv1.RoleBinding, *rbacv1.Role) {
	meta := metav1.ObjectMeta{Namespace: clusterinfo.Namespace, Name: PublicRole}
	return &rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: PublicRole},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}},
		}, &rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{clusterinfo.Name}, Verbs: []string{"get"},
			}},
		}
}
