package server

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// A token whose ttl was asked for may live longer or shorter from its creation by a tenth of that,
// within these bounds: storing it is tried for a while, and the clock that has set the creation is
// kube-apiserver's, which may be minutes away from this one.
const (
	minEndSlack = createTimeout + 5*time.Second
	maxEndSlack = 5 * time.Minute
)

// again gives the token that is there if it is the one that is asked for, so that a request whose
// answer was lost can be sent again: the same secret, and everything else as well. What differs is
// told to who has the secret alone, which cluster-info shows to be right, too; that it is wrong does
// not show in the time that it takes.
func (h *handler) again(ctx context.Context, asked api.TokenSpec, record tokens.Record, now time.Time) (tokens.Record, error) {
	stored, err := h.Tokens.Get(ctx, record.Token.ID())
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return record, taken(record.Token) // or was, a moment ago
	case err != nil:
		return record, h.unavailable(err)
	}
	differs := differences(stored, record, asked, now)
	if !stored.Token.Equal(record.Token) {
		return record, taken(record.Token)
	}
	if len(differs) > 0 {
		return record, taken(record.Token, differs...)
	}
	return stored, nil
}

// differences are the fields in which a stored record, its token apart, is not what a request that
// comes now asks for. A ttl is meant from when the token was made. A token that is spent may end
// sooner: taking its last place brings the end forward. Nobody asks for one that has expired or is
// no good.
func differences(stored, record tokens.Record, asked api.TokenSpec, now time.Time) []string {
	var fields []string
	differs := func(field string, alike bool) {
		if !alike {
			fields = append(fields, field)
		}
	}
	if asked.Expires != "" {
		differs("expires", stored.Expires.Equal(record.Expires) || stored.Spent() && !stored.Expires.IsZero() && stored.Expires.Before(record.Expires))
	} else {
		differs("ttl", sameLife(stored, record, now))
	}
	sorted := func(list []string) []string { return slices.Sorted(slices.Values(list)) }
	ours, theirs := record.Limits, stored.Limits
	differs("usages", stored.Signing == record.Signing && stored.Authentication == record.Authentication)
	differs("groups", slices.Equal(sorted(stored.Groups), sorted(record.Groups)))
	differs("description", stored.Description == record.Description)
	differs("maxNodes", ours.MaxNodes == theirs.MaxNodes)
	differs("nodeNames", slices.Equal(sorted(ours.NodeNames), sorted(theirs.NodeNames)))
	differs("certificateDuration", ours.CertificateDuration == theirs.CertificateDuration)
	differs("role", ours.Role == theirs.Role)
	differs("replaceNode", ours.Replaces == theirs.Replaces)
	differs("status", stored.Problem == nil && theirs.Problem == nil && !stored.Expired(now))
	return fields
}

// sameLife reports whether a stored record lives as long from its creation as one that is made now,
// or less if it is spent.
func sameLife(stored, record tokens.Record, now time.Time) bool {
	switch {
	case record.Expires.IsZero():
		return stored.Expires.IsZero() || stored.Spent()
	case stored.Expires.IsZero():
		return false
	}
	asked := record.Expires.Sub(now)
	slack := max(minEndSlack, min(asked/10, maxEndSlack))
	longer := stored.Expires.Sub(stored.Created) - asked
	return longer <= slack && (longer >= -slack || stored.Spent())
}
