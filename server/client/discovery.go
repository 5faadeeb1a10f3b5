package client

import (
	"context"
	"net/http"

	"github.com/kubejoin/kubejoin/server/api"
)

// ClusterInfo returns the kubeconfig that joining nodes should trust. The caller must trust the server already: use
// clusterinfo.Discover otherwise.
func (c *Client) ClusterInfo(ctx context.Context) (kubeconfig []byte, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/cluster-info", nil, &kubeconfig)
	return kubeconfig, err
}

// CA returns the CA certificates that joining nodes should trust, with their pins. As for ClusterInfo, the caller
// must trust the server already.
func (c *Client) CA(ctx context.Context) (api.CABundle, error) {
	var list api.CABundle
	err := c.do(ctx, http.MethodGet, "/v1/ca?format=json", nil, &list)
	return list, err
}
