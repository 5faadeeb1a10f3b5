package server

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/operations"
	"golang.org/x/time/rate"
)

// Rate of uploads of certificates, for all users together: each upload writes three objects.
const (
	uploadEvery = 30 * time.Second
	uploadBurst = 10
)

// uploads returns the limiter of uploads.
func (l Limits) uploads() *rate.Limiter {
	if l.UserRate.QPS < 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Every(uploadEvery), uploadBurst)
}

// forControlPlane checks a request for the join command of a control plane, and sets the defaults of its token.
func (h *handler) forControlPlane(r *call, req *api.PrintJoinCommand) error {
	if !req.ControlPlane {
		return nil
	}
	permission := extraPermission{auth.Access{Verb: "create", Resource: "tokens/controlplane"}, "controlPlane", ""}
	if err := h.checkExtraPermission(r, permission); err != nil {
		return err
	}
	if h.Minting.UploadCertificates == nil {
		return web.BadField("controlPlane", "this kubejoin uploads no certificates; start it on a control plane with --pki-dir")
	}
	return operations.ControlPlane(req)
}

// upload uploads the certificates of control planes, and adds the key and warnings to join.
func (h *handler) upload(ctx context.Context, r *call, join *joinformat.Join) error {
	if !h.uploads.Allow() {
		p := web.TooMany("too many join commands of control planes; kubejoin allows one every %s", uploadEvery)
		p.RetryAfter = uploadEvery
		return p
	}
	up, err := h.Minting.UploadCertificates(ctx)
	if err != nil {
		p := web.NewProblem("certificates-not-uploaded", "the certificates of control planes could not be uploaded; the log of kubejoin has the reason under this request ID").Unavailable(err)
		if ends := (*joinformat.KeyEndsError)(nil); errors.As(err, &ends) {
			p.Detail, p.RetryAfter = ends.Error(), max(time.Until(ends.Expires), 0)+time.Second
		}
		return p
	}
	join.CertificateKey = up.Key
	if h.Minting.Advertise == "" { // join commands name the API server, which has no turns
		join.TurnServer, _ = clusterinfo.Endpoint("https://" + r.Host) // empty with an error
	}
	h.log.LogAttrs(ctx, slog.LevelInfo, "uploaded the certificates of control planes",
		slog.String("user", r.user.Name), slog.String("token", join.Token.ID()), slog.String("owner", up.TokenID),
		slog.Time("expires", up.Expires), slog.Bool("replaced_keys", up.Replaced), slog.Bool("shared_key", up.Shared))
	join.Warnings = append(up.Warnings(), join.Warnings...)
	return nil
}
