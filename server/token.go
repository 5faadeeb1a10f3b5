package server

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/convert"
	"github.com/kubejoin/kubejoin/tokens"
)

// listTokens returns all tokens, or a page of them, without their secrets.
func (h *handler) listTokens(r *call) (web.Response, error) {
	var req api.ListPage
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	records, err := h.Tokens.List(r.Context())
	if err != nil {
		return web.Response{}, mint.StoreError(err)
	}
	records, next, err := web.Page(records, api.KindTokenList, func(r tokens.Record) string { return r.Token.ID() }, req)
	if err != nil {
		return web.Response{}, err
	}
	v, warnings := h.view(r.Context(), nil)
	list := v.Tokens(records)
	list.Warnings, list.Continue = warnings, next
	return web.Object(http.StatusOK, list)
}

// getToken returns one token without its secret.
func (h *handler) getToken(r *call) (web.Response, error) {
	if err := web.ReadRequest(r.Request, &struct{}{}); err != nil {
		return web.Response{}, err
	}
	id, err := tokenID(r)
	if err != nil {
		return web.Response{}, err
	}
	record, err := h.minter.Get(r.Context(), id)
	return h.shown(r, record, false, err)
}

// shown returns the response with a token after a change, or as a dry run would leave it. err is that of the Minter.
func (h *handler) shown(r *call, record tokens.Record, dryRun bool, err error) (web.Response, error) {
	if err != nil {
		return web.Response{}, err
	}
	v, warnings := h.view(r.Context(), nil)
	t := v.Token(record)
	t.DryRun, t.Warnings = dryRun, warnings
	return web.Object(http.StatusOK, t)
}

// view reads what responses show beside tokens, and adds a warning for what cannot be read. Its cause is only in the log.
func (h *handler) view(ctx context.Context, warnings []string) (convert.View, []string) {
	v := convert.ReadView(ctx, h.ClusterInfo, h.Claims)
	for _, u := range v.Unread {
		h.log.Warn(u.Warning, "error", safetext.Text(u.Err.Error(), safetext.MaxMessage))
		warnings = append(warnings, u.Warning)
	}
	return v, warnings
}

// tokenID returns the ID in the path.
func tokenID(r *call) (string, error) {
	id := chi.URLParam(r.Request, "id")
	if err := tokens.CheckID(id); err != nil {
		return "", web.BadField("id", "%v", err)
	}
	r.log(slog.String("token", id))
	return id, nil
}

// deleteToken deletes a token.
func (h *handler) deleteToken(r *call) (web.Response, error) {
	var req api.DeleteToken
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	id, err := tokenID(r)
	if err != nil {
		return web.Response{}, err
	}
	record, err := h.minter.Delete(r.Context(), id, mint.Deletion{OnlyExpired: req.OnlyExpired, DryRun: req.DryRun})
	return h.shown(r, record, req.DryRun, err)
}

// renewToken changes when a token expires.
func (h *handler) renewToken(r *call) (web.Response, error) {
	var req api.RenewToken
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	now := time.Now()
	expires, err := convert.Expires(req.TTL, req.Expires, now)
	if err == nil {
		err = h.checkExtraPermissions(r, h.Limits.lifetimePermissions("update", expires, lifetimeField(req.Expires), now))
	}
	if err != nil {
		return web.Response{}, err
	}
	id, err := tokenID(r)
	if err != nil {
		return web.Response{}, err
	}
	record, err := h.minter.Renew(r.Context(), id, mint.Renewal{Expires: expires, Shorten: req.Shorten, DryRun: req.DryRun})
	return h.shown(r, record, req.DryRun, err)
}
