package cluster

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RevokeMany revokes n nodes that do not exist, in the ConfigMaps of kubejoin in the namespace kubejoin-system. It returns
// their names. kubejoin writes one revocation at a time.
func (c *Cluster) RevokeMany(ctx context.Context, n int) (names []string, err error) {
	shards := map[string]map[string]string{}
	for i := range n {
		e := revocation.Entry{Node: fmt.Sprintf("revoked-%d", i), Since: time.Now(), Until: time.Now().Add(time.Hour), Reason: "one of many"}
		value, err := revocation.Encode(e)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256([]byte(e.Key()))
		shard := fmt.Sprintf("%s%x", configmaps.Prefix, sum[0]%configmaps.Shards)
		if shards[shard] == nil {
			shards[shard] = map[string]string{}
		}
		shards[shard][string(e.Key())] = string(value)
		names = append(names, e.Node)
	}
	for name, data := range shards {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{configmaps.Label: "true"}}, Data: data}
		if _, err := c.Client().CoreV1().ConfigMaps("kubejoin-system").Create(ctx, m, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	return names, nil
}
