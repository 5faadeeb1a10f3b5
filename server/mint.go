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

// MaxWait is the longest time that a client can have a signature waited for.
const MaxWait = 5 * time.Minute

// shortCertificate is the lifetime of certificates below which a node that is off for a day is
// locked out.
const shortCertificate = 24 * time.Hour

// How long storing a token is tried, and taking it back: a short absence of the store is not the
// client's concern.
const (
	createTimeout   = 10 * time.Second
	withdrawTimeout = 10 * time.Second
)

// A token whose ttl was asked for may live longer or shorter from its creation by a tenth of that,
// within these bounds: storing it is tried for a while, and the clock that has set the creation is
// kube-apiserver's, which may be minutes away from this one.
const (
	minEndSlack = createTimeout + 5*time.Second
	maxEndSlack = 5 * time.Minute
)

// createToken makes a token and answers it, with its secret, once it is signed. Unlike one of a
// join command it stays if nobody signs it: the client knows the token. One that the client has
// chosen is made once, however often it is asked for.
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
	case errors.Is(err, tokens.ErrExists), chosen && errors.As(err, &quotaProblem): // there is no need of room for one that is there
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
			"the token could not be stored; try again. Should token %s have been stored nevertheless, it %s", record.Token.ID(), lifetime(record))
		p.cause, p.retryAfter, p.TokenID = err, retryAfter, record.Token.ID()
		return response{}, p
	}
	command, err := h.awaitSigned(r.Context(), record, wait)
	if err != nil {
		return response{}, err
	}
	// What the wait has shown need not be looked up.
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
		a.header = map[string]string{"Location": "token/" + t.ID} // to the path asked, wherever that is mounted
	}
	return a, err
}

// tryCreate answers what createToken would, and stores nothing.
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

// wait is how long a signature is waited for.
func (h *handler) wait(req string) (time.Duration, error) {
	if req == "" {
		return min(h.SignTimeout, MaxWait), nil
	}
	d, err := time.ParseDuration(req)
	if err != nil || d < 0 || d > MaxWait {
		return 0, badField("wait", "%.40q given; want a duration up to %s, or 0 for not at all", req, MaxWait)
	}
	return d, nil
}

// advice is what whoever makes a token should know.
func (h *handler) advice(ctx context.Context, record tokens.Record) []string {
	var list []string
	if record.Expires.IsZero() {
		list = append(list, fmt.Sprintf("token %s never expires: whoever gets hold of it can use it until it is deleted", record.Token.ID()))
	}
	if record.Authentication && len(record.Groups) == 0 {
		list = append(list, fmt.Sprintf("token %s has no group: no role of kubeadm's applies to who authenticates with it", record.Token.ID()))
	}
	if d := record.Limits.CertificateDuration; d > 0 && d < shortCertificate {
		list = append(list, fmt.Sprintf("certificates of %s: a node that is off for longer is locked out, and has to join again", d))
	}
	if h.Warnings != nil {
		list = append(list, h.Warnings(ctx, record)...)
	}
	return list
}

// checkUnclaimed refuses the ID of a deleted token that still has claims: they would restrict the new
// token, and count for it. IDs are public, and callers choose them.
func (h *handler) checkUnclaimed(ctx context.Context, id string) error {
	if h.Claims == nil {
		return nil
	}
	held, err := h.Claims.HeldBy(ctx, id)
	switch {
	case apierrors.IsForbidden(err): // a caller with a kubeconfig need not have this right: the check is a courtesy
		return nil
	case err != nil:
		return h.unavailable(err)
	case len(held) == 0:
		return nil
	}
	if _, err := h.Tokens.Get(ctx, id); !errors.Is(err, tokens.ErrNotFound) {
		return nil // which is another matter
	}
	return newProblem(http.StatusConflict, api.ProblemExists, "the ID %s was that of a token which is gone, and node %s holds its name by it (%d in all); take another ID, or make the names free with: kubejoin claim release %s",
		id, held[0].Node, len(held), held[0].Node)
}

// recreate gives the token that is there if it is the one that is asked for, so that a request whose
// answer was lost can be sent again: the same secret, and everything else as well. What differs is
// told to who has the secret alone, which cluster-info shows to be right, too; that it is wrong does
// not show in the time that it takes.
func (h *handler) recreate(ctx context.Context, req api.TokenSpec, record tokens.Record, now time.Time) (tokens.Record, error) {
	stored, err := h.Tokens.Get(ctx, record.Token.ID())
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return record, existsProblem(record.Token) // or was, a moment ago
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

// existsProblem is the problem of a token that is there already and differs from what is asked for, in
// fields that may be told.
func existsProblem(t tokens.Token, fields ...string) *problem {
	differs := ""
	if len(fields) > 0 {
		differs = ", which differs in " + strings.Join(fields, ", ")
	}
	return newProblem(http.StatusConflict, api.ProblemExists, "there is a token %s already, and it is another one than is asked for%s; take another one, or delete that with: kubejoin token delete %s", t.ID(), differs, t.ID())
}

// differences are the fields in which a stored record, its token apart, is not what a request that
// comes now asks for. A ttl is meant from when the token was made. A token that is spent may end
// sooner: taking its last place brings the end forward. Nobody asks for one that has expired or is
// no good.
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
	req := record.Expires.Sub(now)
	slack := max(minEndSlack, min(req/10, maxEndSlack))
	longer := stored.Expires.Sub(stored.Created) - req
	return longer <= slack && (longer >= -slack || stored.Spent())
}

// create stores a record, and tries again what may pass. With an error comes the record as it
// was tried last: unless the store [refused] it, it may have been stored all the same. A token
// that the client chose is an error that wraps tokens.ErrExists if there is one of its ID. A
// problem is an error before anything was tried.
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
	lost := false // an answer
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		stored, err := h.Tokens.Create(ctx, record)
		if errors.Is(err, tokens.ErrExists) {
			exists := err
			stored, err = h.Tokens.Get(ctx, record.Token.ID())
			switch {
			case err != nil: // gone again, or the store is away
			case chosen && (!lost || !stored.Token.Equal(record.Token) || !stored.Expires.Equal(record.Expires)):
				return record, exists
			case stored.Token != record.Token:
				// One in two billion, unless somebody has stored very many.
				record.Token = tokens.Generate()
				continue
			}
			// Otherwise it is of a try whose answer was lost.
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

// refused reports whether an error of a store is an API server's word that it has not done and
// will not do what it was asked for.
func refused(err error) bool {
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

// withdraw deletes a token that is not handed out, and returns what the client is told.
func (h *handler) withdraw(ctx context.Context, record tokens.Record, why error) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	defer h.unreserve(record)
	err := h.delete(ctx, record)
	var p *problem
	if !errors.As(why, &p) {
		p = newProblem(http.StatusInternalServerError, "internal", "the join command could not be made; kubejoin's log has the reason under this request ID")
		p.cause = why
	}
	stored := record.UID != ""
	switch {
	case err == nil && stored:
		p.Detail += fmt.Sprintf(". Token %s was deleted again", record.Token.ID())
	case err == nil: // there is none
	case stored:
		p.Detail += fmt.Sprintf(". Token %s could not be deleted again: it was told to nobody and %s", record.Token.ID(), lifetime(record))
	default:
		p.Detail += fmt.Sprintf(". Should token %s have been stored nevertheless, it was told to nobody and %s", record.Token.ID(), lifetime(record))
	}
	p.cause = errors.Join(p.cause, err)
	return p
}

// delete removes a record, also if it has changed meanwhile or is not known to have been stored,
// unless it is another one now. It tries until ctx ends.
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
		return "stays until it is deleted"
	}
	verb := "ends"
	if r.Expired(time.Now()) {
		verb = "ended"
	}
	return verb + " at " + r.Expires.UTC().Format(time.RFC3339)
}
