package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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

// createToken makes a token and answers it, with its secret, once it is signed. Unlike one of a
// join command it stays if nobody signs it: the client knows the token. One that the client has
// chosen is made once, however often it is asked for.
func (h *handler) createToken(r *http.Request) (answer, error) {
	var asked api.CreateToken
	if err := readRequest(r, &asked); err != nil {
		return answer{}, err
	}
	wait, err := h.wait(asked.Wait)
	if err != nil {
		return answer{}, err
	}
	now := time.Now()
	token, chosen := tokens.Generate(), asked.Token != ""
	if chosen {
		if token, err = tokens.Parse(asked.Token.Reveal()); err != nil {
			return answer{}, badField("token", "%v", err)
		}
	}
	record, err := h.newRecord(r, asked.TokenSpec, token, now)
	if err != nil {
		return answer{}, err
	}
	logAttrs(r.Context(), slog.String("token", token.ID()))
	if chosen {
		if err := h.checkUnclaimed(r.Context(), token.ID()); err != nil {
			return answer{}, err
		}
	}
	if asked.DryRun {
		return h.tryCreate(r.Context(), asked.TokenSpec, record, now)
	}
	status := http.StatusCreated
	record, err = h.create(r.Context(), record, chosen)
	var noRoom *problem
	switch {
	case errors.Is(err, tokens.ErrExists), chosen && errors.As(err, &noRoom): // there is no need of room for one that is there
		before, againErr := h.again(r.Context(), asked.TokenSpec, record, now)
		if againErr != nil && noRoom != nil {
			return answer{}, noRoom
		} else if againErr != nil {
			return answer{}, againErr
		}
		status, record = http.StatusOK, before
	case errors.As(err, &noRoom):
		return answer{}, noRoom
	case refused(err):
		return answer{}, h.unavailable(err)
	case err != nil:
		p := newProblem(http.StatusServiceUnavailable, "token-not-stored",
			"the token could not be stored; try again. Should token %s have been stored nevertheless, it %s", record.Token.ID(), lifetime(record))
		p.cause, p.retryAfter, p.TokenID = err, retryAfter, record.Token.ID()
		return answer{}, p
	}
	command, err := h.awaitSigned(r.Context(), record, wait)
	if err != nil {
		return answer{}, err
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

// taken is the problem of a token that is there already and differs from what is asked for, in
// fields that may be told.
func taken(t tokens.Token, fields ...string) *problem {
	differs := ""
	if len(fields) > 0 {
		differs = ", which differs in " + strings.Join(fields, ", ")
	}
	return newProblem(http.StatusConflict, api.ProblemExists, "there is a token %s already, and it is another one than is asked for%s; take another one, or delete that with: kubejoin token delete %s", t.ID(), differs, t.ID())
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

// wait is how long a signature is waited for.
func (h *handler) wait(asked string) (time.Duration, error) {
	if asked == "" {
		return min(h.SignTimeout, MaxWait), nil
	}
	d, err := time.ParseDuration(asked)
	if err != nil || d < 0 || d > MaxWait {
		return 0, badField("wait", "%.40q given; want a duration up to %s, or 0 for not at all", asked, MaxWait)
	}
	return d, nil
}

// tryCreate answers what createToken would, and stores nothing.
func (h *handler) tryCreate(ctx context.Context, asked api.TokenSpec, record tokens.Record, now time.Time) (answer, error) {
	v := view{now: now}
	switch _, err := h.Tokens.Get(ctx, record.Token.ID()); {
	case err == nil:
		if record, err = h.again(ctx, asked, record, now); err != nil {
			return answer{}, err
		}
		v = h.view(ctx, now)
	case !errors.Is(err, tokens.ErrNotFound):
		return answer{}, h.unavailable(err)
	default:
		if err := h.reserve(ctx, record, true); err != nil {
			return answer{}, err
		}
	}
	t := v.token(record)
	t.DryRun, t.Token = true, api.Secret(record.Token.Reveal())
	t.JoinCommand = api.Secret(h.unsignedCommand(ctx, record))
	t.Warnings = h.advice(ctx, record)
	return object(http.StatusOK, t)
}

// awaitSigned waits for the signature of a stored token, if it is to have one, and gives its join
// command, if it is good for one.
func (h *handler) awaitSigned(ctx context.Context, record tokens.Record, wait time.Duration) (string, error) {
	if !record.Signing || wait == 0 {
		return h.unsignedCommand(ctx, record), nil
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	join, err := h.signed(waiting, ctx, record, wait)
	if err == nil {
		if !record.Authentication {
			return "", nil
		}
		var command string
		if command, err = joinLine(join); err == nil {
			return command, nil
		}
	}
	var p *problem
	if !errors.As(err, &p) || p.Type != api.ProblemType+api.ProblemNotSigned {
		p = newProblem(http.StatusGatewayTimeout, api.ProblemNotSigned, "cluster-info is not signed with the new token, and what should be signing is %s", h.SignedBy)
		p.cause = err
	}
	p.TokenID = record.Token.ID()
	p.Detail += fmt.Sprintf(". Token %s was made all the same, and %s", p.TokenID, lifetime(record))
	return "", p
}

// unsignedCommand is the join command of a token whose signature was not waited for, if there is
// a cluster-info to make it of.
func (h *handler) unsignedCommand(ctx context.Context, record tokens.Record) string {
	if !record.Signing || !record.Authentication {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	data, err := h.clusterInfo(ctx)
	if err != nil {
		return ""
	}
	join, err := h.join([]byte(data["kubeconfig"]), record.Token)
	if err != nil {
		return ""
	}
	command, _ := joinLine(join) // empty beside an error
	return command
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
