package configmap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/tokens"
)

const (
	// listLag is far more than a watch of Secrets is usually behind.
	listLag = time.Second
	// retry is the time between two tries of what may pass.
	retry = 200 * time.Millisecond
)

// A Complete is cluster-info with the signatures of all live tokens of a store, also of those
// that the ConfigMap has no room for or has not been written with yet. It is for who serves
// discovery in place of the API server; who joins there sees the ConfigMap alone.
type Complete struct {
	computed clusterinfo.Computed
	from     *ConfigMap
}

// Complete signs the kubeconfig that is in the ConfigMap at each time by the tokens of a store.
func (c *ConfigMap) Complete(store tokens.Store) *Complete {
	return &Complete{clusterinfo.Computed{Tokens: store, Lag: listLag, Follow: c.Config}, c}
}

// JSON is [clusterinfo.Computed.JSON]. The error wraps [clusterinfo.ErrNotFound] if there is no
// ConfigMap to take the kubeconfig of.
func (c *Complete) JSON(ctx context.Context) ([]byte, error) { return c.computed.JSON(ctx) }

// Data is [clusterinfo.Computed.Data], with errors as those of JSON.
func (c *Complete) Data(ctx context.Context) (map[string]string, error) { return c.computed.Data(ctx) }

// Config is the kubeconfig that is in the ConfigMap, as [ConfigMap.Config] has it.
func (c *Complete) Config(ctx context.Context) (kubeconfig []byte, err error) {
	return c.from.Config(ctx)
}

// WaitSigned is [clusterinfo.Computed.WaitSigned]. Until ctx ends it waits for a kubeconfig to be
// in the ConfigMap, and for errors of the store to pass.
func (c *Complete) WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error) {
	for {
		_, _, changed, _ := c.from.state()
		kubeconfig, err := c.computed.WaitSigned(ctx, t)
		if err == nil || errors.Is(err, clusterinfo.ErrUnsigned) || errors.Is(err, clusterinfo.ErrSignature) {
			return kubeconfig, err
		}
		select {
		case <-changed:
		case <-time.After(retry):
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for a signature by token %s: %w; seen: %w", t, context.Cause(ctx), err)
		}
	}
}
