package server

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/convert"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
)

func noRevocations() *problem {
	return newProblem(http.StatusNotFound, "no-revocations", "this kubejoin does not store revocations")
}

// listRevocations returns all revocations, or a page of them. It leaves out those that have ended.
func (h *handler) listRevocations(r *call) (response, error) {
	var req api.ListPage
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Revocations == nil {
		return response{}, noRevocations()
	}
	entries, err := h.Revocations.List(r.Context())
	if err != nil {
		return response{}, revocationProblem(err)
	}
	entries, next, err := page(entries, api.KindRevocationList, func(e revocation.Entry) string { return string(e.Key()) }, req)
	if err != nil {
		return response{}, err
	}
	list := convert.Revocations(entries, false)
	list.Continue = next
	return object(http.StatusOK, list)
}

// revocationProblem returns the problem of an error of package desk.
func revocationProblem(err error) error {
	var incomplete *desk.Incomplete
	var failed *desk.Error
	switch {
	case errors.As(err, &incomplete):
		err = revocationProblem(incomplete.Err)
		if p := (*problem)(nil); errors.As(err, &p) {
			p.Detail = (&desk.Incomplete{TokenID: incomplete.TokenID, Err: errors.New(p.Detail)}).Error()
		}
		return err
	case !errors.As(err, &failed):
		return unavailable(err)
	}
	var p *problem
	switch failed.Reason {
	case desk.NotIssued:
		p = newProblem(http.StatusNotFound, "not-issued", "%s", failed.Message)
	case desk.NoToken:
		p = newProblem(http.StatusNotFound, "no-token", "%s", failed.Message)
	case desk.NotRevoked:
		p = newProblem(http.StatusNotFound, "not-revoked", "%s", failed.Message)
	case desk.Full:
		p = newProblem(http.StatusInsufficientStorage, "too-many-revocations", "%s", failed.Message)
	case desk.Refused:
		p = newProblem(http.StatusServiceUnavailable, "store-refuses", "%s", failed.Message+reasonInLog)
	case desk.NoRecord:
		p = newProblem(http.StatusServiceUnavailable, "record-unavailable", "%s", failed.Message)
	case desk.NoRequests:
		p = newProblem(http.StatusServiceUnavailable, "cluster-unavailable", "%s", failed.Message)
	default:
		p = newProblem(http.StatusServiceUnavailable, "revocations-unavailable", "%s", failed.Message)
	}
	if p.cause = failed.Err; failed.Retry {
		p.retryAfter = retryAfter
	}
	return p
}

// revoke revokes a node, a certificate, or everything that was issued on a token.
func (h *handler) revoke(r *call) (response, error) {
	var req api.Revoke
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Revocations == nil {
		return response{}, noRevocations()
	}
	asked := desk.Request{
		Node: req.Node, Serial: req.Serial, Fingerprint: req.Fingerprint, TokenID: req.TokenID, Reason: req.Reason, By: r.user.Name, DryRun: req.DryRun,
	}
	if err := convert.Invalid(asked.Check()); err != nil {
		return response{}, err
	}
	if req.TokenID != "" {
		if err := h.may(r, auth.Access{Verb: "delete", Resource: "tokens"}); err != nil {
			return response{}, err
		}
	}
	result, err := h.Revocations.Revoke(r.Context(), asked)
	if err := convert.Invalid(err); err != nil {
		return response{}, err
	}
	if req.Node != "" {
		r.log(slog.String("node", req.Node))
	}
	if req.TokenID != "" {
		r.log(slog.String("token", req.TokenID))
	}
	if result.EndUnknown != nil {
		h.log.Warn("cannot tell when revocations end", "error", safetext.Text(result.EndUnknown.Error(), safetext.MaxMessage))
	}
	for _, e := range result.Entries {
		if !req.DryRun {
			r.log(slog.String("revoked", e.Key().String()))
		}
	}
	if err != nil {
		return response{}, revocationProblem(err)
	}
	list := convert.Revoked(result, req.DryRun, "the log says why")
	if req.DryRun {
		return object(http.StatusOK, list)
	}
	return object(http.StatusCreated, list)
}

// undoRevocation removes a revocation.
func (h *handler) undoRevocation(r *call) (response, error) {
	var req api.UndoRevocation
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Revocations == nil {
		return response{}, noRevocations()
	}
	key, err := revocation.ParseKey(chi.URLParam(r.Request, "revoked"))
	if err != nil {
		return response{}, badField("revoked", "%v; a fingerprint begins with sha256:", err)
	}
	r.log(slog.String("revoked", key.String()))
	e, err := h.Revocations.Undo(r.Context(), key, req.DryRun)
	if err != nil {
		return response{}, revocationProblem(err)
	}
	return object(http.StatusOK, convert.Revocation(e, req.DryRun))
}
