package server

import (
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// listClaims returns all claims, or a page of them. It leaves out released ones.
func (h *handler) listClaims(r *call) (response, error) {
	var req api.ListPage
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Claims == nil {
		return response{}, noClaims()
	}
	claims, err := h.Claims.List(r.Context())
	if err != nil {
		return response{}, unavailable(err)
	}
	claims = slices.DeleteFunc(claims, tokens.Claim.Released)
	claims, next, err := page(claims, api.KindClaimList, func(c tokens.Claim) string { return c.Node }, req)
	if err != nil {
		return response{}, err
	}
	list := api.ClaimList{APIVersion: api.Version, Kind: api.KindClaimList, Items: make([]api.Claim, len(claims)), Continue: next}
	revoked := h.revokedNodes(r.Context())
	for i, c := range claims {
		list.Items[i] = claimShown(c)
		list.Items[i].Revoked = revoked[c.Node]
	}
	return object(http.StatusOK, list)
}

func noClaims() *problem {
	return newProblem(http.StatusNotFound, "no-claims", "this kubejoin does not store claims of node names")
}

func claimShown(c tokens.Claim) api.Claim {
	return api.Claim{
		APIVersion: api.Version, Kind: api.KindClaim,
		Node: c.Node, Token: c.TokenID, Created: c.Created, Keys: len(c.Keys), NodeUID: c.NodeUID, Rejoins: c.Identity.Rejoins,
	}
}

// releaseClaim releases a node name, see [tokens.Releaser].
func (h *handler) releaseClaim(r *call) (response, error) {
	var req api.ReleaseClaim
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Claims == nil {
		return response{}, noClaims()
	}
	node := chi.URLParam(r.Request, "node")
	releaser := tokens.Releaser{Tokens: h.Tokens, Claims: h.Claims, MaxRemainingLifetime: h.MaxRemainingLifetime}
	claim, warnings, err := releaser.Release(r.Context(), node, req.DryRun)
	if p := invalid(err); p != nil {
		return response{}, p
	}
	r.log(slog.String("node", node))
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return response{}, newProblem(http.StatusNotFound, "no-claim", "there is no claim on node name %s", node)
	case errors.Is(err, tokens.ErrReplaced):
		return response{}, newProblem(http.StatusConflict, "claim-replaced", "%v", err)
	case err != nil:
		return response{}, unavailable(err)
	}
	shown := claimShown(claim)
	shown.DryRun, shown.Warnings = req.DryRun, warnings
	return object(http.StatusOK, shown)
}
