package client

import (
	"context"
	"net/http"

	"github.com/kubejoin/kubejoin/server/api"
)

// ClusterInfo gives the kubeconfig that joining nodes are to trust. It is what the server says: who
// has no reason to trust the server itself yet discovers with clusterinfo.Discover.
func (c *Client) ClusterInfo(ctx context.Context) (kubeconfig []byte, err error) {
	err = c.do(ctx, http.MethodGet, "/v1/cluster-info", nil, &kubeconfig)
	return kubeconfig, err
}

// CA gives the CA certificates that joining nodes are to trust, with their pins. For the server's
// word see ClusterInfo.
func (c *Client) CA(ctx context.Context) (api.CABundle, error) {
	var list api.CABundle
	err := c.do(ctx, http.MethodGet, "/v1/ca?format=json", nil, &list)
	return list, err
}
