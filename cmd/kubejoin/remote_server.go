package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/tokens"
)

// onServer is a kubejoin server.
type onServer struct{ *client.Client }

// CreateToken implements operations. After a lost response it retries. The retry sends the same token, so it cannot create
// a second token.
func (s onServer) CreateToken(ctx context.Context, req api.CreateToken) (api.Token, error) {
	made, err := s.Client.CreateToken(ctx, req)
	if maybeApplied(err) && ctx.Err() == nil {
		made, err = s.Client.CreateToken(ctx, req)
	}
	var p *api.Problem
	switch {
	case err == nil:
		return made, nil
	case errors.As(err, &p):
		return api.Token{ID: p.TokenID}, err
	case req.DryRun || !maybeApplied(err):
		return api.Token{}, err
	}
	id, _, _ := strings.Cut(req.Token.Reveal(), ".")
	ctx, cancel := context.WithTimeout(ctx, lookTimeout) // after an interrupt, the look-up fails at once
	defer cancel()
	switch _, lookErr := s.GetToken(ctx, id); {
	case errors.As(lookErr, &p) && p.Status == http.StatusNotFound:
		return api.Token{}, err
	case lookErr == nil:
		err = fmt.Errorf("%w; token %s was created, but cluster-info may not be signed with it yet: check with 'kubejoin token get %s -o wide'", err, id, id)
	default:
		err = fmt.Errorf("%w; token %s may have been created: check with 'kubejoin token get %s'", err, id, id)
	}
	return api.Token{ID: id}, err
}

// lookTimeout limits the look-up of a token after a lost response.
const lookTimeout = 10 * time.Second

// maybeApplied reports whether the server may have carried out a request although the client got an error.
func maybeApplied(err error) bool {
	var p *api.Problem
	var dial *net.OpError
	return err != nil && !errors.As(err, &p) && !(errors.As(err, &dial) && dial.Op == "dial") // a dial error: nothing was sent
}

// maybeApplied reports whether a cluster or a server may have carried out a request although the command got an error.
func (r *remote) maybeApplied(err error) bool {
	var sent *url.Error
	return maybeApplied(err) && (r.server != nil || errors.As(err, &sent))
}

// JoinControlPlane implements operations. The server generates the token and the certificate key.
func (s onServer) JoinControlPlane(ctx context.Context, spec api.TokenSpec) (j joinformat.Join, err error) {
	content, err := s.PrintJoinCommand(ctx, api.PrintJoinCommand{TokenSpec: spec, Format: api.FormatJSON, ControlPlane: true})
	if err != nil {
		return j, err
	}
	var made api.JoinCommand
	if err := json.Unmarshal([]byte(content.Reveal()), &made); err != nil {
		return j, errors.New("the response is not from a kubejoin server")
	}
	j = joinformat.Join{Endpoint: made.Endpoint, Server: made.APIServer, Expires: made.Expires, Warnings: made.Warnings}
	if j.CertificateKey, err = joinformat.ParseCertificateKey(made.CertificateKey.Reveal()); err != nil {
		return j, err
	}
	if j.Token, err = tokens.Parse(made.Token.Reveal()); err != nil {
		return j, err
	}
	if j.CAs, err = clusterinfo.ParseCAs([]byte(made.CABundle)); err != nil {
		return j, err
	}
	// Without --advertise, the endpoint is the API server, where machines cannot take turns.
	if apiServer, err := clusterinfo.JoinEndpoint(made.APIServer); err == nil && made.Endpoint == apiServer {
		j.TurnServer, _ = clusterinfo.JoinEndpoint(s.URL) // empty with an error
	}
	return j, nil
}
