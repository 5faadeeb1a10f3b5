package server

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/kubejoin/kubejoin/tokens"
)

// may is a problem unless whoever sent the request may do that.
func (h *handler) may(r *http.Request, access Access) error {
	user := userOf(r.Context())
	if user.Name == "" {
		return unauthorized(ErrForbidden, user, access)
	}
	if err := h.Authorize(r, user, access); err != nil {
		return unauthorized(err, user, access)
	}
	return nil
}

// A liberty is what a token has beyond one that "create tokens" is good for, and whoever makes it
// has to be allowed.
type liberty struct {
	access Access
	field  string // of the request
	how    string // to do without, if that is not said by the permission
}

// liberties are those of a token. One that is for a number of workers in the default group and ends
// some day has none.
func liberties(r tokens.Record) []liberty {
	var all []liberty
	add := func(field, resource, name, how string) {
		all = append(all, liberty{Access{Verb: "create", Resource: "tokens/" + resource, Name: name}, field, how})
	}
	if r.Limits.Most() == 0 {
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

func replacement(node string) liberty {
	return liberty{Access{Verb: "create", Resource: "tokens/replacements", Name: node}, "replaceNode", ""}
}

// mayReplace is a problem unless whoever sent the request may make a token for the name of a Node.
// It is asked before the Node is looked for: who may not is not told whether it is there.
func (h *handler) mayReplace(r *http.Request, node string) error {
	return h.mayTake(r, replacement(node))
}

// mayMake is a problem unless whoever sent the request may make that token.
func (h *handler) mayMake(r *http.Request, record tokens.Record) error {
	for _, l := range liberties(record) {
		if err := h.mayTake(r, l); err != nil {
			return err
		}
	}
	return nil
}

func (h *handler) mayTake(r *http.Request, l liberty) error {
	err := h.may(r, l.access)
	var p *problem
	if errors.As(err, &p) && p.Status == http.StatusForbidden {
		p.Field = l.field
		if l.how != "" {
			p.Detail = fmt.Sprintf("%s, %s", p.Detail, l.how)
		}
	}
	return err
}

// mayRenewForEver is a problem unless whoever sent the request may let a token live for ever.
func (h *handler) mayRenewForEver(r *http.Request) error {
	return h.mayTake(r, liberty{Access{Verb: "update", Resource: "tokens/unlimited"}, "ttl", "which a token that never expires needs; give it an end"})
}
