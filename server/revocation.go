package server

import (
	"cmp"
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
)

// listRevocations returns all revocations, or a page of them. It omits revocations that have ended.
func (h *handler) listRevocations(r *call, req api.ListPage) (web.Response, error) {
	return shown(h.operations.RevocationsPage(r.Context(), req))
}

// revoke revokes a node, a certificate, or everything that was issued on a token.
func (h *handler) revoke(r *call, req api.Revoke) (web.Response, error) {
	list, err := h.operations.Revoke(r.Context(), req, r.user.Name, func() error {
		if req.Node != "" {
			r.log(slog.String("node", req.Node))
		}
		if req.TokenID == "" {
			return nil
		}
		r.log(slog.String("token", req.TokenID))
		return h.may(r, auth.Access{Verb: "delete", Resource: "tokens"})
	})
	for _, e := range list.Items { // even if the revocation is incomplete
		if !req.DryRun {
			r.log(slog.String("revoked", cmp.Or(e.Node, e.Fingerprint)))
		}
	}
	if err != nil || req.DryRun {
		return shown(list, err)
	}
	return web.Object(http.StatusCreated, list)
}

// undoRevocation removes a revocation.
func (h *handler) undoRevocation(r *call, req api.UndoRevocation) (web.Response, error) {
	revoked := chi.URLParam(r.Request, "revoked")
	r.log(slog.String("revoked", revoked))
	return shown(h.operations.UndoRevocation(r.Context(), revoked, req))
}
