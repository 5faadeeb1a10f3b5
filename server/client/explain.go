package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/kubejoin/kubejoin/server/api"
)

// Explain returns why a machine with this node name has or has not joined.
func (c *Client) Explain(ctx context.Context, node string) (api.NodeExplanation, error) {
	var e api.NodeExplanation
	err := c.do(ctx, http.MethodGet, "/v1/explain/"+url.PathEscape(node), nil, &e)
	return e, err
}

// ListJoins returns one page of how far machines have joined. With After, it waits until the list changes, for at most Wait.
func (c *Client) ListJoins(ctx context.Context, req api.ListJoins) (api.JoinList, error) {
	var list api.JoinList
	err := c.do(ctx, http.MethodGet, "/v1/join"+query(req), nil, &list)
	return list, err
}

// ExplainRequest returns what kubejoin would decide about a certificate request, and why.
func (c *Client) ExplainRequest(ctx context.Context, req api.ExplainRequest) (api.RequestExplanation, error) {
	var e api.RequestExplanation
	err := c.do(ctx, http.MethodPost, "/v1/explain", req, &e)
	return e, err
}
