package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"time"

	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/controlplane"
	"github.com/kubejoin/kubejoin/tokens"
)

const turnPath = "/v1/controlplane/turn"

// turnTimeout limits how long a request for the turn may take. The client waits 8 s.
const turnTimeout = 6 * time.Second

// Turns stores whose turn it is to join as a control plane. It is usually a leases.Turns.
type Turns interface {
	Take(ctx context.Context, m controlplane.Machine) (after controlplane.State, granted bool, err error)
	GiveBack(ctx context.Context, m controlplane.Machine) error
}

var turnIDPattern = regexp.MustCompile(`\A[0-9a-f]{32}\z`)

// takeTurn gives a machine the turn to join as a control plane, or renews it.
func (h *handler) takeTurn(r *call) (web.Response, error) {
	m, err := h.readTurn(r)
	if err != nil {
		return web.Response{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), turnTimeout)
	defer cancel()
	state, granted, err := h.Cluster.Turns.Take(ctx, m)
	if err != nil {
		return web.Response{}, turnUnavailable(err)
	}
	if !granted {
		p := web.NewProblem(api.ProblemTurnTaken, "%s has been joining as a control plane since %s; %s waits for its turn", state.Holder.Node, state.Since.Format(time.RFC3339), m.Node)
		if state.Learner != "" {
			p.Detail = fmt.Sprintf("the etcd member %s is still a learner; %s waits until it votes; if that machine no longer joins, remove the member", state.Learner, m.Node)
		}
		p.RetryAfter = controlplane.RetryEvery
		return web.Response{}, p
	}
	return web.Object(http.StatusOK, api.Turn{
		APIVersion: api.GroupVersion, Kind: api.KindTurn, Node: m.Node, Since: state.Since, RenewSeconds: int(controlplane.RenewEvery / time.Second),
	})
}

// giveBackTurn gives back the turn of a machine, or removes it from the waiting machines.
func (h *handler) giveBackTurn(r *call) (web.Response, error) {
	m, err := h.readTurn(r)
	if err != nil {
		return web.Response{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), turnTimeout)
	defer cancel()
	if err := h.Cluster.Turns.GiveBack(ctx, m); err != nil {
		return web.Response{}, turnUnavailable(err)
	}
	return web.Object(http.StatusOK, api.Turn{APIVersion: api.GroupVersion, Kind: api.KindTurn, Node: m.Node})
}

func turnUnavailable(err error) *web.Problem {
	return web.NewProblem("turn-unavailable", "the turn of control planes or the members of etcd cannot be read or changed now; retry").Unavailable(err)
}

// readTurn authenticates a machine by its bootstrap token, which must be for control planes: otherwise a thief
// of a worker's token could block joins of control planes.
func (h *handler) readTurn(r *call) (controlplane.Machine, error) {
	bearer, err := auth.Bearer(r.Request)
	if err != nil {
		return controlplane.Machine{}, unauthenticated(err)
	}
	token, err := tokens.Parse(bearer)
	if err != nil {
		return controlplane.Machine{}, unauthenticated(fmt.Errorf("%w: want a bootstrap token", auth.ErrBadCredentials))
	}
	record, why, err := h.bootstrapRecord(r, token, nil)
	if err != nil {
		return controlplane.Machine{}, web.NewProblem("tokens-unavailable", "the tokens cannot be read now; retry").Unavailable(err)
	}
	if why != "" {
		r.log(slog.String("reason", why)) // only for the operator
		return controlplane.Machine{}, unauthenticated(fmt.Errorf("%w: a bootstrap token: %s", auth.ErrBadCredentials, why))
	}
	if err := h.identified(r, bootstrapUserOf(record)); err != nil {
		return controlplane.Machine{}, err
	}
	if record.Limits.Strictest().Role != tokens.RoleControlPlane || record.Limits.Problem != nil {
		return controlplane.Machine{}, web.NewProblem("forbidden", "token %s has no role %s", token.ID(), tokens.RoleControlPlane)
	}
	var req api.TakeTurn
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return controlplane.Machine{}, err
	}
	if err := tokens.CheckNodeName(req.Node); err != nil {
		return controlplane.Machine{}, web.BadField("node", "%.300v", err)
	}
	if !turnIDPattern.MatchString(req.ID) {
		return controlplane.Machine{}, web.BadField("id", "want 32 random hexadecimal digits, in lower case")
	}
	if req.Address != "" {
		if _, err := netip.ParseAddr(req.Address); err != nil || len(req.Address) > 64 {
			return controlplane.Machine{}, web.BadField("address", "want an IP address")
		}
	}
	if h.Cluster.Turns == nil {
		return controlplane.Machine{}, web.NewProblem("no-turns", "this kubejoin runs without a cluster, and control planes need no turn to join")
	}
	r.log(slog.String("node", req.Node))
	return controlplane.Machine{Node: req.Node, ID: req.ID, Address: req.Address}, nil
}
