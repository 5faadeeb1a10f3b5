package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

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
	values := url.Values{}
	for name, value := range map[string]string{"node": req.Node, "token": req.Token, "state": req.State, "continue": req.Continue, "after": req.After, "wait": req.Wait} {
		if value != "" {
			values.Set(name, value)
		}
	}
	if req.Limit != 0 {
		values.Set("limit", strconv.Itoa(req.Limit))
	}
	err := c.do(ctx, http.MethodGet, "/v1/join?"+values.Encode(), nil, &list)
	return list, err
}

// ExplainRequest returns what kubejoin would decide about a certificate request, and why.
func (c *Client) ExplainRequest(ctx context.Context, req api.ExplainRequest) (api.RequestExplanation, error) {
	var e api.RequestExplanation
	err := c.do(ctx, http.MethodPost, "/v1/explain", req, &e)
	return e, err
}
