package client

import (
	"context"
	"net/http"

	"github.com/kubejoin/kubejoin/server/api"
)

// BindKey binds a key to the node whose client certificate the client has. The node can then rejoin with this key.
func (c *Client) BindKey(ctx context.Context, req api.BindKey) (api.BoundKey, error) {
	var key api.BoundKey
	err := c.do(ctx, http.MethodPost, "/v1/rejoin/key", req, &key)
	return key, err
}
