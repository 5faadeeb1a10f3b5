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

// maxAnswer is the maximum size of a response, in bytes. A list of 100,000 tokens has about 40 MB.
const maxAnswer = 256 << 20

// A Client calls one kubejoin server. Its methods are safe for concurrent use. If the server refuses a request, the
// error is a [*api.Problem]. Every other error is a failure of the connection or of the response, and the server may
// have carried out the request.
type Client struct {
	// URL is https://HOST:PORT of the server, with the path prefix if the handler is mounted under one.
	URL string
	// Bearer is the bearer token; empty sends none, and the client certificate of HTTP may identify the caller.
	Bearer api.Secret
	// HTTP sends requests; nil is http.DefaultClient, which trusts the system's CAs.
	HTTP *http.Client
}

// CreateToken creates a token and waits for its signature for up to req.Wait. If the same token already exists and
// was created by an equal request, CreateToken returns the existing token. A problem named [api.ProblemNotSigned]
// carries the ID of the token, which was created nevertheless.
func (c *Client) CreateToken(ctx context.Context, req api.CreateToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodPost, "/v1/token", req, &t)
	return t, err
}

// GetToken returns one token without its secret.
func (c *Client) GetToken(ctx context.Context, id string) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodGet, "/v1/token/"+url.PathEscape(id), nil, &t)
	return t, err
}

// DeleteToken deletes a token and returns the deleted token.
func (c *Client) DeleteToken(ctx context.Context, id string, req api.DeleteToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodDelete, "/v1/token/"+url.PathEscape(id), req, &t)
	return t, err
}

// RenewToken changes the expiration of a token.
func (c *Client) RenewToken(ctx context.Context, id string, req api.RenewToken) (api.Token, error) {
	var t api.Token
	err := c.do(ctx, http.MethodPost, "/v1/token/"+url.PathEscape(id)+"/renew", req, &t)
	return t, err
}

// ReleaseClaim releases the claim of a node name, which also frees its slot of the token's node limit.
func (c *Client) ReleaseClaim(ctx context.Context, node string, req api.ReleaseClaim) (api.Claim, error) {
	var claim api.Claim
	err := c.do(ctx, http.MethodDelete, "/v1/claim/"+url.PathEscape(node), req, &claim)
	return claim, err
}

// AddMachines adds up to api.MaxMachines machines with keys of their own: see [api.SplitMachines]. The same request can be repeated. An
// item of the result says whether its machine failed. If the request has only one machine, the error says it.
func (c *Client) AddMachines(ctx context.Context, req api.AddMachines) (api.MachineList, error) {
	var list api.MachineList
	err := c.do(ctx, http.MethodPost, "/v1/machine", req, &list)
	return list, err
}

// GetMachine returns the machine of a node name.
func (c *Client) GetMachine(ctx context.Context, node string) (api.Machine, error) {
	var m api.Machine
	err := c.do(ctx, http.MethodGet, "/v1/machine/"+url.PathEscape(node), nil, &m)
	return m, err
}

// DeleteMachine deletes the machine of a node name, and its last token. Certificates stay valid.
func (c *Client) DeleteMachine(ctx context.Context, node string, req api.DeleteMachine) (api.Machine, error) {
	var m api.Machine
	err := c.do(ctx, http.MethodDelete, "/v1/machine/"+url.PathEscape(node), req, &m)
	return m, err
}

// ListPendingMachines returns the last handshakes with keys that no machine has. Each replica returns only its own.
func (c *Client) ListPendingMachines(ctx context.Context) (api.PendingMachineList, error) {
	var list api.PendingMachineList
	err := c.do(ctx, http.MethodGet, "/v1/pending-machine", nil, &list)
	return list, err
}

// PrintMachineJoin returns a document for machines that join with their keys. It contains no secret.
func (c *Client) PrintMachineJoin(ctx context.Context, req api.PrintMachineJoin) ([]byte, error) {
	var document []byte
	err := c.do(ctx, http.MethodPost, "/v1/machine/print-join-command", req, &document)
	return document, err
}

// ListPermissions returns what the caller may do.
func (c *Client) ListPermissions(ctx context.Context) (api.PermissionList, error) {
	var list api.PermissionList
	err := c.do(ctx, http.MethodGet, "/v1/permissions", nil, &list)
	return list, err
}

// Revoke revokes a node, one certificate, or everything that was issued on a token. It returns what was revoked.
func (c *Client) Revoke(ctx context.Context, req api.Revoke) (api.RevocationList, error) {
	var list api.RevocationList
	err := c.do(ctx, http.MethodPost, "/v1/revocation", req, &list)
	return list, err
}

// UndoRevocation removes the revocation of a node name or of a fingerprint, which begins with "sha256:".
func (c *Client) UndoRevocation(ctx context.Context, revoked string, req api.UndoRevocation) (api.Revocation, error) {
	var r api.Revocation
	err := c.do(ctx, http.MethodDelete, "/v1/revocation/"+url.PathEscape(revoked), req, &r)
	return r, err
}

// CARotation returns the last rotation of a CA, with kubejoin's current observations.
func (c *Client) CARotation(ctx context.Context, ca string) (api.CARotation, error) {
	var r api.CARotation
	err := c.do(ctx, http.MethodGet, rotationPath(ca), nil, &r)
	return r, err
}

// PrepareCA begins the rotation of a CA. The result has the certificate key, which the server returns only once.
func (c *Client) PrepareCA(ctx context.Context, ca string, req api.PrepareCA) (api.CARotation, error) {
	var r api.CARotation
	err := c.do(ctx, http.MethodPost, rotationPath(ca)+"/prepare", req, &r)
	return r, err
}

// StepCA takes a rotation to the stage "trust", "switch" or "finish", or with "abort" back by one stage. A problem
// named [api.ProblemNotReady] says what blocks the stage.
func (c *Client) StepCA(ctx context.Context, ca, step string, req api.StepCA) (api.CARotation, error) {
	var r api.CARotation
	err := c.do(ctx, http.MethodPost, rotationPath(ca)+"/"+url.PathEscape(step), req, &r)
	return r, err
}

func rotationPath(ca string) string { return "/v1/ca/" + url.PathEscape(ca) + "/rotation" }

// ListIssued returns one page of the issuance record, without the certificates.
func (c *Client) ListIssued(ctx context.Context, req api.ListIssued) (api.IssuanceEntryList, error) {
	var list api.IssuanceEntryList
	err := c.do(ctx, http.MethodGet, "/v1/issued"+query(req), nil, &list)
	return list, err
}

// GetIssued returns the issuance record's entry for a serial number, with the certificate.
func (c *Client) GetIssued(ctx context.Context, serial string) (api.IssuanceEntry, error) {
	var e api.IssuanceEntry
	err := c.do(ctx, http.MethodGet, "/v1/issued/"+url.PathEscape(serial), nil, &e)
	return e, err
}

// PrintJoinCommand creates a token and returns the join command with it, in the requested format. The server
// deletes a token that is not signed in time.
func (c *Client) PrintJoinCommand(ctx context.Context, req api.PrintJoinCommand) (api.Secret, error) {
	var command []byte
	err := c.do(ctx, http.MethodPost, "/v1/token/print-join-command", req, &command)
	if req.Format == "" || req.Format == api.FormatText {
		command = bytes.TrimSpace(command)
	}
	return api.Secret(command), err
}

// do sends a request with a JSON body. It stores the response as it is into a *[]byte, or decodes it as JSON into any
// other pointer.
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

// send is do with a raw body; nil sends none.
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
		if errors.As(err, &asURL) { // the text of a url.Error repeats the method and the URL
			err = asURL.Err
		}
		return fmt.Errorf("%s: %w", c.URL, err)
	}
	defer func() { _ = response.Body.Close() }() // the response was already read
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: the response ended early: %w", c.URL, err)
	}
	if response.StatusCode/100 != 2 {
		return problem(c.URL, response, content)
	}
	if text, ok := into.(*[]byte); ok {
		*text = content
		return nil
	}
	if err := json.Unmarshal(content, into); err != nil {
		return fmt.Errorf("%s: the response is not from a kubejoin server: %w", c.URL, err)
	}
	return nil
}

// problem returns the problem that a response describes, or an error if the response is not from a kubejoin server.
func problem(server string, response *http.Response, content []byte) error {
	media, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	p := &api.Problem{}
	if media != "application/problem+json" || json.Unmarshal(content, p) != nil || p.Detail == "" {
		return fmt.Errorf("%s: the response (%s) is not from a kubejoin server", server, response.Status)
	}
	p.Status = response.StatusCode
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 && seconds < 1e6 {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	return p
}
