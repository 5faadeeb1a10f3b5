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

// A Complete is cluster-info with the signatures of all live tokens of a store. It includes those that do
// not fit into the ConfigMap or are not written yet. It is for servers that replace the API server for
// discovery. Machines that use the API server see only the ConfigMap.
type Complete struct {
	computed clusterinfo.Computed
	from     *ConfigMap
}

// Complete returns the kubeconfig of the ConfigMap, kept current and signed by the tokens of a store.
func (c *ConfigMap) Complete(store tokens.Store) *Complete {
	return &Complete{clusterinfo.Computed{Tokens: store, Follow: c.Config}, c}
}

// JSON calls [clusterinfo.Computed.JSON]. The error wraps [clusterinfo.ErrNotFound] if there is no
// ConfigMap with a kubeconfig.
func (c *Complete) JSON(ctx context.Context) ([]byte, error) { return c.computed.JSON(ctx) }

// Data calls [clusterinfo.Computed.Data]. Errors are as with JSON.
func (c *Complete) Data(ctx context.Context) (map[string]string, error) { return c.computed.Data(ctx) }

// Config returns the kubeconfig in the ConfigMap, as [ConfigMap.Config] does.
func (c *Complete) Config(ctx context.Context) (kubeconfig []byte, err error) {
	return c.from.Config(ctx)
}

// WaitSigned is [clusterinfo.Computed.WaitSigned] with retries. Until ctx ends it waits for a kubeconfig in
// the ConfigMap, and for errors of the store to pass.
func (c *Complete) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	for {
		kubeconfig, err := c.computed.WaitSigned(ctx, t)
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
