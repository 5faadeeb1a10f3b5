package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/tokens"
)

// printJoinCommand creates a token, waits until its signature is in cluster-info, and returns the join
// command. If no signature appears, it deletes the token.
func (h *handler) printJoinCommand(r *call, req api.PrintJoinCommand) (web.Response, error) {
	var errs []error
	format, err := joinformat.FindFormat(req.Format)
	if err != nil {
		errs = append(errs, api.InvalidField("format", "%v", err))
	}
	if req.RejoinURL != "" {
		if err := joinformat.CheckRejoinURL(req.RejoinURL); err != nil {
			errs = append(errs, api.InvalidField("rejoinURL", "%v", err))
		} else if req.Format != api.FormatScript {
			errs = append(errs, api.InvalidField("rejoinURL", "only the format %s can install what a rejoin needs", api.FormatScript))
		}
	}
	if req.NodeReadyAfter != "" && err == nil {
		if err := format.CheckTaint(); err != nil {
			errs = append(errs, api.InvalidField("nodeReadyAfter", "%v", err))
		}
	}
	if len(errs) > 0 {
		return web.Response{}, api.JoinInvalid(append(errs, operations.Invalid(req))...)
	}
	if err := h.forControlPlane(r, &req); err != nil {
		return web.Response{}, err
	}
	var body []byte
	complete := func(ctx context.Context, join *joinformat.Join) (err error) {
		join.RejoinURL = req.RejoinURL
		if req.ControlPlane {
			if err := h.upload(ctx, r, join); err != nil {
				return err
			}
		}
		body, err = format.Write(*join)
		return err
	}
	made, err := h.operations.Join(r.Context(), req.TokenSpec, h.mayCreate(r, lifetimeField(req.Expires)), complete)
	if made.Record.UID != "" {
		r.log(slog.String("token", made.Record.Token.ID()))
	}
	if err != nil {
		if errors.As(err, new(*tokens.Refusal)) { // skip invalid requests, and requests without the permission
			h.results.joinCommands.WithLabelValues("failed").Inc()
		}
		return web.Response{}, err
	}
	h.results.joinCommands.WithLabelValues("ok").Inc()
	a := web.Response{ContentType: format.ContentType, Body: body, Header: map[string]string{
		"Server-Timing": fmt.Sprintf(`create;dur=%.1f, sign;dur=%.1f;desc="until the signature was live"`, milliseconds(made.Storing), milliseconds(made.Signing)),
	}}
	a.Warn(made.Warnings)
	return a, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// createToken creates a token, waits for its signature and returns it with its secret. If the client chose the token,
// the request is idempotent.
func (h *handler) createToken(r *call, req api.CreateToken) (web.Response, error) {
	permit := h.mayCreate(r, lifetimeField(req.Expires))
	t, existing, err := h.operations.CreateToken(r.Context(), req, func(record *tokens.Record, now time.Time) error {
		if err := permit(record, now); err != nil {
			return err
		}
		r.log(slog.String("token", record.Token.ID()))
		return nil
	})
	if err != nil || existing || req.DryRun {
		return shown(t, err)
	}
	a, err := web.Object(http.StatusCreated, t)
	a.Header = map[string]string{"Location": "token/" + t.ID} // relative, because the Handler may have a prefix
	return a, err
}

// mayCreate returns a function that sets the creator of a new token, and returns a problem if the user may not create such a token.
// lifetime is the field of the request that says when it expires.
func (h *handler) mayCreate(r *call, lifetime string) operations.Permit {
	return func(record *tokens.Record, now time.Time) error {
		if h.Limits.UserTokens >= 0 {
			record.Creator = tokens.CreatorOf(r.user.Name)
		}
		return h.checkExtraPermissions(r, h.Limits.extraPermissions("tokens", *record, lifetime, now))
	}
}
