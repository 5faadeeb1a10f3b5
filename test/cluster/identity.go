package cluster

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A day: longer than any run, and what kube-apiserver grants unless it is told otherwise.
const identityLifetime = 24 * 60 * 60

// ServiceAccountKubeconfig is the path of a new kubeconfig whose holder is that service account
// for a day. The account and its namespace are made if they are missing; what it may do is the
// caller's to grant.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	err := ignoreExists(c.clientset.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))
	if err != nil {
		return "", fmt.Errorf("namespace %s: %w", namespace, err)
	}
	accounts := c.clientset.CoreV1().ServiceAccounts(namespace)
	err = ignoreExists(accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	if err != nil {
		return "", fmt.Errorf("service account %s/%s: %w", namespace, name, err)
	}
	lifetime := int64(identityLifetime)
	granted, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of service account %s/%s: %w", namespace, name, err)
	}
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"kubernetes": {Server: c.Server(), CertificateAuthorityData: c.admin.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: granted.Status.Token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: "kubernetes", AuthInfo: name, Namespace: namespace}},
		CurrentContext: name,
	}
	path := filepath.Join(c.Dir, namespace+"-"+name+".conf")
	return path, clientcmd.WriteToFile(config, path) // mode 0600
}
