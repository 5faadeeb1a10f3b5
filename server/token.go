package server

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// shown returns the response with the result of an operation.
func shown[T any](result T, err error) (web.Response, error) {
	if err != nil {
		return web.Response{}, err
	}
	return web.Object(http.StatusOK, result)
}

// why logs why a fact could not be read, and returns the text for the warning, which points to the log.
func (h *handler) why(what string, cause error) string {
	h.log.Warn(what, "error", safetext.Text(cause.Error(), safetext.MaxMessage))
	return "the log says why"
}

// listTokens returns all tokens, or a page of them, without their secrets.
func (h *handler) listTokens(r *call, req api.ListPage) (web.Response, error) {
	return shown(h.operations.TokensPage(r.Context(), req))
}

// getToken returns one token without its secret.
func (h *handler) getToken(r *call, _ struct{}) (web.Response, error) {
	id, err := tokenID(r)
	if err != nil {
		return web.Response{}, err
	}
	return shown(h.operations.GetToken(r.Context(), id))
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
func (h *handler) deleteToken(r *call, req api.DeleteToken) (web.Response, error) {
	id, err := tokenID(r)
	if err != nil {
		return web.Response{}, err
	}
	return shown(h.operations.DeleteToken(r.Context(), id, req))
}

// renewToken changes when a token expires.
func (h *handler) renewToken(r *call, req api.RenewToken) (web.Response, error) {
	id, err := tokenID(r)
	if err != nil {
		return web.Response{}, err
	}
	return shown(h.operations.RenewToken(r.Context(), id, req, func(expires, now time.Time) error {
		return h.checkExtraPermissions(r, h.Limits.lifetimePermissions("update", "tokens", expires, lifetimeField(req.Expires), now))
	}))
}
