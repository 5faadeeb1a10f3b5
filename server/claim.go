package server

import (
	"log/slog"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
)

// listClaims returns all claims, or a page of them. It omits names that no token and no machine holds.
func (h *handler) listClaims(r *call, req api.ListPage) (web.Response, error) {
	return shown(h.operations.ClaimsPage(r.Context(), req))
}

// releaseClaim releases a node name.
func (h *handler) releaseClaim(r *call, req api.ReleaseClaim) (web.Response, error) {
	node := chi.URLParam(r.Request, "node")
	r.log(slog.String("node", node))
	return shown(h.operations.ReleaseClaim(r.Context(), node, req))
}
