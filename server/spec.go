package server

import (
	"cmp"
	"errors"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// MaxTTL is the longest lifetime of a token that expires.
const MaxTTL = 10 * 365 * 24 * time.Hour

// newRecord returns the record that a request's spec describes. It returns a problem if the spec is invalid or the user
// may not create such a token.
func (h *handler) newRecord(r *call, spec api.TokenSpec, t tokens.Token, now time.Time) (tokens.Record, error) {
	record, err := parseSpec(spec, t, now)
	if err != nil {
		return record, err
	}
	if h.UserTokens >= 0 {
		record.Creator = tokens.CreatorOf(r.user.Name)
	}
	if record.Limits.Replaces, err = h.replaced(r, spec.ReplaceNode); err != nil {
		return record, err
	}
	if err := record.CheckNew(); err != nil {
		return record, badRecord(err)
	}
	return record, h.checkExtraPermissions(r, record)
}

// NewRecord returns the record that a spec describes, which must not replace a Node. The error is an *api.Problem, as
// the server would return it.
func NewRecord(spec api.TokenSpec, t tokens.Token, now time.Time) (tokens.Record, error) {
	record, err := parseSpec(spec, t, now)
	if err == nil && spec.ReplaceNode != "" {
		err = badField("replaceNode", "only a kubejoin of a cluster can create a token that replaces a Node")
	}
	if err == nil {
		if err = record.CheckNew(); err != nil {
			err = badRecord(err)
		}
	}
	var p *problem
	if errors.As(err, &p) {
		return record, shown(p)
	}
	return record, err
}

// parseSpec returns the record that a spec describes, without the Node that it replaces.
func parseSpec(spec api.TokenSpec, t tokens.Token, now time.Time) (tokens.Record, error) {
	record := tokens.Record{Token: t, Description: spec.Description}
	var err error
	if record.Expires, err = expiry(spec.TTL, spec.Expires, now); err != nil {
		return record, err
	}
	usages := spec.Usages
	if usages == nil {
		usages = []string{api.UsageSigning, api.UsageAuthentication}
	}
	for _, usage := range usages {
		switch usage {
		case api.UsageSigning:
			record.Signing = true
		case api.UsageAuthentication:
			record.Authentication = true
		default:
			return record, badField("usages", "%.40q given, want signing, authentication or both", usage)
		}
	}
	switch {
	case spec.Groups != nil:
		record.Groups = spec.Groups
	case record.Authentication:
		record.Groups = []string{tokens.DefaultGroup}
	}
	record.Limits = tokens.Limits{MaxNodes: spec.MaxNodes, NodeNames: spec.NodeNames, Role: spec.Role, Rejoin: spec.Rejoin}
	if s := spec.CertificateDuration; s != "" {
		d, err := api.ParseDuration(s)
		if err != nil || d <= 0 {
			return record, badField("certificateDuration", "%.40q given; want a duration from %s, such as 720h", s, tokens.MinCertificateDuration)
		}
		record.Limits.CertificateDuration = d
	}
	return record, nil
}

// replaced reads the Node that a token replaces, if it has a name. The token is only for the Node that exists now.
func (h *handler) replaced(r *call, name string) (tokens.NodeRef, error) {
	if name == "" {
		return tokens.NodeRef{}, nil
	}
	if err := tokens.CheckNodeName(name); err != nil {
		return tokens.NodeRef{}, badField("replaceNode", "%v", err)
	}
	if h.Node == nil {
		return tokens.NodeRef{}, badField("replaceNode", "this kubejoin runs without a cluster, so there is no Node to replace")
	}
	if err := h.mayReplace(r, name); err != nil {
		return tokens.NodeRef{}, err
	}
	node, err := h.Node(r.Context(), name)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return tokens.NodeRef{}, badField("replaceNode", "there is no Node %s to replace; an ordinary token is enough", name)
	case err != nil:
		p := newProblem(http.StatusServiceUnavailable, "node-unavailable", "Node %s cannot be read now; retry", name)
		p.cause, p.retryAfter = err, retryAfter
		return tokens.NodeRef{}, p
	}
	return node, nil
}

// expiry returns when a token expires, by ttl or expires, of which only one may be given. The zero time is never.
func expiry(ttl, expires string, now time.Time) (time.Time, error) {
	if expires != "" {
		at, err := time.Parse(time.RFC3339, expires)
		at = at.UTC().Truncate(time.Second)
		switch {
		case ttl != "":
			return at, badField("expires", "cannot be combined with ttl")
		case err != nil:
			return at, badField("expires", "%.40q is not a time such as %s", expires, now.Add(tokens.DefaultTTL).UTC().Format(time.RFC3339))
		case at.Before(now.Add(time.Second)) || at.After(now.Add(MaxTTL)):
			return at, badField("expires", "%s given; want a time in the future, at most %s from now", expires, MaxTTL)
		}
		return at, nil
	}
	lifetime := tokens.DefaultTTL
	if ttl != "" {
		var err error
		lifetime, err = api.ParseDuration(ttl)
		switch {
		case err != nil:
			return time.Time{}, badField("ttl", "%.40q is not a duration; want one such as 2h or 30m, or 0 to never expire", ttl)
		case lifetime != 0 && (lifetime < time.Second || lifetime > MaxTTL):
			return time.Time{}, badField("ttl", "%s given; want 1s to %s, or 0 to never expire", lifetime, MaxTTL)
		}
	}
	if lifetime == 0 {
		return time.Time{}, nil
	}
	// Stores keep whole seconds. Round up, so that the token lives at least as long as requested.
	end := now.Add(lifetime).UTC().Truncate(time.Second)
	if end.Before(now.Add(lifetime)) {
		end = end.Add(time.Second)
	}
	return end, nil
}

// fieldNames maps field names of package tokens to those of requests, where they differ.
var fieldNames = map[string]string{
	"expiration":           "expires",
	"max-nodes":            "maxNodes",
	"node-names":           "nodeNames",
	"certificate-duration": "certificateDuration",
	"replaces-node":        "replaceNode",
}

// badRecord returns the problem of an error of tokens.Record.CheckNew.
func badRecord(err error) *problem {
	var all []api.FieldProblem
	for _, e := range tokens.FieldErrors(err) {
		all = append(all, api.FieldProblem{Field: cmp.Or(fieldNames[e.Field], e.Field), Detail: e.Err.Error()})
	}
	return badFields(all...)
}
