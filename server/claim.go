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
		return response{}, h.unavailable(err)
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

// releaseClaim frees a node name and its slot on the token.
//
// It removes the name from the count of the token first, and then releases the claim. The claim is the
// lock on the name: no other token can take the name before the last step. If the last step fails, the
// claim can be released again. Until then, the next use of the token repairs its count from the claim.
//
// The reverse order has a race. A request that has read the token earlier could claim the name between
// the two steps. The count would then lose a name whose claim exists.
//
// If the claim changes meanwhile, for example because a machine is admitted with another key, the
// release starts over.
//
// A node that joined with a token without limits has no claim, but it may have an identity, with which it can rejoin.
// That ends, too.
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
		case errors.Is(err, tokens.ErrNotFound), err == nil && claim.Released() && claim.Identity.IsZero():
			return response{}, newProblem(http.StatusNotFound, "no-claim", "there is no claim on node name %s", node)
		case err != nil:
			return response{}, h.unavailable(err)
		case first.UID == "":
			first = claim
		case !claim.Same(first):
			return response{}, newProblem(http.StatusConflict, "claim-replaced", "the claim on node name %s was released and created again during this request; check the new claim before you release it", node)
		}
		shown := claimShown(claim)
		shown.DryRun = req.DryRun
		if req.DryRun {
			return object(http.StatusOK, shown)
		}
		if !claim.Released() {
			if shown.Warnings, err = h.uncount(r.Context(), claim); err != nil {
				return response{}, h.unavailable(err)
			}
		}
		if err := claim.Identity.DeleteToken(r.Context(), h.Tokens, node); err != nil {
			return response{}, h.unavailable(err)
		}
		longest := time.Duration(0)
		if h.MaxRemainingLifetime != nil {
			longest = h.MaxRemainingLifetime()
		}
		leaves := claim.PastAfterRelease(time.Now(), longest)
		if claim.Released() && longest == 0 {
			leaves = claim.Past
		}
		switch err := tokens.Release(r.Context(), h.Claims, claim, leaves); {
		case err == nil, errors.Is(err, tokens.ErrNotFound):
			return object(http.StatusOK, shown)
		case !errors.Is(err, tokens.ErrConflict):
			return response{}, h.unavailable(err)
		}
	}
}

// uncount removes the name of a claim from the count of its token, if the token still exists. It does
// not compare UIDs: a Secret that was replaced counts all claims of its token ID.
func (h *handler) uncount(ctx context.Context, claim tokens.Claim) (warnings []string, err error) {
	record, err := h.Tokens.Get(ctx, claim.TokenID)
	if errors.Is(err, tokens.ErrNotFound) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if record.Problem != nil || record.Limits.Problem != nil { // no node can join with it anyway
		return []string{"token " + claim.TokenID + " is malformed and still counts the name: " + problemOf(record)}, nil
	}
	record, err = h.Tokens.Update(ctx, claim.TokenID, func(r *tokens.Record) error {
		r.Uncount(claim.Node)
		return nil
	})
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if record.Limits.NodeLimit() > 0 && !record.Spent() && !record.Expires.IsZero() {
		warnings = append(warnings, "token "+claim.TokenID+" has a free slot again and "+lifetime(record)+"; to extend it, run: kubejoin token renew "+claim.TokenID)
	}
	return warnings, nil
}
