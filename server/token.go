package server

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
)

// listTokens returns all tokens, or a page of them, without their secrets.
func (h *handler) listTokens(r *call) (response, error) {
	var req api.ListPage
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	records, err := h.Tokens.List(r.Context())
	if err != nil {
		return response{}, unavailable(err)
	}
	records, next, err := page(records, api.KindTokenList, func(r tokens.Record) string { return r.Token.ID() }, req)
	if err != nil {
		return response{}, err
	}
	v := h.view(r.Context(), time.Now())
	list := api.TokenList{APIVersion: api.Version, Kind: api.KindTokenList, Items: make([]api.Token, len(records)), Warnings: v.warnings, Continue: next}
	for i, record := range records {
		list.Items[i] = v.token(record)
	}
	return object(http.StatusOK, list)
}

// getToken returns one token without its secret.
func (h *handler) getToken(r *call) (response, error) {
	if err := readRequest(r, &struct{}{}); err != nil {
		return response{}, err
	}
	record, err := h.find(r)
	if err != nil {
		return response{}, err
	}
	return h.shown(r.Context(), http.StatusOK, record, false)
}

// shown returns the response with a token after a change, or as a dry run would leave it.
func (h *handler) shown(ctx context.Context, status int, record tokens.Record, dryRun bool) (response, error) {
	v := h.view(ctx, time.Now())
	t := v.token(record)
	t.DryRun, t.Warnings = dryRun, append(t.Warnings, v.warnings...)
	return object(status, t)
}

// find reads the token whose ID is in the path.
func (h *handler) find(r *call) (tokens.Record, error) {
	id := chi.URLParam(r.Request, "id")
	if err := tokens.CheckID(id); err != nil {
		return tokens.Record{}, badField("id", "%v", err)
	}
	r.log(slog.String("token", id))
	record, err := h.Tokens.Get(r.Context(), id)
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return record, noToken(id)
	case err != nil:
		return record, unavailable(err)
	}
	return record, nil
}

func noToken(id string) *problem {
	return newProblem(http.StatusNotFound, "no-token", "there is no token %s; it may have expired or been deleted", id)
}

// deleteToken deletes a token. If the token changes meanwhile, it retries, but it does not delete a replacement.
func (h *handler) deleteToken(r *call) (response, error) {
	var req api.DeleteToken
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	first, err := h.find(r)
	if err != nil {
		return response{}, err
	}
	for record := first; ; {
		if req.OnlyExpired && !record.Expired(time.Now()) {
			return response{}, newProblem(http.StatusConflict, api.ProblemNotExpired, "token %s has not expired, or was renewed", record.Token.ID())
		}
		if !record.Expired(time.Now()) && record.OwnsUpload() {
			return response{}, ownsUpload(record, "delete the upload with: kubejoin certs delete")
		}
		if !req.DryRun {
			err = h.Tokens.Delete(r.Context(), record)
		}
		switch {
		case err == nil, errors.Is(err, tokens.ErrNotFound):
			return h.shown(r.Context(), http.StatusOK, record, req.DryRun)
		case !errors.Is(err, tokens.ErrConflict):
			return response{}, unavailable(err)
		}
		// The token changed meanwhile, for example because a node joined.
		if record, err = h.find(r); err != nil {
			return response{}, err
		}
		if record.UID != first.UID {
			return response{}, newProblem(http.StatusConflict, "token-replaced", "token %s was deleted and created again during this request; check the new token before you delete it", record.Token.ID())
		}
	}
}

// renewToken changes when a token expires. The check and the change are one atomic update.
func (h *handler) renewToken(r *call) (response, error) {
	var req api.RenewToken
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	now := time.Now()
	expires, err := expiry(req.TTL, req.Expires, now)
	if err != nil {
		return response{}, err
	}
	if expires.IsZero() {
		if err := h.mayRemoveExpiry(r); err != nil {
			return response{}, err
		}
	}
	record, err := h.find(r)
	if err != nil {
		return response{}, err
	}
	change := func(record *tokens.Record) error {
		if err := renewable(*record, expires, req.Shorten); err != nil {
			return err
		}
		record.Expires = expires
		return nil
	}
	if req.DryRun {
		err = change(&record)
	} else {
		record, err = h.Tokens.Update(r.Context(), record.Token.ID(), change)
	}
	var p *problem
	switch {
	case errors.As(err, &p):
		return response{}, p
	case errors.Is(err, tokens.ErrNotFound):
		return response{}, noToken(chi.URLParam(r.Request, "id"))
	case err != nil:
		return response{}, unavailable(err)
	}
	return h.shown(r.Context(), http.StatusOK, record, req.DryRun)
}

// renewable returns the problem of letting a record expire at expires, or nil.
func renewable(record tokens.Record, expires time.Time, shorten bool) error {
	id := record.Token.ID()
	switch {
	case record.OwnsUpload():
		return ownsUpload(record, "upload the certificates again with: kubejoin certs upload")
	case record.Problem != nil || record.Limits.Problem != nil:
		return newProblem(http.StatusConflict, "token-invalid", "token %s is malformed, and renewing it does not help: %s; delete it with: kubejoin token delete %s", id, record.ProblemText(), id)
	case record.Spent():
		return newProblem(http.StatusConflict, api.ProblemSpent, "token %s is spent (used by %s), so renewing it has no effect; create another token with: %s",
			id, strings.Join(record.Nodes, ", "), recreateCommand(record.Limits))
	case shorten || expires.IsZero():
	case record.Expires.IsZero():
		return wouldShorten("token %s never expires, and this renewal would make it expire at %s", id, expires)
	case expires.Before(record.Expires):
		return wouldShorten("token %s expires at "+record.Expires.Format(time.RFC3339)+", and this renewal would make it expire sooner, at %s", id, expires)
	}
	return nil
}

// ownsUpload returns the problem of a change to the token that gives an upload of certificates its expiry. A longer life
// would keep the upload and its key, and deleting the token would delete the upload.
func ownsUpload(record tokens.Record, instead string) error {
	return newProblem(http.StatusConflict, "token-owns-upload", "token %s only decides when the Secret kube-system/kubeadm-certs expires; %s", record.Token.ID(), instead)
}

func wouldShorten(format, id string, expires time.Time) error {
	p := newProblem(http.StatusConflict, api.ProblemWouldShorten, format+"; set shorten to allow this", id, expires.UTC().Format(time.RFC3339))
	p.Field = "shorten"
	return p
}

// recreateCommand returns the command that creates a token with the same limits.
func recreateCommand(l tokens.Limits) string {
	var b strings.Builder
	b.WriteString("kubejoin token create")
	if l.Replaces != (tokens.NodeRef{}) {
		return b.String() + " --replace-node " + l.Replaces.Name
	}
	b.WriteString(" --max-nodes " + decimal(l.MaxNodes))
	for _, name := range l.NodeNames {
		if strings.Contains(name, "*") {
			name = "'" + name + "'"
		}
		b.WriteString(" --node-name " + name)
	}
	if l.Role != "" {
		b.WriteString(" --role " + l.Role)
	}
	if l.Rejoin != "" {
		b.WriteString(" --rejoin " + l.Rejoin)
	}
	if l.CertificateDuration > 0 {
		b.WriteString(" --certificate-duration " + l.CertificateDuration.String())
	}
	return b.String()
}
