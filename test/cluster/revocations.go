package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Revocations returns entries of nodes without a machine: "gone-0", "gone-1" and so on.
func Revocations(n int, since time.Time) (entries []revocation.Entry) {
	for i := range n {
		entries = append(entries, revocation.Entry{Node: fmt.Sprintf("gone-%d", i), Since: since, Until: since.AddDate(1, 0, 0), Reason: "retired"})
	}
	return entries
}

// WriteRevocations replaces all revocations in the cluster. It writes the ConfigMaps itself, with one request per
// ConfigMap, because kubejoin needs one request per entry. Without entries, it deletes the ConfigMaps.
func (c *Cluster) WriteRevocations(ctx context.Context, entries []revocation.Entry) error {
	var shards [configmaps.Shards]map[string]string
	for i := range shards {
		shards[i] = map[string]string{}
	}
	for _, e := range entries {
		value, err := revocation.Encode(e)
		if err != nil {
			return err
		}
		sum := sha256.Sum256([]byte(e.Key()))
		shards[sum[0]%configmaps.Shards][string(e.Key())] = string(value)
	}
	client := c.clientset.CoreV1().ConfigMaps(secretstore.ClaimNamespace)
	for i, data := range shards {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint(configmaps.Prefix, i), Labels: map[string]string{configmaps.Label: "true"},
		}, Data: data}
		if err := client.Delete(ctx, object.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if len(data) == 0 {
			continue
		}
		if _, err := client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}
