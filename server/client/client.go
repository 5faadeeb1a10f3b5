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
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
)

// maxAnswer bounds what is read of an answer: a list of 100,000 tokens has about 40 MB.
const maxAnswer = 256 << 20

// A Client asks one kubejoin server. Its methods may be called side by side. What the server
// refuses is a [*api.Problem]; every other error is of the way there, and what was asked for may
// have happened.
type Client struct {
	// URL is the server's, as https://HOST:PORT, with the prefix where it is mounted under one.
	URL string
	// Bearer says who asks; empty leaves that to HTTP, which may have a client certificate.
	Bearer api.Secret
	// HTTP sends requests; nil is http.DefaultClient, which trusts the system's CAs.
	HTTP *http.Client
}

// CreateToken makes a token and waits for its signature as far as it is asked to. Asked again for
// the same token, with everything else as it was, it gives the one that is there. A problem
// named [api.ProblemNotSigned] has the ID of a token that was made.
func (c *Client) CreateToken(ctx context.Context, req api.CreateToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodPost, "/v1/token", req, &t)
	return t, err
}

// GetToken gives one token without its secret.
func (c *Client) GetToken(ctx context.Context, id string) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodGet, "/v1/token/"+url.PathEscape(id), nil, &t)
	return t, err
}

// DeleteToken deletes a token, and gives what it was.
func (c *Client) DeleteToken(ctx context.Context, id string, req api.DeleteToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodDelete, "/v1/token/"+url.PathEscape(id), req, &t)
	return t, err
}

// RenewToken sets another end of a token.
func (c *Client) RenewToken(ctx context.Context, id string, req api.RenewToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodPost, "/v1/token/"+url.PathEscape(id)+"/renew", req, &t)
	return t, err
}

// ReleaseClaim makes a node name free again, and its place on the token.
func (c *Client) ReleaseClaim(ctx context.Context, node string, req api.ReleaseClaim) (api.Claim, error) {
	var claim api.Claim
	err := c.do(ctx, http.MethodDelete, "/v1/claim/"+url.PathEscape(node), req, &claim)
	return claim, err
}

// ListIssued gives a page of the issuance record, without the certificates themselves.
func (c *Client) ListIssued(ctx context.Context, req api.ListIssued) (api.IssuanceEntryList, error) {
	query := url.Values{}
	for name, value := range map[string]string{
		"tokenID": req.TokenID, "node": req.Node, "requester": req.Requester, "signer": req.Signer, "outcome": req.Outcome,
		"endsWithin": req.EndsWithin, "since": req.Since, "continue": req.Continue,
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if req.Limit != 0 {
		query.Set("limit", strconv.Itoa(req.Limit))
	}
	var list api.IssuanceEntryList
	err := c.do(ctx, http.MethodGet, "/v1/issued?"+query.Encode(), nil, &list)
	return list, err
}

// GetIssued gives the entry of a certificate by its serial number, and the certificate.
func (c *Client) GetIssued(ctx context.Context, serial string) (api.IssuanceEntry, error) {
	var e api.IssuanceEntry
	err := c.do(ctx, http.MethodGet, "/v1/issued/"+url.PathEscape(serial), nil, &e)
	return e, err
}

// PrintJoinCommand makes a token and gives the command to join with, which holds it, or what stands
// for it in another format. A token that is not signed in time is deleted again.
func (c *Client) PrintJoinCommand(ctx context.Context, req api.PrintJoinCommand) (api.Secret, error) {
	var command []byte
	err := c.do(ctx, http.MethodPost, "/v1/token/print-join-command", req, &command)
	if req.Format == "" || req.Format == api.FormatText {
		command = bytes.TrimSpace(command)
	}
	return api.Secret(command), err
}

// do sends a request, and reads the answer into a []byte as it is or into another pointer as JSON.
func (c *Client) do(ctx context.Context, method, path string, req, into any) error {
	var body []byte
	if req != nil {
		var err error
		if body, err = json.Marshal(req); err != nil {
			return err
		}
	}
	return c.send(ctx, method, path, "application/json", body, into)
}

// send is do with a body as it is; nil is none.
func (c *Client) send(ctx context.Context, method, path, contentType string, body []byte, into any) error {
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		r.Header.Set("Content-Type", contentType)
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
	if response.StatusCode/100 != 2 {
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
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 && seconds < 1e6 {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	return p
}
