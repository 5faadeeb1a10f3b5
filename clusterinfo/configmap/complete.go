package configmap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
)

// retry is the pause between two tries after a temporary error.
const retry = 200 * time.Millisecond

// A Complete is cluster-info with the signatures of all live tokens of a store that need one. It includes signatures
// that do not fit into the ConfigMap or are not written yet. Servers use it to replace the API server for discovery.
// Machines that use the API server see only the ConfigMap.
type Complete struct{ clusterinfo.Computed }

// Complete returns the kubeconfig of the ConfigMap, kept current and signed by the tokens of a store. spent is as in
// [clusterinfo.Computed]. Errors of its methods wrap [clusterinfo.ErrNotFound] if there is no ConfigMap.
func (c *ConfigMap) Complete(store tokens.Store, spent *clusterinfo.Spent) *Complete {
	return &Complete{clusterinfo.Computed{Tokens: store, Spent: spent, Follow: c.Config}}
}

// WaitSigned is [clusterinfo.Computed.WaitSigned] with retries. Until ctx ends it waits for a kubeconfig in
// the ConfigMap, and for errors of the store to pass.
func (c *Complete) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	for {
		kubeconfig, err := c.Computed.WaitSigned(ctx, t)
		if err == nil || errors.Is(err, clusterinfo.ErrUnsigned) || errors.Is(err, clusterinfo.ErrSignature) {
			return kubeconfig, err
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a signature by token %s: %w; found: %w", t, context.Cause(ctx), err)
		}
	}
}
