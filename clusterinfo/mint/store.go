package mint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// createTimeout is how long to retry creating a token, so that a short outage of the store does not fail the call.
const createTimeout = 10 * time.Second

// WithdrawTimeout is how long Minter.Join retries to delete a token after a failure, in addition to SignTimeout.
const WithdrawTimeout = 10 * time.Second

// A repeated request matches a stored token if its lifetime differs from the requested one by at most a tenth of the
// requested lifetime. These are the minimum and maximum of this tolerance. Retries delay the creation, and
// kube-apiserver's clock, which sets the creation time, may differ from this one by minutes.
const (
	minEndSlack = createTimeout + 5*time.Second
	maxEndSlack = 5 * time.Minute
)

// create stores a record and retries temporary errors. With an error it returns the record of the last attempt. Unless
// the store [refused] this record, it may be stored in spite of the error. If the store had the token before the call,
// or the caller chose the token and its ID is taken, the error wraps tokens.ErrExists. An [Error] means that this call
// stored nothing.
func (m *Minter) create(ctx context.Context, c Creation) (_ tokens.Record, err error) {
	record := c.Record
	if err := m.reserve(ctx, c); err != nil {
		return record, err
	}
	defer func() {
		if err != nil {
			m.unreserve(record)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	lost := false // whether the response of an attempt may be lost
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		stored, err := m.Tokens.Create(ctx, record)
		lost = lost || err != nil && !errors.Is(err, tokens.ErrExists)
		if errors.Is(err, tokens.ErrExists) {
			exists := err
			stored, err = m.Tokens.Get(ctx, record.Token.ID(), tokens.Live)
			same := stored.Token.Equal(record.Token)
			switch {
			case err != nil: // deleted meanwhile, or the store is unavailable
			case same && lost && stored.Expires.Equal(record.Expires): // an earlier attempt of this call stored it
			case same || c.Chosen:
				return record, exists
			default:
				// A collision of random IDs has a probability of one in two billion, unless the store has very
				// many tokens.
				record.Token = tokens.Generate()
				continue
			}
		}
		if err == nil {
			return stored, nil
		}
		if no, found := errors.AsType[*tokens.Refusal](err); found { // the store has no token with this ID
			return record, &Error{Refusal: *no}
		}
		if !refused(err) {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				continue
			}
		}
		if !lost { // the token exists, and the store cannot be read
			return record, StoreError(err)
		}
		return record, err
	}
}

// withdraw deletes a token that no client has received. It returns the error for the caller.
func (m *Minter) withdraw(ctx context.Context, record tokens.Record, why error) error {
	ctx, cancel := context.WithTimeout(ctx, WithdrawTimeout)
	defer cancel()
	defer m.unreserve(record)
	err := m.delete(ctx, record)
	var e *Error
	if !errors.As(why, &e) {
		e = Failure("kubejoin could not create the join command", why)
	}
	stored := record.UID != ""
	switch {
	case err == nil && stored:
		e.Fate = fmt.Sprintf("Token %s was deleted, because no client received it", record.Token.ID())
	case err == nil: // the token does not exist
	case stored:
		e.Fate = fmt.Sprintf("Token %s could not be deleted; no client received it, and it %s", record.Token.ID(), record.Lifetime(time.Now()))
	default:
		e.Fate = fmt.Sprintf("If token %s was stored nevertheless, no client received it, and it %s", record.Token.ID(), record.Lifetime(time.Now()))
	}
	e.NotDeleted = err
	return e
}

// delete removes a record, even if it has changed meanwhile or if its creation got no response. It does not delete
// another token with the same ID. It retries until ctx ends.
func (m *Minter) delete(ctx context.Context, record tokens.Record) error {
	live := record.UID != ""
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var err error
		if !live {
			var now tokens.Record
			if now, err = m.Tokens.Get(ctx, record.Token.ID(), tokens.Live); err == nil {
				if now.Token != record.Token {
					return nil
				}
				record, live = now, true
			}
		}
		if err == nil {
			err = m.Tokens.Delete(ctx, record)
			live = !errors.Is(err, tokens.ErrConflict)
		}
		if err == nil || errors.Is(err, tokens.ErrNotFound) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete token %s: %w", record.Token.ID(), err)
		case <-time.After(wait):
		}
	}
}

// recreate returns the stored token if its secret and all other fields match the request. With this check, a client
// can repeat a request whose response was lost. The error names the fields that differ only if the secret is right.
// That reveals nothing new, because a signature in cluster-info also shows whether a secret is right. A wrong secret
// takes the same time as a right one.
func (m *Minter) recreate(ctx context.Context, r Creation, record tokens.Record, now time.Time) (tokens.Record, error) {
	stored, err := m.Tokens.Get(ctx, record.Token.ID(), tokens.Live)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return record, differsError(record.Token) // it existed a moment ago
	case err != nil:
		return record, StoreError(err)
	}
	differs := differences(stored, record, r.Lifetime, now)
	if !stored.Token.Equal(record.Token) {
		return record, differsError(record.Token)
	}
	if len(differs) > 0 {
		return record, differsError(record.Token, differs...)
	}
	return stored, nil
}

// differences returns the fields of a stored record that do not match a request, except the token itself, with their
// names in requests. A lifetime in the request starts at the creation of the stored token. A spent token may expire
// sooner than requested, because taking its last slot brings the expiry forward. An expired or malformed record always
// differs in status.
func differences(stored, record tokens.Record, lifetime time.Duration, now time.Time) []string {
	var fields []string
	differs := func(field string, alike bool) {
		if !alike {
			fields = append(fields, field)
		}
	}
	if lifetime == 0 && !record.Expires.IsZero() {
		differs("expires", stored.Expires.Equal(record.Expires) || stored.Spent() && !stored.Expires.IsZero() && stored.Expires.Before(record.Expires))
	} else {
		differs("ttl", sameLife(stored, record, lifetime))
	}
	sorted := func(list []string) []string { return slices.Sorted(slices.Values(list)) }
	ours, theirs := record.Limits, stored.Limits
	differs("usages", stored.Signing == record.Signing && stored.Authentication == record.Authentication)
	differs("groups", slices.Equal(sorted(stored.Groups), sorted(record.Groups)))
	differs("description", stored.Description == record.Description)
	differs("owner", stored.Owner == record.Owner)
	differs("maxNodes", ours.MaxNodes == theirs.MaxNodes)
	differs("nodeNames", slices.Equal(sorted(ours.NodeNames), sorted(theirs.NodeNames)))
	differs("certificateDuration", ours.CertificateDuration == theirs.CertificateDuration)
	differs("role", ours.Role == theirs.Role)
	differs("rejoin", ours.Rejoin == theirs.Rejoin)
	differs("replaceNode", ours.Replaces == theirs.Replaces)
	differs("nodeLabels", ours.Node.Labels == theirs.Node.Labels)
	differs("nodeTaints", ours.Node.Taints == theirs.Node.Taints)
	differs("nodeReadyAfter", ours.Node.ReadyAfter == theirs.Node.ReadyAfter)
	differs("status", stored.Problem == nil && theirs.Problem == nil && !stored.Expired(now))
	return fields
}

// sameLife reports whether a stored record has the requested lifetime since its creation, or never expires, as
// requested. A spent record may have a shorter lifetime.
func sameLife(stored, record tokens.Record, lifetime time.Duration) bool {
	switch {
	case record.Expires.IsZero():
		return stored.Expires.IsZero() || stored.Spent()
	case stored.Expires.IsZero():
		return false
	}
	slack := max(minEndSlack, min(lifetime/10, maxEndSlack))
	longer := stored.Expires.Sub(stored.Created) - lifetime
	return longer <= slack && (longer >= -slack || stored.Spent())
}
