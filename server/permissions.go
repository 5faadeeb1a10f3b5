package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
)

// allowed lets an action happen for users who may, and nobody else.
func (h *handler) allowed(access auth.Access, act action) action {
	return func(r *call) (response, error) {
		if h.Authenticate == nil || h.Authorize == nil {
			return response{}, newProblem(http.StatusForbidden, "forbidden", "nobody may %s here: no way to authenticate is configured", access)
		}
		user, err := h.Authenticate(r.Request)
		if err != nil {
			return response{}, unauthenticated(err)
		}
		if err := h.identified(r, user); err != nil {
			return response{}, err
		}
		if isBootstrapUser(user) {
			return response{}, newProblem(http.StatusForbidden, "forbidden", "user %q is a bootstrap token's, which is for machines that join and may not %s", user.Name, access)
		}
		if err := h.may(r, access); err != nil {
			return response{}, err
		}
		return act(r)
	}
}

// identified notes who sent a request, and returns a problem if the user exceeds a limit.
func (h *handler) identified(r *call, user auth.User) error {
	r.identify(user)
	if refusal := r.limits.User(user.Name); refusal != nil {
		return exceeds(refusal)
	}
	return nil
}

// isBootstrapUser reports whether a user is that of a bootstrap token, however it was authenticated.
func isBootstrapUser(u auth.User) bool {
	return isBootstrapName(u.Name) || slices.ContainsFunc(u.Groups, isBootstrapGroup)
}

func isBootstrapGroup(group string) bool {
	return group == tokens.BootstrappersGroup || strings.HasPrefix(group, tokens.BootstrappersGroup+":")
}

// unauthenticated is the problem of an error of an Authenticate.
func unauthenticated(err error) *problem {
	switch {
	case errors.Is(err, auth.ErrNoCredentials):
		return newProblem(http.StatusUnauthorized, "unauthorized", "who is asking? send the header 'Authorization: Bearer TOKEN'; curl takes it from a file, which keeps it out of the command line: curl -K curlrc")
	case errors.Is(err, auth.ErrBadCredentials):
		p := newProblem(http.StatusUnauthorized, "unauthorized", "the credentials sent are not accepted here")
		p.cause = err
		return p
	}
	p := newProblem(http.StatusServiceUnavailable, "authentication-unavailable", "cannot tell now who is asking; try again")
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// unauthorized is the problem of an error of an Authorize.
func unauthorized(err error, user auth.User, access auth.Access) *problem {
	if errors.Is(err, auth.ErrForbidden) {
		p := newProblem(http.StatusForbidden, "forbidden", "user %q may not %s", user.Name, access)
		p.cause = err
		return p
	}
	p := newProblem(http.StatusServiceUnavailable, "authorization-unavailable", "cannot tell now whether user %q may %s; try again", user.Name, access)
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// may is a problem unless whoever sent the request may do that.
func (h *handler) may(r *call, access auth.Access) error {
	user := r.user
	if user.Name == "" {
		return unauthorized(auth.ErrForbidden, user, access)
	}
	if err := h.Authorize(r.Request, user, access); err != nil {
		return unauthorized(err, user, access)
	}
	return nil
}

// A liberty is what a token has beyond one that "create tokens" is good for, and whoever makes it
// has to be allowed.
type extraPermission struct {
	access auth.Access
	field  string // of the request
	hint   string // to do without, if that is not said by the permission
}

// extraPermissions are those of a token. One that is for a number of workers in the default group and ends
// some day has none.
func extraPermissions(r tokens.Record) []extraPermission {
	var all []extraPermission
	add := func(field, resource, name, hint string) {
		all = append(all, extraPermission{auth.Access{Verb: "create", Resource: "tokens/" + resource, Name: name}, field, hint})
	}
	if r.Limits.NodeLimit() == 0 {
		add("maxNodes", "unlimited", "", "which a token for any number of nodes needs; say for how many with maxNodes")
	}
	if r.Expires.IsZero() {
		add("ttl", "unlimited", "", "which a token that never expires needs; give it an end")
	}
	for _, group := range r.Groups {
		if group != tokens.DefaultGroup {
			add("groups", "groups", group, "")
		}
	}
	if r.Limits.Role != "" {
		add("role", "roles", r.Limits.Role, "")
	}
	if name := r.Limits.Replaces.Name; name != "" {
		all = append(all, replacement(name))
	}
	return all
}

func replacement(node string) extraPermission {
	return extraPermission{auth.Access{Verb: "create", Resource: "tokens/replacements", Name: node}, "replaceNode", ""}
}

// mayReplace is a problem unless whoever sent the request may make a token for the name of a Node.
// It is asked before the Node is looked for: who may not is not told whether it is there.
func (h *handler) mayReplace(r *call, node string) error {
	return h.checkExtraPermission(r, replacement(node))
}

// checkExtraPermissions is a problem unless whoever sent the request may make that token.
func (h *handler) checkExtraPermissions(r *call, record tokens.Record) error {
	for _, needed := range extraPermissions(record) {
		if err := h.checkExtraPermission(r, needed); err != nil {
			return err
		}
	}
	return nil
}

func (h *handler) checkExtraPermission(r *call, needed extraPermission) error {
	err := h.may(r, needed.access)
	var p *problem
	if errors.As(err, &p) && p.Status == http.StatusForbidden {
		p.Field = needed.field
		if needed.hint != "" {
			p.Detail = fmt.Sprintf("%s, %s", p.Detail, needed.hint)
		}
	}
	return err
}

// mayRemoveExpiry is a problem unless whoever sent the request may let a token live for ever.
func (h *handler) mayRemoveExpiry(r *call) error {
	return h.checkExtraPermission(r, extraPermission{auth.Access{Verb: "update", Resource: "tokens/unlimited"}, "ttl", "which a token that never expires needs; give it an end"})
}
