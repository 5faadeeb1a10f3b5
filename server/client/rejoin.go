package client

import (
	"context"
	"net/http"

	"github.com/kubejoin/kubejoin/server/api"
)

// RejoinChallenge returns a challenge for Rejoin and BindKey.
func (c *Client) RejoinChallenge(ctx context.Context) (api.RejoinChallenge, error) {
	var challenge api.RejoinChallenge
	err := c.do(ctx, http.MethodPost, "/v1/rejoin/challenge", nil, &challenge)
	return challenge, err
}

// Rejoin returns a bootstrap kubeconfig for a node whose certificate has expired. Its token is a secret. After a problem
// with reason ChallengeInvalid or ChallengeUsed, the caller may sign another challenge.
func (c *Client) Rejoin(ctx context.Context, req api.Rejoin) (kubeconfig []byte, err error) {
	err = c.do(ctx, http.MethodPost, "/v1/rejoin", req, &kubeconfig)
	return kubeconfig, err
}

// BindKey binds a key to a node, which can then rejoin with it. Problems are as in Rejoin.
func (c *Client) BindKey(ctx context.Context, req api.BindKey) (api.BoundKey, error) {
	var key api.BoundKey
	err := c.do(ctx, http.MethodPost, "/v1/rejoin/key", req, &key)
	return key, err
}
