package server

import (
	"cmp"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// explanation explains why a machine has or has not joined, as JSON or as text.
func (h *handler) explanation(r *call) (web.Response, error) {
	var req struct {
		Format string `json:"format"`
	}
	if err := web.ReadRequest(r.Request, &req); err != nil {
		return web.Response{}, err
	}
	if req.Format != "" && req.Format != "json" && req.Format != "text" {
		return web.Response{}, web.BadField("format", "%.40q given, want json or text", req.Format)
	}
	node := chi.URLParam(r.Request, "node")
	r.log(slog.String("node", node))
	e, err := h.operations.Explain(r.Context(), node)
	if err != nil {
		return web.Response{}, err
	}
	if req.Format == "text" {
		return web.Response{ContentType: "text/plain; charset=utf-8", Body: []byte(e.Text())}, nil
	}
	return web.Object(http.StatusOK, e)
}

// listJoins returns how far machines have joined.
func (h *handler) listJoins(r *call, req api.ListJoins) (web.Response, error) {
	list, err := h.operations.ListJoins(r.Context(), req, h.ending)
	if err != nil && r.Context().Err() != nil { // the client no longer waits, which is no failure: nothing has changed
		list, err = api.JoinList{APIVersion: api.GroupVersion, Kind: api.KindJoinList, Items: []api.Join{}, Counts: map[api.JoinState]int{}, Cursor: cmp.Or(req.After, "0")}, nil
	}
	return shown(list, err)
}

// explainRequest explains what each rule would decide about a certificate request.
func (h *handler) explainRequest(r *call, req api.ExplainRequest) (web.Response, error) {
	r.log(slog.String("csr", req.CSR))
	return shown(h.operations.ExplainRequest(r.Context(), req, func(given *certificates.CertificateSigningRequest) error {
		return h.mayExplain(r, given.Spec.Username, given.Spec.Groups)
	}))
}

// mayExplain returns a problem if the caller may not learn the permissions of a requester. The caller writes
// the object and could name any requester in it. Without an extra permission, callers may name themselves,
// nodes, bootstrap tokens or no requester.
func (h *handler) mayExplain(r *call, name string, groups []string) error {
	caller := r.user
	var known func(group string) bool
	switch {
	case name == "":
		known = func(string) bool { return false }
	case name == caller.Name:
		known = func(group string) bool { return slices.Contains(caller.Groups, group) }
	case strings.HasPrefix(name, tokens.NodeUserPrefix):
		known = func(group string) bool { return group == tokens.NodesGroup }
	case isBootstrapName(name):
		known = isBootstrapGroup
	}
	if known != nil && !slices.ContainsFunc(groups, func(group string) bool { return group != tokens.AuthenticatedGroup && !known(group) }) {
		return nil
	}
	return h.checkExtraPermission(r, extraPermission{
		auth.Access{Verb: "impersonate", Resource: "explanations", Name: name}, "object",
		"which is required to explain an object whose requester is not you, a node or a bootstrap token; for an existing request, send its name in csr instead",
	})
}
