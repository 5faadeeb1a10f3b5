package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// allowed returns the action for users with the permission. It returns a problem to all others.
func (h *handler) allowed(access auth.Access, act action) action {
	return func(r *call) (web.Response, error) {
		if h.Callers.Authenticate == nil || h.Callers.Authorize == nil {
			return web.Response{}, web.NewProblem("forbidden", "no user may %s, because this server has no authentication configured", access)
		}
		if err := h.authenticated(r); err != nil {
			return web.Response{}, err
		}
		if isBootstrapUser(r.user) {
			return web.Response{}, web.NewProblem("forbidden", "user %q belongs to a bootstrap token; bootstrap tokens are only for joining machines and may not %s", r.user.Name, access)
		}
		if err := h.may(r, access); err != nil {
			return web.Response{}, err
		}
		return act(r)
	}
}

// authenticated authenticates the user of a request and records it.
func (h *handler) authenticated(r *call) error {
	user, err := h.Callers.Authenticate(r.Request)
	if err != nil {
		return h.unaccepted(r, err)
	}
	return h.identified(r, user)
}

// identified records the user of a request. It returns a problem if the user exceeds a limit.
func (h *handler) identified(r *call, user auth.User) error {
	r.identify(user)
	return charged(r, user.Name, "")
}

// charged charges the rate limit of the user, or of one credential of the user. It returns a problem if the limit is
// exceeded.
func charged(r *call, user, credential string) error {
	if refusal := r.limits.User(user, credential); refusal != nil {
		return web.Exceeds(refusal)
	}
	return nil
}

// unaccepted returns the problem of an error of an Authenticate. It charges a revoked credential and not its user, who
// may have a new credential.
func (h *handler) unaccepted(r *call, err error) error {
	if revoked := (*auth.Revoked)(nil); errors.As(err, &revoked) {
		r.log(slog.String("user", revoked.User))
		if limit := charged(r, revoked.User, "revoked "+auth.Credential(r.Request)); limit != nil {
			return limit
		}
	}
	return unauthenticated(err)
}

// isBootstrapUser reports whether a user belongs to a bootstrap token, regardless of how the user was authenticated.
func isBootstrapUser(u auth.User) bool {
	return isBootstrapName(u.Name) || slices.ContainsFunc(u.Groups, isBootstrapGroup)
}

func isBootstrapName(user string) bool { return strings.HasPrefix(user, tokens.BootstrapUserPrefix) }

func isBootstrapGroup(group string) bool {
	return group == tokens.BootstrappersGroup || strings.HasPrefix(group, tokens.BootstrappersGroup+":")
}

// unauthenticated returns the problem of an error of an Authenticate.
func unauthenticated(err error) *web.Problem {
	var revoked *auth.Revoked
	switch {
	case errors.As(err, &revoked):
		p := web.NewProblem("revoked", "%s", revoked.Message)
		p.Reason, p.Cause = revocation.Reason, err
		return p
	case errors.Is(err, auth.ErrNoCredentials):
		return web.NewProblem("unauthorized", "authentication required: send the header 'Authorization: Bearer TOKEN'; to keep it out of the command line, put it in a file: curl -K FILE").CausedBy(err)
	case errors.Is(err, auth.ErrBadCredentials):
		return web.NewProblem("unauthorized", "this server does not accept these credentials").CausedBy(err)
	}
	return web.NewProblem("authentication-unavailable", "the caller cannot be authenticated now; retry").Unavailable(err)
}

// unauthorized returns the problem of an error of an Authorize.
func unauthorized(err error, user auth.User, access auth.Access) *web.Problem {
	if errors.Is(err, auth.ErrForbidden) {
		return web.NewProblem("forbidden", "user %q may not %s", user.Name, access).CausedBy(err)
	}
	return web.NewProblem("authorization-unavailable", "cannot check now whether user %q may %s; retry", user.Name, access).Unavailable(err)
}

// may returns a problem if the user of the request lacks the permission.
func (h *handler) may(r *call, access auth.Access) error {
	user := r.user
	if user.Name == "" {
		return unauthorized(auth.ErrForbidden, user, access)
	}
	if err := h.Callers.Authorize(r.Request, user, access); err != nil {
		return unauthorized(err, user, access)
	}
	return nil
}

// How long and for how many users the server caches lists of permissions, and how long one list may take.
const (
	permissionsAge     = 10 * time.Second
	permissionsTimeout = 10 * time.Second
	maxPermissions     = 1024
)

// listPermissions returns the permissions of the caller. It is for display and grants nothing: kubejoin
// authorizes each request again. As in allowed, no user has a permission without a Callers, and bootstrap users have none.
func (h *handler) listPermissions(r *call, _ struct{}) (web.Response, error) {
	list := api.PermissionList{APIVersion: api.GroupVersion, Kind: api.KindPermissionList, Items: []api.Permission{}}
	if h.Callers.Authenticate == nil || h.Callers.Authorize == nil {
		return web.Object(http.StatusOK, list)
	}
	if err := h.authenticated(r); err != nil {
		return web.Response{}, err
	}
	user := fmt.Sprintf("%q", r.user) // keeps invalid UTF-8 distinct, and sorts the keys of maps
	if cached, found := h.permissions.Get(user); found {
		return web.Object(http.StatusOK, cached)
	}
	var all []auth.Access
	if r.user.Name != "" && !isBootstrapUser(r.user) {
		all = h.checkedPermissions()
	}
	ctx, cancel := context.WithTimeout(r.Context(), permissionsTimeout)
	defer cancel()
	for _, access := range all {
		if err := charged(r, r.user.Name, ""); err != nil { // as a request: each may cost a review
			return web.Response{}, err
		}
		switch err := h.Callers.Authorize(r.WithContext(ctx), r.user, access); {
		case err == nil:
			list.Items = append(list.Items, api.Permission{Verb: access.Verb, Resource: access.Resource, Name: access.Name})
		case !errors.Is(err, auth.ErrForbidden):
			return web.Response{}, unauthorized(err, r.user, access)
		}
	}
	h.permissions.Add(user, list, permissionsAge)
	return web.Object(http.StatusOK, list)
}

// checkedPermissions returns the permissions that the routes check, and those that options of requests need.
func (h *handler) checkedPermissions() []auth.Access {
	all := []auth.Access{{Verb: "create", Resource: "tokens/groups"}, {Verb: "update", Resource: "tokens/unlimited"}, {Verb: "impersonate", Resource: "explanations"}}
	for _, of := range []string{"tokens", "machines"} {
		all = append(all, auth.Access{Verb: "create", Resource: of + "/roles", Name: tokens.RoleControlPlane})
		for _, option := range []string{"controlplane", "labels", "replacements", "taints", "unlimited"} {
			all = append(all, auth.Access{Verb: "create", Resource: of + "/" + option})
		}
	}
	for _, on := range h.routes() {
		if on.access != (auth.Access{}) {
			all = append(all, on.access)
		}
	}
	slices.SortFunc(all, func(a, b auth.Access) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb))
	})
	return slices.Compact(all)
}

// An extraPermission is a property of a token that "create tokens" does not cover. The user who creates the token
// needs an extra permission for it.
type extraPermission struct {
	access auth.Access
	field  string // of the request
	hint   string // explains how to do without the permission; empty if its name says enough
}

// extraPermissions returns the extra permissions that a new token needs. If of is machines, it returns those that a machine with the
// limits of r needs. A token needs none if its expiration and node limit are within the Limits, and it has only the default group. It
// must have no role, no Node to replace, and no labels or taints. lifetime is the field of the request with the expiration.
func (l Limits) extraPermissions(of string, r tokens.Record, lifetime string, now time.Time) []extraPermission {
	var all []extraPermission
	add := func(field, resource, name, hint string) {
		all = append(all, extraPermission{auth.Access{Verb: "create", Resource: of + "/" + resource, Name: name}, field, hint})
	}
	switch nodes, most := r.Limits.NodeLimit(), cmp.Or(l.MaxTokenNodes, DefaultMaxTokenNodes); {
	case nodes == 0:
		add("maxNodes", "unlimited", "", "which a token without a node limit requires; give the token a node limit")
	case most >= 0 && nodes > most:
		add("maxNodes", "unlimited", "", fmt.Sprintf("which a token for %d nodes requires; give the token at most %d nodes (--max-token-nodes)", nodes, most))
	}
	all = append(all, l.lifetimePermissions("create", of, r.Expires, lifetime, now)...)
	for _, group := range r.Groups {
		if group != tokens.DefaultGroup {
			add("groups", "groups", group, "")
		}
	}
	if r.Limits.Role != "" {
		add("role", "roles", r.Limits.Role, "")
	}
	if name := r.Limits.Replaces.Name; name != "" {
		add("replaceNode", "replacements", name, "")
	}
	for _, label := range tokens.SplitProperties(r.Limits.Node.Labels) {
		add("nodeLabels", "labels", label, "")
	}
	for _, taint := range tokens.SplitProperties(r.Limits.Node.Taints) {
		add("nodeTaints", "taints", taint, "")
	}
	return all
}

// checkExtraPermissions returns a problem if the user lacks one of the permissions.
func (h *handler) checkExtraPermissions(r *call, all []extraPermission) error {
	for _, needed := range all {
		if err := h.checkExtraPermission(r, needed); err != nil {
			return err
		}
	}
	return nil
}

func (h *handler) checkExtraPermission(r *call, needed extraPermission) error {
	err := h.may(r, needed.access)
	var p *web.Problem
	if errors.As(err, &p) && p.Status == http.StatusForbidden {
		p.Field = needed.field
		if needed.hint != "" {
			p.Detail = fmt.Sprintf("%s, %s", p.Detail, needed.hint)
		}
	}
	return err
}

// lifetimePermissions returns the extra permission that a token needs to be created or updated with an expiration, if
// it needs one. field is the field of the request.
func (l Limits) lifetimePermissions(verb, of string, expires time.Time, field string, now time.Time) []extraPermission {
	// operations.Expires rounds up to whole seconds.
	lifetime, most := expires.Sub(now).Truncate(time.Second), cmp.Or(l.MaxTokenTTL, DefaultMaxTokenTTL)
	hint := ""
	switch {
	case expires.IsZero():
		hint = "which an unlimited lifetime requires; give a lifetime"
	case most >= 0 && lifetime > most:
		hint = fmt.Sprintf("which a lifetime of %s requires; give at most %s (--max-token-ttl)", safetext.Duration(lifetime), safetext.Duration(most))
	default:
		return nil
	}
	return []extraPermission{{auth.Access{Verb: verb, Resource: of + "/unlimited"}, field, hint}}
}

// lifetimeField returns the field of a request that says when a token expires.
func lifetimeField(expires string) string {
	if expires != "" {
		return "expires"
	}
	return "ttl"
}
