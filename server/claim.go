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

// releaseClaim frees a node name and its slot on the token, in three steps:
//
//  1. The token admits nobody under the name any more, see [tokens.Leave].
//  2. The claim is released.
//  3. The token gives the slot back, see [tokens.GiveBack].
//
// If the slot were given back before step 2, a machine could take it again with the claim that step 2 releases. If a step
// fails, the release can be repeated: without a claim, it takes step 3 for each token that counts the name.
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
			return h.giveSlotsBack(r.Context(), node, req.DryRun)
		case err != nil:
			return response{}, unavailable(err)
		case first.UID == "":
			first = claim
		case !claim.Same(first):
			return response{}, claimReplaced(node)
		}
		shown := claimShown(claim)
		shown.DryRun = req.DryRun
		if req.DryRun {
			return object(http.StatusOK, shown)
		}
		if err := tokens.Leave(r.Context(), h.Tokens, h.Claims, claim); err != nil {
			return response{}, unavailable(err)
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
		case errors.Is(err, tokens.ErrConflict):
			continue
		case err != nil && !errors.Is(err, tokens.ErrNotFound):
			return response{}, unavailable(err)
		}
		if !claim.Released() {
			switch shown.Warnings, err = h.giveSlotBack(r.Context(), claim.TokenID, node); {
			case errors.Is(err, tokens.ErrConflict): // the token has another claim on the name
				continue
			case err != nil && !errors.Is(err, tokens.ErrNotFound):
				return response{}, unavailable(err)
			}
		}
		return object(http.StatusOK, shown)
	}
}

func claimReplaced(node string) *problem {
	return newProblem(http.StatusConflict, "claim-replaced", "the claim on node name %s was released and created again during this request; check the new claim before you release it", node)
}

// giveSlotsBack gives back the slot of a node without a claim on each token that counts it.
func (h *handler) giveSlotsBack(ctx context.Context, node string, dryRun bool) (response, error) {
	records, err := h.Tokens.List(ctx)
	if err != nil {
		return response{}, unavailable(err)
	}
	shown := api.Claim{APIVersion: api.Version, Kind: api.KindClaim, Node: node, DryRun: dryRun}
	for _, record := range records {
		if !slices.Contains(record.Nodes, node) {
			continue
		}
		var warnings []string
		if !dryRun {
			switch warnings, err = h.giveSlotBack(ctx, record.Token.ID(), node); {
			case errors.Is(err, tokens.ErrNotFound):
				continue
			case errors.Is(err, tokens.ErrConflict):
				return response{}, claimReplaced(node)
			case err != nil:
				return response{}, unavailable(err)
			}
		}
		shown.Token, shown.Warnings = record.Token.ID(), append(shown.Warnings, warnings...)
	}
	if shown.Token == "" {
		return response{}, newProblem(http.StatusNotFound, "no-claim", "there is no claim on node name %s", node)
	}
	return object(http.StatusOK, shown)
}

// giveSlotBack gives back the slot of a node on its token. It does not compare UIDs: a Secret that was replaced counts all
// claims of its token ID.
func (h *handler) giveSlotBack(ctx context.Context, id, node string) (warnings []string, err error) {
	record, err := tokens.GiveBack(ctx, h.Tokens, h.Claims, id, node)
	switch {
	case err != nil:
		return nil, err
	case record.Problem != nil || record.Limits.Problem != nil:
		return []string{"token " + id + " is malformed and still counts the name: " + problemOf(record)}, nil
	case record.Limits.NodeLimit() > 0 && !record.Spent() && !record.Expires.IsZero():
		warnings = append(warnings, "token "+id+" has a free slot again and "+record.Lifetime(time.Now())+"; to extend it, run: kubejoin token renew "+id)
	}
	return warnings, nil
}
