package configmap_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// The documented permissions of Signer must be enough, even if cluster-info does not exist.
func TestSignerWithLeastPrivilege(t *testing.T) {
	f := setUp(t)
	f.clear(t)
	const name = "signer-test"
	rbac := f.client.RbacV1()
	for _, err := range []error{
		created(rbac.Roles("kube-public").Create(t.Context(), &rbacv1.Role{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"cluster-info"}, Verbs: []string{"get", "list", "watch", "update"}},
				{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}},
			},
		}, metav1.CreateOptions{})),
		created(rbac.RoleBindings("kube-public").Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: name, Name: name}},
		}, metav1.CreateOptions{})),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	file, err := f.ServiceAccountKubeconfig(t.Context(), name, name)
	if err != nil {
		t.Fatal(err)
	}
	config, err := f.Config(file)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	s := f.signer()
	s.ConfigMap = configmap.Open(t.Context(), client)
	if s.Default, err = clusterinfo.Kubeconfig(f.Server(), f.cas); err != nil {
		t.Fatal(err)
	}
	run(t, s)
	for range 2 { // the first token creates cluster-info, the second updates it
		token := f.store.mint()
		f.waitSigned(t, token)
	}
	if t.Failed() {
		t.Log(f.log)
	}
}

func created[T any](_ T, err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
