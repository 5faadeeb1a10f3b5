package configmaps

import (
	"context"
	"crypto/x509"
	"fmt"

	"github.com/kubejoin/kubejoin/clusterinfo"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// ClientCAs returns the CAs of client certificates that the API servers of a cluster accept, as they publish them in
// ConfigMap extension-apiserver-authentication. It returns none if they accept no client certificates.
func ClientCAs(ctx context.Context, client kubernetes.Interface) ([]*x509.Certificate, error) {
	const name, key = "extension-apiserver-authentication", "client-ca-file"
	m, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if m.Data[key] == "" {
		return nil, nil
	}
	cas, err := clusterinfo.ParseCAs([]byte(m.Data[key]))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap %s/%s, %s: %w", metav1.NamespaceSystem, name, key, err)
	}
	return cas, nil
}
