package server

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
)

// listIssued returns a page of the issuance record.
func (h *handler) listIssued(r *call, req api.ListIssued) (web.Response, error) {
	if h.IssuanceRecord == nil {
		return web.Response{}, noRecord()
	}
	query, err := issuanceQuery(req, time.Now())
	if err != nil {
		return web.Response{}, err
	}
	page, err := h.IssuanceRecord.List(r.Context(), query)
	switch {
	case errors.Is(err, issuance.ErrCursor):
		return web.Response{}, web.BadField("continue", "malformed; want the continue value of another page of the issuance record")
	case err != nil:
		return web.Response{}, recordUnavailable(err)
	}
	list := api.IssuanceEntryList{APIVersion: api.GroupVersion, Kind: api.KindIssuanceEntryList, Items: make([]api.IssuanceEntry, len(page.Entries)), Continue: page.Next}
	for i, e := range page.Entries {
		e.Certificate = ""
		list.Items[i] = entryShown(e)
	}
	return web.Object(http.StatusOK, list)
}

// getIssued returns the entry of one certificate.
func (h *handler) getIssued(r *call, _ struct{}) (web.Response, error) {
	if h.IssuanceRecord == nil {
		return web.Response{}, noRecord()
	}
	serial, err := issuance.ParseSerial(chi.URLParam(r.Request, "serial"))
	if err != nil {
		return web.Response{}, web.BadField("serial", "want a serial number in hexadecimal digits, as 'openssl x509 -noout -serial' prints it")
	}
	e, err := h.IssuanceRecord.Get(r.Context(), serial)
	switch {
	case errors.Is(err, issuance.ErrNotFound):
		return web.Response{}, web.NewProblem("not-issued", "the issuance record has no certificate with serial number %s: kubejoin did not issue it, or --issuance-retention (90 days) has passed since it expired", serial)
	case err != nil:
		return web.Response{}, recordUnavailable(err)
	}
	return web.Object(http.StatusOK, entryShown(e))
}

func entryShown(e issuance.Entry) api.IssuanceEntry {
	return api.IssuanceEntry{APIVersion: api.GroupVersion, Kind: api.KindIssuanceEntry, Entry: e}
}

func noRecord() *web.Problem {
	return web.NewProblem("no-issuance-record", "this kubejoin has no issuance record to query, because its tokens are in Kubernetes, which keeps none. Otherwise read the JSON lines that 'kubejoin serve --issuance-record FILE' writes, for example with jq")
}

func recordUnavailable(err error) *web.Problem {
	return web.NewProblem("record-unavailable", "the issuance record cannot be read now; retry").Unavailable(err)
}

// issuanceQuery returns the query of the issuance record that a request describes.
func issuanceQuery(req api.ListIssued, now time.Time) (issuance.Query, error) {
	q := issuance.Query{
		TokenID: req.TokenID, Node: req.Node, Requester: req.Requester, Signer: req.Signer, Outcome: req.Outcome,
		CA: req.CA, NotCA: req.NotCA, Limit: req.Limit, After: req.Continue,
	}
	var errs []error
	wrong := func(field, format string, args ...any) { errs = append(errs, api.InvalidField(field, format, args...)) }
	if q.TokenID != "" {
		if err := tokens.CheckID(q.TokenID); err != nil {
			wrong("tokenID", "%v", err)
		}
	}
	for _, f := range []struct {
		name string
		pin  *string
	}{{"ca", &q.CA}, {"notCA", &q.NotCA}} {
		if *f.pin == "" {
			continue
		}
		pin, err := clusterinfo.ParsePin(*f.pin)
		if err != nil {
			wrong(f.name, "%.80q given, want the pin of a CA: sha256: and 64 hexadecimal digits", *f.pin)
		}
		*f.pin = pin
	}
	switch q.Outcome {
	case "", issuance.Issued, issuance.Refused, issuance.Failed:
	default:
		wrong("outcome", "%.40q given, want %s, %s or %s", req.Outcome, issuance.Issued, issuance.Refused, issuance.Failed)
	}
	if q.Limit < 0 || q.Limit > issuance.MaxLimit {
		wrong("limit", "%d given, want 1 to %d", q.Limit, issuance.MaxLimit)
	}
	if req.EndsWithin != "" {
		within, err := parsePositive(req.EndsWithin)
		if err != nil {
			wrong("endsWithin", "%v", err)
		}
		if q.Outcome != "" && q.Outcome != issuance.Issued {
			wrong("endsWithin", "cannot be combined with outcome %s, whose entries have no certificate", q.Outcome)
		}
		q.EndsAfter, q.EndsBefore = now, now.Add(within)
	}
	if req.Since != "" {
		if at, err := time.Parse(time.RFC3339, req.Since); err == nil {
			q.Since = at
		} else if ago, err := parsePositive(req.Since); err == nil {
			q.Since = now.Add(-ago)
		} else {
			wrong("since", "%.40q given, want a time such as 2026-11-20T00:00:00Z, or an age such as 24h or 7d", req.Since)
		}
	}
	return q, api.JoinInvalid(errs...)
}

// parsePositive parses a duration as [api.ParseDuration] does, and refuses one that is not positive.
func parsePositive(s string) (time.Duration, error) {
	d, err := api.ParseDuration(s)
	if err == nil && d <= 0 {
		err = errors.New("want a duration such as 24h or 30d")
	}
	if err != nil {
		return 0, fmt.Errorf("%q given, %w", safetext.Text(s, web.MaxField), err)
	}
	return d, nil
}
