package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// FillRevocations writes the entries of n revoked nodes, gone-0 and so on, into the ConfigMaps in namespace. With n 0 it
// removes all entries.
func FillRevocations(ctx context.Context, client kubernetes.Interface, namespace string, n int) error {
	shards := make([]map[string]string, configmaps.Shards)
	for i := range shards {
		shards[i] = map[string]string{}
	}
	now := time.Now()
	for i := range n {
		e := revocation.Entry{
			Node: fmt.Sprintf("gone-%d", i), Since: now, Until: now.AddDate(1, 0, 0), Reason: "retired", By: "kubernetes-admin",
			Serials: []revocation.Serial{{Number: fmt.Sprintf("%032x", i+1), Until: now.AddDate(1, 0, 0)}},
		}
		value, err := revocation.Encode(e)
		if err != nil {
			return err
		}
		shards[sha256.Sum256([]byte(e.Key()))[0]%configmaps.Shards][string(e.Key())] = string(value)
	}
	for i, data := range shards {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(configmaps.Prefix, i), Namespace: namespace, Labels: map[string]string{configmaps.Label: "true"}}, Data: data}
		_, err := client.CoreV1().ConfigMaps(namespace).Create(ctx, m, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = client.CoreV1().ConfigMaps(namespace).Update(ctx, m, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
