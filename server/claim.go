package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// listClaims answers the node names that were taken with limited tokens, or a page of them.
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
		return response{}, h.unavailable(err)
	}
	claims = slices.DeleteFunc(claims, tokens.Claim.Released)
	claims, next, err := page(claims, api.KindClaimList, func(c tokens.Claim) string { return c.Node }, req)
	if err != nil {
		return response{}, err
	}
	list := api.ClaimList{APIVersion: api.Version, Kind: api.KindClaimList, Items: make([]api.Claim, len(claims)), Continue: next}
	for i, c := range claims {
		list.Items[i] = claimShown(c)
	}
	return object(http.StatusOK, list)
}

func noClaims() *problem {
	return newProblem(http.StatusNotFound, "no-claims", "node names are not claimed here")
}

func claimShown(c tokens.Claim) api.Claim {
	return api.Claim{
		APIVersion: api.Version, Kind: api.KindClaim,
		Node: c.Node, Token: c.TokenID, Created: c.Created, Keys: len(c.Keys), NodeUID: c.NodeUID,
	}
}

// releaseClaim makes a name free again, and its place on the token.
//
// The count on the token goes down first and the claim goes last. The claim is the lock on the
// name: while anything is undone no other token takes it. Should the rest not happen, the claim is
// there to be released again, and until then the count is mended from it when the token is used.
// The other way round a request that had read the token before could take the name anew between
// the two steps, and the count would go down for a claim that is there. A machine that is admitted
// with another key meanwhile changes the claim, and the release starts over.
func (h *handler) releaseClaim(r *call) (response, error) {
	var req api.ReleaseClaim
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Claims == nil {
		return response{}, noClaims()
	}
	node := chi.URLParam(r.Request, "node")
	if err := tokens.CheckNodeName(node); err != nil {
		return response{}, badField("node", "%v", err)
	}
	r.log(slog.String("node", node))
	var first tokens.Claim
	for {
		claim, err := h.Claims.Get(r.Context(), node)
		switch {
		case errors.Is(err, tokens.ErrNotFound), err == nil && claim.Released():
			return response{}, newProblem(http.StatusNotFound, "no-claim", "there is no claim on node name %s", node)
		case err != nil:
			return response{}, h.unavailable(err)
		case first.UID == "":
			first = claim
		case !claim.Same(first):
			return response{}, newProblem(http.StatusConflict, "claim-replaced", "the claim on node name %s was released and made again meanwhile; see whether this one is to go, too", node)
		}
		shown := claimShown(claim)
		shown.DryRun = req.DryRun
		if req.DryRun {
			return object(http.StatusOK, shown)
		}
		if shown.Warnings, err = h.uncount(r.Context(), claim); err != nil {
			return response{}, h.unavailable(err)
		}
		longest := time.Duration(0)
		if h.MaxRemainingLifetime != nil {
			longest = h.MaxRemainingLifetime()
		}
		switch err := tokens.Release(r.Context(), h.Claims, claim, claim.PastAfterRelease(time.Now(), longest)); {
		case err == nil, errors.Is(err, tokens.ErrNotFound):
			return object(http.StatusOK, shown)
		case !errors.Is(err, tokens.ErrConflict):
			return response{}, h.unavailable(err)
		}
	}
}

// uncount takes a claim's name off the count of its token, if that is still there. A Secret that was
// replaced counts what the claims of its ID hold, whatever its UID.
func (h *handler) uncount(ctx context.Context, claim tokens.Claim) (warnings []string, err error) {
	record, err := h.Tokens.Get(ctx, claim.TokenID)
	if errors.Is(err, tokens.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if record.Problem != nil || record.Limits.Problem != nil { // it lets nobody join in any case
		return []string{"token " + claim.TokenID + " is no good and still counts the name: " + problemOf(record)}, nil
	}
	record, err = h.Tokens.Update(ctx, claim.TokenID, func(r *tokens.Record) error {
		r.Nodes = slices.DeleteFunc(r.Nodes, func(name string) bool { return name == claim.Node })
		return nil
	})
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if record.Limits.NodeLimit() > 0 && !record.Spent() && !record.Expires.IsZero() {
		warnings = append(warnings, "token "+claim.TokenID+" has a place again and "+lifetime(record)+"; to keep it longer: kubejoin token renew "+claim.TokenID)
	}
	return warnings, nil
}
