package server

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/rejoin"
)

// rejoinTimeout limits how long the request of a node that rejoins may take.
const rejoinTimeout = 30 * time.Second

// rejoinChallenge serves POST /v1/rejoin/challenge.
func (h *handler) rejoinChallenge(r *call) (response, error) {
	if err := readRequest(r, &struct{}{}); err != nil {
		return response{}, err
	}
	challenge, expires, err := h.Rejoin.Challenge()
	if err != nil {
		return response{}, notRejoined(err)
	}
	return object(http.StatusOK, api.RejoinChallenge{APIVersion: api.Version, Kind: api.KindRejoinChallenge, Challenge: challenge, Expires: expires})
}

// rejoin serves POST /v1/rejoin. The response is a bootstrap kubeconfig.
func (h *handler) rejoin(r *call) (response, error) {
	var req api.Rejoin
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	request, err := rejoinRequest(req)
	if err != nil {
		return response{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), rejoinTimeout)
	defer cancel()
	// Read it first: without it, the machine could not use the token.
	kubeconfig, err := h.ClusterInfo.Config(ctx)
	if err != nil {
		return response{}, noClusterInfo(err)
	}
	record, err := h.Rejoin.Rejoin(ctx, request, remoteAddr(r))
	if err != nil {
		return response{}, notRejoined(err)
	}
	r.log(slog.String("token", record.Token.ID()), slog.String("node", record.Limits.Replaces.Name))
	join, err := h.join(kubeconfig, record.Token)
	if err != nil {
		return response{}, err
	}
	body, err := join.Kubeconfig()
	return response{contentType: "application/yaml", body: body}, err
}

// bindKey serves POST /v1/rejoin/key.
func (h *handler) bindKey(r *call) (response, error) {
	var req api.BindKey
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	request, err := rejoinRequest(req.Rejoin)
	if err != nil {
		return response{}, err
	}
	if req.Key == "" {
		return response{}, badField("key", "none given, want the public key to bind, in PEM")
	}
	request.Key = []byte(req.Key)
	ctx, cancel := context.WithTimeout(r.Context(), rejoinTimeout)
	defer cancel()
	key, err := h.Rejoin.Bind(ctx, request, remoteAddr(r))
	if err != nil {
		return response{}, notRejoined(err)
	}
	return object(http.StatusOK, api.BoundKey{APIVersion: api.Version, Kind: api.KindBoundKey, Key: key})
}

// rejoinRequest converts a request. It checks only what is about its form.
func rejoinRequest(req api.Rejoin) (rejoin.Request, error) {
	for name, value := range map[string]api.Text{"challenge": req.Challenge, "server": req.Server, "signature": req.Signature} {
		if value == "" {
			return rejoin.Request{}, badField(name, "none given")
		}
	}
	switch byKey := req.Node != "" || req.PublicKey != ""; {
	case byKey && (req.Node == "" || req.PublicKey == "" || req.Certificate != ""), !byKey && req.Certificate == "":
		return rejoin.Request{}, badField("certificate", "want either certificate, or node and publicKey")
	}
	signature, err := base64.StdEncoding.DecodeString(string(req.Signature))
	if err != nil {
		return rejoin.Request{}, badField("signature", "want standard base64")
	}
	return rejoin.Request{
		Certificate: []byte(req.Certificate), Node: string(req.Node), PublicKey: []byte(req.PublicKey),
		Challenge: string(req.Challenge), Server: string(req.Server), Signature: signature,
	}, nil
}

// notRejoined returns the problem of an error of a [rejoin.Desk].
func notRejoined(err error) error {
	var refused *approval.Refused
	var unproven *rejoin.Unproven
	switch {
	case errors.As(err, &unproven):
		p := newProblem(http.StatusUnauthorized, api.ProblemRejoinUnproven, "%.1000s", unproven.Message)
		p.Reason, p.cause = unproven.Reason, auth.ErrBadCredentials
		return p
	case errors.As(err, &refused):
		p := newProblem(http.StatusForbidden, api.ProblemRejoinRefused, "%.1000s", refused.Message)
		p.Reason = refused.Reason
		return p
	case errors.As(err, new(*signer.TooMany)):
		p := tooMany("%v", err)
		p.Reason = signer.ReasonTooManyCertificates
		return p
	}
	p := newProblem(http.StatusServiceUnavailable, "rejoin-unavailable", "kubejoin cannot check this node now; retry, and see kubejoin's log")
	p.cause, p.retryAfter = err, retryAfter
	return p
}
