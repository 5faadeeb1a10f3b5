package server

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
)

const rotationPath = "/v1/ca/{ca}/rotation"

// rotations returns the operations that rotate CAs, and the CA in the path.
func (h *handler) rotations(r *call) (*operations.Rotations, string, error) {
	if h.Rotations == nil {
		return nil, "", web.NewProblem("no-rotations", "this kubejoin does not rotate CAs")
	}
	ca := chi.URLParam(r.Request, "ca")
	r.log(slog.String("ca", ca))
	return h.Rotations, ca, nil
}

// rotation returns the last rotation of a CA, with the current observations.
func (h *handler) rotation(r *call, _ struct{}) (web.Response, error) {
	rotations, ca, err := h.rotations(r)
	if err != nil {
		return web.Response{}, err
	}
	return shownRotation(rotations.CARotation(r.Context(), ca))
}

// prepareCA begins the rotation of a CA.
func (h *handler) prepareCA(r *call, req api.PrepareCA) (web.Response, error) {
	rotations, ca, err := h.rotations(r)
	if err != nil {
		return web.Response{}, err
	}
	made, err := rotations.PrepareCA(r.Context(), ca, req)
	if err == nil && len(made.New) > 0 { // log this: the old CA may have certified the new CA, which an abort cannot undo
		r.log(slog.String("newCA", made.New[0].Pin), slog.Bool("certified", made.Cross != ""))
	}
	return shownRotation(made, err)
}

// stepCA returns the action that takes a rotation to another stage.
func (h *handler) stepCA(step string) action {
	return request(func(r *call, req api.StepCA) (web.Response, error) {
		rotations, ca, err := h.rotations(r)
		if err != nil {
			return web.Response{}, err
		}
		if req.ExpireTokens {
			if err := h.may(r, auth.Access{Verb: "delete", Resource: "tokens"}); err != nil {
				return web.Response{}, err
			}
		}
		return shownRotation(rotations.StepCA(r.Context(), ca, step, req))
	})
}

// shownRotation returns the response with a rotation, or the error.
func shownRotation(shown api.CARotation, err error) (web.Response, error) {
	var invalid api.InvalidFields
	var refused *tokens.Refusal
	switch {
	case err == nil:
		return web.Object(http.StatusOK, shown)
	case errors.As(err, &invalid), errors.As(err, &refused):
		return web.Response{}, err
	}
	return web.Response{}, &tokens.Refusal{Reason: "rotation-unavailable", Message: "the rotation cannot be read, observed or changed now; retry, or see why in kubejoin's log", Err: err, Retry: true}
}
