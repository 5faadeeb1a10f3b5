package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// Revocations configures /v1/revocation.
type Revocations struct {
	// Guard has the revocations. It is required.
	Guard *revocation.Guard
	// Requested returns certificates that were issued recently, and the tokens that requested them: usually those of
	// the cluster's CertificateSigningRequests. They are in addition to [Server.Issued]. Nil knows none.
	Requested func(ctx context.Context) ([]revocation.Issued, error)
	// ClientCAs returns the CAs of client certificates that kube-apiserver accepts. Nil: there is no API server.
	ClientCAs func(ctx context.Context) ([]*x509.Certificate, error)
	// Lifetime returns how long any certificate may still be valid, in addition to what the CAs of cluster-info and
	// ClientCAs say. It is usually MaxRemainingLifetime of an Authority. Nil adds nothing.
	Lifetime func() time.Duration
	// RejoinWindow is how long a node may rejoin with a certificate that has expired. Revocations last that much longer.
	RejoinWindow time.Duration
}

func noRevocations() *problem {
	return newProblem(http.StatusNotFound, "no-revocations", "this kubejoin does not store revocations")
}

// listRevocations returns all revocations, or a page of them. It leaves out those that have ended.
func (h *handler) listRevocations(r *call) (response, error) {
	var req api.ListPage
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Revocations == nil {
		return response{}, noRevocations()
	}
	entries, err := h.Revocations.Guard.List(r.Context())
	if err != nil {
		return response{}, h.revocationsUnavailable(err)
	}
	entries, next, err := page(entries, api.KindRevocationList, func(e revocation.Entry) string { return string(e.Key()) }, req)
	if err != nil {
		return response{}, err
	}
	list := revocationsShown(entries, false)
	list.Continue = next
	return object(http.StatusOK, list)
}

// revokedNodes returns the names of revoked nodes. It is empty if they cannot be read.
func (h *handler) revokedNodes(ctx context.Context) map[string]bool {
	if h.Revocations == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, revokedNodesTimeout)
	defer cancel()
	entries, err := h.Revocations.Guard.Cached(ctx)
	if err != nil {
		h.log.Warn("cannot read revocations for the list of claims", "error", err)
		return nil
	}
	nodes := map[string]bool{}
	for _, e := range entries {
		nodes[e.Node] = true
	}
	return nodes
}

// revokedNodesTimeout limits how long a list of claims waits for revocations.
const revokedNodesTimeout = 2 * time.Second

func revocationsShown(entries []revocation.Entry, dryRun bool) api.RevocationList {
	list := api.RevocationList{APIVersion: api.Version, Kind: api.KindRevocationList, Items: make([]api.Revocation, len(entries))}
	for i, e := range entries {
		list.Items[i] = revocationShown(e)
		list.Items[i].DryRun = dryRun
	}
	return list
}

func revocationShown(e revocation.Entry) api.Revocation {
	shown := api.Revocation{
		APIVersion: api.Version, Kind: api.KindRevocation,
		Node: e.Node, Since: e.Since, Until: e.Until, Reason: e.Reason, By: e.By, TokenID: e.TokenID,
	}
	if e.Fingerprint != "" {
		shown.Fingerprint = e.Fingerprint.String()
	}
	for _, end := range e.Allowed {
		if time.Now().Before(end) {
			shown.Allowed++
		}
	}
	if e.Malformed != nil {
		shown.Problem = foreign.Text(e.Malformed.Error(), foreign.MaxMessage)
	}
	return shown
}

// revocationsUnavailable returns the problem of an error of the store of revocations.
func (h *handler) revocationsUnavailable(err error) error {
	switch {
	case errors.Is(err, revocation.ErrFull):
		p := newProblem(http.StatusInsufficientStorage, "too-many-revocations", "the list of revocations is full; remove revocations that are no longer needed with 'kubejoin revoke undo'")
		p.cause = err
		return p
	case mint.StoreError(err).Reason == mint.Refused:
		return unavailable(err)
	}
	p := newProblem(http.StatusServiceUnavailable, "revocations-unavailable", "the revocations cannot be read or written now; retry")
	p.cause, p.retryAfter = err, retryAfter
	return p
}

// revoke revokes a node, a certificate, or everything that was issued on a token.
func (h *handler) revoke(r *call) (response, error) {
	var req api.Revoke
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Revocations == nil {
		return response{}, noRevocations()
	}
	if len(req.Reason) > revocation.MaxReason {
		return response{}, badField("reason", "has %d bytes, want at most %d", len(req.Reason), revocation.MaxReason)
	}
	given := 0
	for _, s := range []string{req.Node, req.Serial, req.Fingerprint, req.TokenID} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		return response{}, badField("node", "%d of node, serial, fingerprint and tokenID given, want exactly one", given)
	}
	if req.TokenID != "" {
		return h.revokeToken(r, req)
	}
	e, warnings, err := h.revocationOf(r, req)
	if err != nil {
		return response{}, err
	}
	known, unknown := h.known(r.Context(), issuance.Query{Node: e.Node}, e.Covers) // they only tell when the revocation ends
	list, err := h.revoked(r, req, []revocation.Entry{e}, known, unknown)
	if err != nil {
		return response{}, err
	}
	list.Warnings = append(list.Warnings, warnings...)
	return object(created(req), list)
}

// created returns the status of a response to a request to revoke.
func created(req api.Revoke) int {
	if req.DryRun {
		return http.StatusOK
	}
	return http.StatusCreated
}

// revocationOf returns the entry that a request describes.
func (h *handler) revocationOf(r *call, req api.Revoke) (e revocation.Entry, warnings []string, err error) {
	switch {
	case req.Node != "":
		if _, err := revocation.NodeKey(req.Node); err != nil {
			return e, nil, badField("node", "%v", err)
		}
		r.log(slog.String("node", req.Node))
		e.Node = req.Node
		return e, h.nodeWarnings(r.Context(), req.Node), nil
	case req.Fingerprint != "":
		if e.Fingerprint, err = revocation.ParseFingerprint(req.Fingerprint); err != nil {
			return e, nil, badField("fingerprint", "%v", err)
		}
		return e, nil, nil
	}
	serial, err := issuance.ParseSerial(req.Serial)
	if err != nil {
		return e, nil, badField("serial", "want a serial number in hexadecimal digits, as 'openssl x509 -noout -serial' prints it")
	}
	issued, err := h.issuedBySerial(r.Context(), serial)
	if err != nil {
		return e, nil, err
	}
	e.Fingerprint = issued.Fingerprint
	return e, nil, nil
}

// nodeWarnings warns of a node name that no Node has, or without a cluster no claim and no certificate. It may be
// misspelt, or its Node was deleted.
func (h *handler) nodeWarnings(ctx context.Context, node string) []string {
	if h.Node == nil {
		if h.Claims == nil || h.Issued == nil {
			return nil
		}
		if _, err := h.Claims.Get(ctx, node); !errors.Is(err, tokens.ErrNotFound) {
			return nil
		}
		if page, err := h.Issued.List(ctx, issuance.Query{Node: node, Limit: 1}); err != nil || len(page.Entries) > 0 {
			return nil
		}
		return []string{"kubejoin has no claim and no certificate of node " + node + "; check the name with 'kubejoin issued list'"}
	}
	if _, err := h.Node(ctx, node); errors.Is(err, tokens.ErrNotFound) {
		return []string{"there is no Node " + node + "; check the name if the Node was not deleted"}
	}
	return nil
}

// issuedBySerial returns the certificate of a serial number, from the issuance record or from those that were issued
// recently.
func (h *handler) issuedBySerial(ctx context.Context, serial string) (revocation.Issued, error) {
	if h.Issued != nil {
		e, err := h.Issued.Get(ctx, serial)
		if err == nil {
			if c, ok := issuedOf(e); ok {
				return c, nil
			}
		} else if !errors.Is(err, issuance.ErrNotFound) {
			return revocation.Issued{}, recordUnavailable(err)
		}
	}
	recent, err := h.requested(ctx)
	if err != nil {
		return revocation.Issued{}, err
	}
	for _, c := range recent {
		if c.Serial == serial {
			return c, nil
		}
	}
	return revocation.Issued{}, newProblem(http.StatusNotFound, "not-issued", "kubejoin knows no certificate with serial number %s; give its fingerprint, which 'openssl x509 -noout -fingerprint -sha256 -in FILE' prints, or revoke its node", serial)
}

// issuedOf returns the certificate of an entry in the issuance record. It is not ok for an entry that has neither the
// certificate nor its fingerprint.
func issuedOf(e issuance.Entry) (c revocation.Issued, ok bool) {
	if chain := pemfile.Presented([]byte(e.Certificate)); len(chain) > 0 {
		return revocation.IssuedOf(e.TokenID, chain[0]), true
	}
	fingerprint, err := revocation.ParseFingerprint(e.Fingerprint)
	if err != nil {
		return c, false
	}
	c = revocation.Issued{TokenID: e.TokenID, Node: e.Node, Serial: e.Serial, Fingerprint: fingerprint, NotAfter: e.NotAfter}
	if tokens.CheckNodeName(c.Node) != nil {
		c.Node = ""
	}
	return c, true
}

func (h *handler) requested(ctx context.Context) ([]revocation.Issued, error) {
	if h.Revocations.Requested == nil {
		return nil, nil
	}
	all, err := h.Revocations.Requested(ctx)
	if err != nil {
		p := newProblem(http.StatusServiceUnavailable, "cluster-unavailable", "the certificate requests of the cluster cannot be read now; retry")
		p.cause, p.retryAfter = err, retryAfter
		return nil, p
	}
	return all, nil
}

// known returns the certificates that match and have not ended, from the issuance record and from those that were
// issued recently.
func (h *handler) known(ctx context.Context, q issuance.Query, match func(revocation.Issued) bool) ([]revocation.Issued, error) {
	recent, err := h.requested(ctx)
	if err != nil {
		return nil, err
	}
	if h.Issued != nil {
		q.Outcome, q.EndsAfter, q.Limit = issuance.Issued, time.Now(), issuance.MaxLimit
		for {
			page, err := h.Issued.List(ctx, q)
			if err != nil {
				return nil, recordUnavailable(err)
			}
			for _, e := range page.Entries {
				if c, ok := issuedOf(e); ok {
					recent = append(recent, c)
				}
			}
			if q.After = page.Next; q.After == "" {
				break
			}
		}
	}
	seen := map[revocation.Fingerprint]bool{}
	return slices.DeleteFunc(recent, func(c revocation.Issued) bool {
		twice := seen[c.Fingerprint]
		seen[c.Fingerprint] = true
		return twice || time.Now().After(c.NotAfter) || !match(c)
	}), nil
}

// revoked stores entries and returns what was stored. known are certificates that may be among those that the entries
// bar; unknown is why they could not be read. If an entry cannot be stored, the others are stored nevertheless.
func (h *handler) revoked(r *call, req api.Revoke, entries []revocation.Entry, known []revocation.Issued, unknown error) (api.RevocationList, error) {
	end, err := h.lastEnd(r.Context())
	if unknown = errors.Join(unknown, err); unknown != nil {
		h.log.Warn("cannot tell when revocations end", "error", foreign.Text(unknown.Error(), foreign.MaxMessage))
		end = time.Time{}
	}
	var all []revocation.Entry
	var errs []error
	var warnings []string
	for _, e := range entries {
		e.Reason, e.By, e.TokenID, e.Until = foreign.Text(req.Reason, revocation.MaxReason), r.user.Name, req.TokenID, e.End(end, h.Revocations.RejoinWindow, known)
		if e.By == inProcess {
			e.By = ""
		}
		if e.Until.IsZero() && len(warnings) == 0 {
			warnings = []string{"kubejoin cannot read now when the last certificate ends, so the revocation stays until 'kubejoin revoke undo'; the log says why"}
		}
		if !req.DryRun {
			if e, err = h.Revocations.Guard.Revoke(r.Context(), e); err != nil {
				errs = append(errs, fmt.Errorf("revoke %s: %w", e.Key(), err))
				continue
			}
			r.log(slog.String("revoked", e.Key().String()))
		}
		all = append(all, e)
	}
	if len(errs) > 0 {
		return api.RevocationList{}, h.revocationsUnavailable(errors.Join(errs...))
	}
	list := revocationsShown(all, req.DryRun)
	list.Warnings = warnings
	return list, nil
}

// lastEnd returns when the last CA ends that may have signed a certificate of a node: those of cluster-info, of
// kube-apiserver's clients and of kubejoin's signers.
func (h *handler) lastEnd(ctx context.Context) (end time.Time, err error) {
	kubeconfig, err := h.ClusterInfo.Config(ctx)
	if err != nil {
		return end, err
	}
	_, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return end, err
	}
	if h.Revocations.ClientCAs != nil {
		clients, err := h.Revocations.ClientCAs(ctx)
		if err != nil {
			return end, err
		}
		cas = append(cas, clients...)
	}
	if h.Revocations.Lifetime != nil {
		end = time.Now().Add(h.Revocations.Lifetime())
	}
	for _, ca := range cas {
		if ca.NotAfter.After(end) {
			end = ca.NotAfter
		}
	}
	return end.UTC().Truncate(time.Second), nil
}

// tokenCached is longer than an Authority caches a token without limits.
const tokenCached = 2 * time.Second

// revokeToken makes a token unusable, revokes the nodes that it admitted, and deletes it. Until it is deleted, the token
// keeps its claims, by which a retry finds the nodes. Each step may be repeated.
func (h *handler) revokeToken(r *call, req api.Revoke) (response, error) {
	ctx, id := r.Context(), req.TokenID
	if err := tokens.CheckID(id); err != nil {
		return response{}, badField("tokenID", "%v", err)
	}
	if err := h.may(r, auth.Access{Verb: "delete", Resource: "tokens"}); err != nil {
		return response{}, err
	}
	r.log(slog.String("token", id))
	existed, err := h.disableToken(ctx, id, req.DryRun)
	if err != nil {
		return response{}, err
	}
	list, err := h.revokeNodesOf(r, req)
	if err == nil && !req.DryRun {
		_, err = h.endToken(ctx, id)
	}
	if err != nil {
		if p := (*problem)(nil); existed && !req.DryRun && errors.As(err, &p) {
			p.Detail = "token " + id + " can no longer be used, but its revocation is incomplete: " + p.Detail + "; then revoke the token again"
		}
		return response{}, err
	}
	switch {
	case len(list.Items) == 0 && !existed:
		return response{}, newProblem(http.StatusNotFound, "no-token", "there is no token %s, and kubejoin knows no certificate that was issued on it", id)
	case len(list.Items) == 0:
		list.Warnings = append(list.Warnings, "kubejoin knows no certificate that was issued on token "+id)
	}
	return object(created(req), list)
}

// disableToken makes a token unusable, waits until no cache has it, and reports whether it existed. A token that is
// malformed, or invalid as another tool has written it, cannot be changed. Kubernetes may still accept it, so disableToken
// deletes it.
func (h *handler) disableToken(ctx context.Context, id string, dryRun bool) (existed bool, err error) {
	record, err := h.Tokens.Get(ctx, id)
	disabled := record.Clone()
	disabled.Disable()
	switch {
	case err != nil || dryRun:
	case record.Problem != nil || disabled.Check() != nil:
		_, err = h.endToken(ctx, id)
	default:
		_, err = h.Tokens.Update(ctx, id, func(record *tokens.Record) error { record.Disable(); return nil })
	}
	switch {
	case errors.Is(err, tokens.ErrNotFound):
		return false, nil
	case err != nil:
		return false, unavailable(err)
	case dryRun:
		return true, nil
	}
	select {
	case <-time.After(tokenCached):
		return true, nil
	case <-ctx.Done():
		return true, ctx.Err()
	}
}

// revokeNodesOf revokes what was issued on a token.
func (h *handler) revokeNodesOf(r *call, req api.Revoke) (api.RevocationList, error) {
	entries, known, err := h.issuedOn(r.Context(), req.TokenID)
	if err != nil {
		return api.RevocationList{}, err
	}
	return h.revoked(r, req, entries, known, nil)
}

// issuedOn returns an entry for each node that a token admitted, and the certificates that are known to be issued on it.
// If another token holds the node's name now, the entries bar only these certificates.
func (h *handler) issuedOn(ctx context.Context, id string) ([]revocation.Entry, []revocation.Issued, error) {
	entries := map[revocation.Key]revocation.Entry{}
	add := func(e revocation.Entry) { entries[e.Key()] = e }
	if h.Claims != nil {
		held, err := h.Claims.HeldBy(ctx, id)
		if err != nil {
			return nil, nil, unavailable(err)
		}
		all, err := h.Claims.List(ctx) // a node without a claim of a token has an identity
		if err != nil {
			return nil, nil, unavailable(err)
		}
		admitted := slices.DeleteFunc(all, func(c tokens.Claim) bool { return c.Identity.TokenID != id })
		for _, c := range append(held, admitted...) {
			add(revocation.Entry{Node: c.Node})
		}
	}
	known, err := h.known(ctx, issuance.Query{TokenID: id}, func(c revocation.Issued) bool { return c.TokenID == id })
	if err != nil {
		return nil, nil, err
	}
	for _, c := range known {
		other, err := h.heldByOther(ctx, c.Node, id)
		switch {
		case err != nil:
			return nil, nil, unavailable(err)
		case other:
			add(revocation.Entry{Fingerprint: c.Fingerprint})
		default:
			add(revocation.Entry{Node: c.Node})
		}
	}
	var all []revocation.Entry
	for _, e := range entries {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b revocation.Entry) int { return strings.Compare(string(a.Key()), string(b.Key())) })
	return all, known, nil
}

// heldByOther reports whether a certificate of a node name bars only itself: another token holds the name, or there is
// no name.
func (h *handler) heldByOther(ctx context.Context, node, id string) (bool, error) {
	if node == "" || h.Claims == nil {
		return node == "", nil
	}
	c, err := h.Claims.Get(ctx, node)
	if errors.Is(err, tokens.ErrNotFound) {
		return false, nil
	}
	return err == nil && !c.Released() && c.TokenID != id, err
}

// endToken deletes a token, and reports whether it existed.
func (h *handler) endToken(ctx context.Context, id string) (bool, error) {
	for {
		record, err := h.Tokens.Get(ctx, id)
		if err == nil {
			err = h.Tokens.Delete(ctx, record)
		}
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, tokens.ErrNotFound):
			return false, nil
		case !errors.Is(err, tokens.ErrConflict):
			return false, unavailable(err)
		}
	}
}

// undoRevocation removes a revocation.
func (h *handler) undoRevocation(r *call) (response, error) {
	var req api.UndoRevocation
	if err := readRequest(r, &req); err != nil {
		return response{}, err
	}
	if h.Revocations == nil {
		return response{}, noRevocations()
	}
	key, err := revocation.ParseKey(chi.URLParam(r.Request, "revoked"))
	if err != nil {
		return response{}, badField("revoked", "%v; a fingerprint begins with sha256:", err)
	}
	r.log(slog.String("revoked", key.String()))
	var e revocation.Entry
	if req.DryRun {
		e, err = h.Revocations.Guard.Store.Get(r.Context(), key)
	} else {
		e, err = h.Revocations.Guard.Undo(r.Context(), key)
	}
	if errors.Is(err, revocation.ErrNotFound) {
		return response{}, newProblem(http.StatusNotFound, "not-revoked", "%s is not revoked", key)
	} else if err != nil {
		return response{}, h.revocationsUnavailable(err)
	}
	shown := revocationShown(e)
	shown.DryRun = req.DryRun
	return object(http.StatusOK, shown)
}
