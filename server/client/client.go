package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"github.com/kubejoin/kubejoin/server/api"
)

// maxAnswer bounds what is read of an answer: a list of 100,000 tokens has about 40 MB.
const maxAnswer = 256 << 20

// A Client asks one kubejoin server. Its methods may be called side by side. What the server
// refuses is a [*api.Problem]; every other error is of the way there, and what was asked for may
// have happened.
type Client struct {
	// URL is the server's, as https://HOST:PORT.
	URL string
	// Bearer says who asks; empty leaves that to HTTP, which may have a client certificate.
	Bearer api.Secret
	// HTTP sends requests; nil is http.DefaultClient, which trusts the system's CAs.
	HTTP *http.Client
}

// CreateToken makes a token and waits for its signature as far as it is asked to. A problem
// named [api.ProblemNotSigned] has the ID of a token that was made.
func (c *Client) CreateToken(ctx context.Context, asked api.CreateToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodPost, "/v1/token", asked, &t)
	return t, err
}

// ListTokens gives all tokens without their secrets.
func (c *Client) ListTokens(ctx context.Context) (api.TokenList, error) {
	var list api.TokenList
	err := c.do(ctx, http.MethodGet, "/v1/token", nil, &list)
	return list, err
}

// GetToken gives one token without its secret.
func (c *Client) GetToken(ctx context.Context, id string) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodGet, "/v1/token/"+url.PathEscape(id), nil, &t)
	return t, err
}

// DeleteToken deletes a token, and gives what it was.
func (c *Client) DeleteToken(ctx context.Context, id string, asked api.DeleteToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodDelete, "/v1/token/"+url.PathEscape(id), asked, &t)
	return t, err
}

// RenewToken sets another end of a token.
func (c *Client) RenewToken(ctx context.Context, id string, asked api.RenewToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodPost, "/v1/token/"+url.PathEscape(id)+"/renew", asked, &t)
	return t, err
}

// ListClaims gives the node names that were taken with limited tokens.
func (c *Client) ListClaims(ctx context.Context) (api.ClaimList, error) {
	var list api.ClaimList
	err := c.do(ctx, http.MethodGet, "/v1/claim", nil, &list)
	return list, err
}

// ReleaseClaim makes a node name free again, and its place on the token.
func (c *Client) ReleaseClaim(ctx context.Context, node string, asked api.ReleaseClaim) (api.Claim, error) {
	var claim api.Claim
	err := c.do(ctx, http.MethodDelete, "/v1/claim/"+url.PathEscape(node), asked, &claim)
	return claim, err
}

// PrintJoinCommand makes a token and gives the command to join with, which holds it. A token
// that is not signed in time is deleted again.
func (c *Client) PrintJoinCommand(ctx context.Context, asked api.TokenSpec) (api.Secret, error) {
	var command []byte
	err := c.do(ctx, http.MethodPost, "/v1/token/print-join-command", asked, &command)
	return api.Secret(strings.TrimSpace(string(command))), err
}

// do sends a request, and reads the answer into a []byte as it is or into another pointer as JSON.
func (c *Client) do(ctx context.Context, method, path string, asked, into any) error {
	var body io.Reader
	if asked != nil {
		content, err := json.Marshal(asked)
		if err != nil {
			return err
		}
		body = bytes.NewReader(content)
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+path, body)
	if err != nil {
		return err
	}
	if asked != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.Bearer != "" {
		r.Header.Set("Authorization", "Bearer "+c.Bearer.Reveal())
	}
	web := c.HTTP
	if web == nil {
		web = http.DefaultClient
	}
	response, err := web.Do(r)
	if err != nil {
		var asURL *url.Error
		if errors.As(err, &asURL) { // its text is the method and the URL
			err = asURL.Err
		}
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	defer func() { _ = response.Body.Close() }() // all of it that matters was read
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: the answer ended early: %w", c.URL, err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return problem(c.URL, response, content)
	}
	if text, ok := into.(*[]byte); ok {
		*text = content
		return nil
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: the answer is not of a kubejoin server: %w", c.URL, err)
	}
	return nil
}

// problem is what a server says is wrong, or that it is none of kubejoin.
func problem(server string, response *http.Response, content []byte) error {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	p := &api.Problem{}
	if media != "application/problem+json" || json.Unmarshal(content, p) != nil || p.Detail == "" {
		return fmt.Errorf("%s: answers %s, and not as a kubejoin server does", server, response.Status)
	}
	p.Status = response.StatusCode
	return p
}
