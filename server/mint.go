package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// How long storing a token is tried, and taking it back: a short absence of the store is not the
// client's concern.
const (
	createTimeout   = 10 * time.Second
	withdrawTimeout = 10 * time.Second
)

// mint stores a record and answers how to join with it once it is signed. It takes SignTimeout at
// most, and withdrawTimeout more to take the token back.
func (h *handler) mint(r *http.Request, record tokens.Record, format joinFormat) (answer, error) {
	ctx, cancel := context.WithTimeout(r.Context(), h.SignTimeout)
	defer cancel()
	start := time.Now()
	record, err := h.create(ctx, record, false)
	if noRoom := (*problem)(nil); errors.As(err, &noRoom) {
		return answer{}, noRoom
	}
	if err != nil {
		p := newProblem(http.StatusServiceUnavailable, "token-not-stored", "the token could not be stored; try again")
		p.cause, p.retryAfter = err, retryAfter
		if refused(err) {
			return answer{}, p
		}
		return answer{}, h.withdraw(context.WithoutCancel(ctx), record, p)
	}
	logAttrs(ctx, slog.String("token", record.Token.ID()))
	created := time.Now()

	join, err := h.signed(ctx, r.Context(), record, h.SignTimeout)
	var body []byte
	if err == nil {
		body, err = format.join(join, record.Expires)
	}
	if err != nil {
		// Nobody was told the secret: what is left of the token must go, also when it is the
		// client that has gone.
		return answer{}, h.withdraw(context.WithoutCancel(ctx), record, err)
	}
	return answer{
		contentType: format.contentType,
		header: map[string]string{
			"Server-Timing": fmt.Sprintf(`create;dur=%.1f, sign;dur=%.1f;desc="until the signature was live"`, milliseconds(created.Sub(start)), milliseconds(time.Since(created))),
		},
		body: body,
	}, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

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
