package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/convert"
	"github.com/kubejoin/kubejoin/tokens"
)

// listClaims returns all claims, or a page of them. It leaves out released ones.
func (h *handler) listClaims(r *call) (web.Response, error) {
	var req api.ListPage
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	if h.Claims == nil {
		return web.Response{}, noClaims()
	}
	claims, err := h.Claims.List(r.Context())
	if err != nil {
		return web.Response{}, mint.StoreError(err)
	}
	claims = slices.DeleteFunc(claims, tokens.Claim.Released)
	claims, next, err := web.Page(claims, api.KindClaimList, func(c tokens.Claim) string { return c.Node }, req)
	if err != nil {
		return web.Response{}, err
	}
	list := convert.Claims(claims, h.revokedNodes(r.Context()))
	list.Continue = next
	return web.Object(http.StatusOK, list)
}

// revokedNodes returns the names of revoked nodes. It is empty if they cannot be read.
func (h *handler) revokedNodes(ctx context.Context) map[string]bool {
	if h.Revocations == nil {
		return nil
	}
	nodes, err := h.Revocations.Guard.CachedNodes(ctx)
	if err != nil {
		h.log.Warn("cannot read revocations for the list of claims", "error", err)
	}
	return nodes
}

func noClaims() *web.Problem {
	return web.NewProblem("no-claims", "this kubejoin does not store claims of node names")
}

// releaseClaim releases a node name, see [tokens.Releaser].
func (h *handler) releaseClaim(r *call) (web.Response, error) {
	var req api.ReleaseClaim
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	if h.Claims == nil {
		return web.Response{}, noClaims()
	}
	node := chi.URLParam(r.Request, "node")
	releaser := tokens.Releaser{Tokens: h.Tokens, Claims: h.Claims, MaxRemainingLifetime: h.MaxRemainingLifetime}
	claim, warnings, err := releaser.Release(r.Context(), node, req.DryRun)
	if err = convert.Refused(err); errors.As(err, new(api.InvalidFields)) {
		return web.Response{}, err
	}
	r.log(slog.String("node", node))
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return web.Response{}, web.NewProblem("no-claim", "%v", err)
	case errors.Is(err, tokens.ErrReplaced):
		return web.Response{}, web.NewProblem("claim-replaced", "%v", err)
	case err != nil:
		return web.Response{}, mint.StoreError(err)
	}
	shown := convert.Claim(claim)
	shown.DryRun, shown.Warnings = req.DryRun, warnings
	return web.Object(http.StatusOK, shown)
}
