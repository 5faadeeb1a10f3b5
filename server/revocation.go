package server

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/convert"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
)

func noRevocations() *web.Problem {
	return web.NewProblem("no-revocations", "this kubejoin does not store revocations")
}

// listRevocations returns all revocations, or a page of them. It leaves out those that have ended.
func (h *handler) listRevocations(r *call) (web.Response, error) {
	var req api.ListPage
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	if h.Revocations == nil {
		return web.Response{}, noRevocations()
	}
	entries, err := h.Revocations.List(r.Context())
	if err != nil {
		return web.Response{}, err
	}
	entries, next, err := web.Page(entries, api.KindRevocationList, func(e revocation.Entry) string { return string(e.Key()) }, req)
	if err != nil {
		return web.Response{}, err
	}
	list := convert.Revocations(entries, false)
	list.Continue = next
	return web.Object(http.StatusOK, list)
}

// revoke revokes a node, a certificate, or everything that was issued on a token.
func (h *handler) revoke(r *call) (web.Response, error) {
	var req api.Revoke
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	if h.Revocations == nil {
		return web.Response{}, noRevocations()
	}
	asked := desk.Order{
		Node: req.Node, Serial: req.Serial, Fingerprint: req.Fingerprint, TokenID: req.TokenID, Reason: req.Reason, By: r.user.Name, DryRun: req.DryRun,
	}
	if err := convert.Refused(asked.Check()); err != nil {
		return web.Response{}, err
	}
	if req.TokenID != "" {
		if err := h.may(r, auth.Access{Verb: "delete", Resource: "tokens"}); err != nil {
			return web.Response{}, err
		}
	}
	result, err := h.Revocations.Revoke(r.Context(), asked)
	if err = convert.Refused(err); errors.As(err, new(api.InvalidFields)) {
		return web.Response{}, err
	}
	if req.Node != "" {
		r.log(slog.String("node", req.Node))
	}
	if req.TokenID != "" {
		r.log(slog.String("token", req.TokenID))
	}
	if result.EndUnknown != nil {
		h.log.Warn("cannot tell when revocations end", "error", safetext.Text(result.EndUnknown.Error(), safetext.MaxMessage))
	}
	for _, e := range result.Entries {
		if !req.DryRun {
			r.log(slog.String("revoked", e.Key().String()))
		}
	}
	if err != nil {
		return web.Response{}, err
	}
	list := convert.Revoked(result, req.DryRun, "the log says why")
	if req.DryRun {
		return web.Object(http.StatusOK, list)
	}
	return web.Object(http.StatusCreated, list)
}

// undoRevocation removes a revocation.
func (h *handler) undoRevocation(r *call) (web.Response, error) {
	var req api.UndoRevocation
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	if h.Revocations == nil {
		return web.Response{}, noRevocations()
	}
	key, err := revocation.ParseKey(chi.URLParam(r.Request, "revoked"))
	if err != nil {
		return web.Response{}, web.BadField("revoked", "%v; a fingerprint begins with sha256:", err)
	}
	r.log(slog.String("revoked", key.String()))
	e, err := h.Revocations.Undo(r.Context(), key, req.DryRun)
	if err != nil {
		return web.Response{}, err
	}
	return web.Object(http.StatusOK, convert.Revocation(e, req.DryRun))
}
