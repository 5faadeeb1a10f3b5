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

// identityLifetime is a day, in seconds: longer than any run, and allowed by kube-apiserver by default.
const identityLifetime = 24 * 60 * 60

// InstallRights applies deploy/manifests, as users do, and returns the path of a kubeconfig with the identity of kubejoin.
func (c *Cluster) InstallRights(ctx context.Context) (kubeconfig string, err error) {
	root, err := Repository()
	if err != nil {
		return "", err
	}
	// kubectl applies the files of a folder in the order of their names, so the namespace comes first.
	for _, file := range []string{"namespace.yaml", "."} {
		if _, err := c.Kubectl(ctx, "apply", "-f", filepath.Join(root, "deploy/manifests", file)); err != nil {
			return "", err
		}
	}
	return c.ServiceAccountKubeconfig(ctx, "kubejoin-system", "kubejoin")
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of a service account, valid for a day, and returns
// its path. It creates the account and its namespace if they are missing. The caller grants permissions.
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
