package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// MaxWait is the longest time that a client can request to wait for a signature.
const MaxWait = 5 * time.Minute

// shortCertificate is the certificate lifetime below which createToken warns: a node that is off for a day
// could not renew its certificate.
const shortCertificate = 24 * time.Hour

// How long to retry creating and deleting a token, so that a short outage of the store does not fail the
// request.
const (
	createTimeout   = 10 * time.Second
	withdrawTimeout = 10 * time.Second
)

// A repeated request matches a stored token if its lifetime differs from the requested ttl by at most a
// tenth of the ttl. These are the bounds of that slack. Retries delay the creation, and kube-apiserver's
// clock, which sets the creation time, may differ from this one by minutes.
const (
	minEndSlack = createTimeout + 5*time.Second
	maxEndSlack = 5 * time.Minute
)

// createToken creates a token, waits for its signature and returns it with its secret. If no signature
// appears, the token stays, unlike that of a join command: the client may know the token. If the client
// chose the token, the request is idempotent.
func (h *handler) createToken(r *call) (response, error) {
	var req api.CreateToken
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	wait, err := h.wait(req.Wait)
	if err != nil {
		return response{}, err
	}
	now := time.Now()
	token, chosen := tokens.Generate(), req.Token != ""
	if chosen {
		if token, err = tokens.Parse(req.Token.Reveal()); err != nil {
			return response{}, badField("token", "%v", err)
		}
	}
	record, err := h.newRecord(r, req.TokenSpec, token, now)
	if err != nil {
		return response{}, err
	}
	if err := h.checkClusterInfo(r.Context(), record); err != nil {
		return response{}, err
	}
	r.log(slog.String("token", token.ID()))
	if chosen {
		if err := h.checkUnclaimed(r.Context(), token.ID()); err != nil {
			return response{}, err
		}
	}
	if req.DryRun {
		return h.tryCreate(r.Context(), req.TokenSpec, record, now)
	}
	status := http.StatusCreated
	record, err = h.create(r.Context(), record, chosen)
	var quotaProblem *problem
	switch {
	case errors.Is(err, tokens.ErrExists), chosen && errors.As(err, &quotaProblem): // an existing token needs no quota
		before, againErr := h.recreate(r.Context(), req.TokenSpec, record, now)
		if againErr != nil && quotaProblem != nil {
			return response{}, quotaProblem
		} else if againErr != nil {
			return response{}, againErr
		}
		status, record = http.StatusOK, before
	case errors.As(err, &quotaProblem):
		return response{}, quotaProblem
	case refused(err):
		return response{}, h.unavailable(err)
	case err != nil:
		p := newProblem(http.StatusServiceUnavailable, "token-not-stored",
			"the token could not be stored; retry. If token %s was stored nevertheless, it %s", record.Token.ID(), lifetime(record))
		p.cause, p.retryAfter, p.TokenID = err, retryAfter, record.Token.ID()
		return response{}, p
	}
	command, err := h.awaitSigned(r.Context(), record, wait)
	if err != nil {
		return response{}, err
	}
	// For a new token, skip reading cluster-info and claims: after the wait it is known to be signed.
	v := view{now: time.Now()}
	if status == http.StatusOK {
		v = h.view(r.Context(), v.now)
	}
	t := v.token(record)
	if record.Signing && wait == 0 && status == http.StatusCreated {
		t.Status = api.StatusUnsigned
	}
	t.Token, t.JoinCommand = api.Secret(record.Token.Reveal()), api.Secret(command)
	t.Warnings = append(h.advice(r.Context(), record), v.warnings...)
	a, err := object(status, t)
	if status == http.StatusCreated {
		a.header = map[string]string{"Location": "token/" + t.ID} // relative, because the Handler may have a prefix
	}
	return a, err
}

// tryCreate returns what createToken would return, and stores nothing.
func (h *handler) tryCreate(ctx context.Context, req api.TokenSpec, record tokens.Record, now time.Time) (response, error) {
	v := view{now: now}
	switch _, err := h.Tokens.Get(ctx, record.Token.ID()); {
	case err == nil:
		if record, err = h.recreate(ctx, req, record, now); err != nil {
			return response{}, err
		}
		v = h.view(ctx, now)
	case !errors.Is(err, tokens.ErrNotFound):
		return response{}, h.unavailable(err)
	default:
		if err := h.reserve(ctx, record, true); err != nil {
			return response{}, err
		}
	}
	t := v.token(record)
	t.DryRun, t.Token = true, api.Secret(record.Token.Reveal())
	t.JoinCommand = api.Secret(h.unsignedCommand(ctx, record))
	t.Warnings = h.advice(ctx, record)
	return object(http.StatusOK, t)
}

// wait parses how long to wait for a signature. The default is SignTimeout, but at most MaxWait.
func (h *handler) wait(req string) (time.Duration, error) {
	if req == "" {
		return min(h.SignTimeout, MaxWait), nil
	}
	d, err := api.ParseDuration(req)
	if err != nil || d < 0 || d > MaxWait {
		return 0, badField("wait", "%.40q given; want a duration up to %s, or 0 to return without waiting", req, MaxWait)
	}
	return d, nil
}

// advice returns warnings for the user who creates a token.
func (h *handler) advice(ctx context.Context, record tokens.Record) []string {
	var list []string
	if record.Expires.IsZero() {
		list = append(list, fmt.Sprintf("token %s never expires: anyone who obtains it can use it until it is deleted", record.Token.ID()))
	}
	if record.Authentication && len(record.Groups) == 0 {
		list = append(list, fmt.Sprintf("token %s has no groups: kubeadm's role bindings do not apply to machines that use it", record.Token.ID()))
	}
	if d := record.Limits.CertificateDuration; d > 0 && d < shortCertificate {
		list = append(list, fmt.Sprintf("certificates are valid for only %s: a node that is off for longer cannot renew its certificate and has to join again", d))
	}
	if h.Warnings != nil {
		list = append(list, h.Warnings(ctx, record)...)
	}
	return list
}

// checkUnclaimed returns a problem for the ID of a deleted token that still has claims. They would restrict
// the new token and count for it. Token IDs are public, and callers can choose them.
func (h *handler) checkUnclaimed(ctx context.Context, id string) error {
	if h.Claims == nil {
		return nil
	}
	held, err := h.Claims.HeldBy(ctx, id)
	switch {
	case apierrors.IsForbidden(err): // the caller's kubeconfig may lack this permission, and the check is optional
		return nil
	case err != nil:
		return h.unavailable(err)
	case len(held) == 0:
		return nil
	}
	if _, err := h.Tokens.Get(ctx, id); !errors.Is(err, tokens.ErrNotFound) {
		return nil // create handles an existing token
	}
	return newProblem(http.StatusConflict, api.ProblemExists, "a deleted token with the ID %s still holds the name of node %s (%d names in total); choose another ID, or release the names with: kubejoin claim release %s",
		id, held[0].Node, len(held), held[0].Node)
}

// recreate returns the stored token if its secret and all other fields match the request. So a client can
// repeat a request whose response was lost. The problem names the fields that differ only if the secret is
// right. That reveals nothing new, because a signature in cluster-info also shows whether a secret is
// right. A wrong secret takes the same time as a right one.
func (h *handler) recreate(ctx context.Context, req api.TokenSpec, record tokens.Record, now time.Time) (tokens.Record, error) {
	stored, err := h.Tokens.Get(ctx, record.Token.ID())
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return record, existsProblem(record.Token) // it existed a moment ago
	case err != nil:
		return record, h.unavailable(err)
	}
	differs := differences(stored, record, req, now)
	if !stored.Token.Equal(record.Token) {
		return record, existsProblem(record.Token)
	}
	if len(differs) > 0 {
		return record, existsProblem(record.Token, differs...)
	}
	return stored, nil
}

// existsProblem returns the problem of an existing token that does not match the request. fields are the differing
// fields, if the caller may know them.
func existsProblem(t tokens.Token, fields ...string) *problem {
	differs := ""
	if len(fields) > 0 {
		differs = "; it differs in " + strings.Join(fields, ", ")
	}
	return newProblem(http.StatusConflict, api.ProblemExists, "token %s already exists and does not match the request%s. Choose another token, or delete the existing one with: kubejoin token delete %s", t.ID(), differs, t.ID())
}

// differences returns the fields of a stored record that do not match a request, except the token itself. A
// ttl counts from the creation of the stored token. A spent token may expire sooner than requested, because
// taking its last slot brings the expiry forward. An expired or malformed record always differs in status.
func differences(stored, record tokens.Record, req api.TokenSpec, now time.Time) []string {
	var fields []string
	differs := func(field string, alike bool) {
		if !alike {
			fields = append(fields, field)
		}
	}
	if req.Expires != "" {
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
	differs("rejoin", ours.Rejoin == theirs.Rejoin)
	differs("replaceNode", ours.Replaces == theirs.Replaces)
	differs("status", stored.Problem == nil && theirs.Problem == nil && !stored.Expired(now))
	return fields
}

// sameLife reports whether the lifetime of a stored record, from its creation, is that of a record created
// now. The lifetime of a spent one may be shorter.
func sameLife(stored, record tokens.Record, now time.Time) bool {
	switch {
	case record.Expires.IsZero():
		return stored.Expires.IsZero() || stored.Spent()
	case stored.Expires.IsZero():
		return false
	}
	req := record.Expires.Sub(now)
	slack := max(minEndSlack, min(req/10, maxEndSlack))
	longer := stored.Expires.Sub(stored.Created) - req
	return longer <= slack && (longer >= -slack || stored.Spent())
}

// create stores a record and retries temporary errors. With an error it returns the record of the last
// attempt. Unless the store [refused] that, it may have been stored nevertheless. If the client chose the
// token and its ID exists, the error wraps tokens.ErrExists. A [problem] means that nothing was attempted.
func (h *handler) create(ctx context.Context, record tokens.Record, chosen bool) (_ tokens.Record, err error) {
	if err := h.reserve(ctx, record, false); err != nil {
		return record, err
	}
	defer func() {
		if err != nil {
			h.unreserve(record)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	lost := false // whether the response of an attempt may be lost
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		stored, err := h.Tokens.Create(ctx, record)
		if errors.Is(err, tokens.ErrExists) {
			exists := err
			stored, err = h.Tokens.Get(ctx, record.Token.ID())
			switch {
			case err != nil: // deleted meanwhile, or the store is unavailable
			case chosen && (!lost || !stored.Token.Equal(record.Token) || !stored.Expires.Equal(record.Expires)):
				return record, exists
			case stored.Token != record.Token:
				// The probability is one in two billion, unless the store has very many tokens.
				record.Token = tokens.Generate()
				continue
			}
			// Otherwise an earlier attempt stored it, and its response was lost.
		}
		lost = lost || err != nil
		if err == nil {
			return stored, nil
		}
		if refused(err) {
			return record, err
		}
		select {
		case <-ctx.Done():
			return record, err
		case <-time.After(wait):
		}
	}
}

// refused reports whether an error of a store is a definite refusal, for example of kube-apiserver: the write has no
// effect, and a retry would fail again.
func refused(err error) bool {
	if errors.Is(err, tokens.ErrRefused) {
		return true
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// withdraw deletes a token that no client has received. It returns the problem for the client.
func (h *handler) withdraw(ctx context.Context, record tokens.Record, why error) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	defer h.unreserve(record)
	err := h.delete(ctx, record)
	var p *problem
	if !errors.As(why, &p) {
		p = newProblem(http.StatusInternalServerError, "internal", "kubejoin could not create the join command; its log has the reason under this request ID")
		p.cause = why
	}
	stored := record.UID != ""
	switch {
	case err == nil && stored:
		p.Detail += fmt.Sprintf(". Token %s was deleted, because no client received it", record.Token.ID())
	case err == nil: // the token does not exist
	case stored:
		p.Detail += fmt.Sprintf(". Token %s could not be deleted; no client received it, and it %s", record.Token.ID(), lifetime(record))
	default:
		p.Detail += fmt.Sprintf(". If token %s was stored nevertheless, no client received it, and it %s", record.Token.ID(), lifetime(record))
	}
	p.cause = errors.Join(p.cause, err)
	return p
}

// delete removes a record, also if it has changed meanwhile. It also removes a record whose creation got no
// response. It does not delete another token of the same ID. It retries until ctx ends.
func (h *handler) delete(ctx context.Context, record tokens.Record) error {
	live := record.UID != ""
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var err error
		if !live {
			var now tokens.Record
			if now, err = h.Tokens.Get(ctx, record.Token.ID()); err == nil {
				if now.Token != record.Token {
					return nil
				}
				record, live = now, true
			}
		}
		if err == nil {
			err = h.Tokens.Delete(ctx, record)
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

func lifetime(r tokens.Record) string {
	if r.Expires.IsZero() {
		return "stays valid until it is deleted"
	}
	verb := "expires"
	if r.Expired(time.Now()) {
		verb = "expired"
	}
	return verb + " at " + r.Expires.UTC().Format(time.RFC3339)
}
