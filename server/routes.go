package server

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server/auth"
)

// A route is one method of one path.
type route struct {
	method string
	path   string // in chi's syntax; OpenAPI has no pattern after a parameter's name
	name   string // in logs and metrics
	class  httplimit.Class
	// access is the permission that the user needs. The zero Access is for public routes, and for routes whose
	// action checks the caller.
	access auth.Access
	act    action
}

// kind returns the kind of the route's requests, which selects the limits of clients that apply.
func (on route) kind() httplimit.Kind {
	switch {
	case on.class == httplimit.Probes:
		return httplimit.Probe
	case on.class == httplimit.TokenReviews, on.class == httplimit.AccessReviews:
		return httplimit.Reviews
	case on.access == (auth.Access{}) && (on.class == httplimit.Discovery || on.class == httplimit.Others), on.path == machineJoinPath: // nobody can guess a key
		return httplimit.Public
	}
	return httplimit.Authenticated
}

// routes returns all routes of the server.
func (h *handler) routes() []route {
	all := []route{
		{http.MethodPost, "/v1/token/print-join-command", "print-join-command", httplimit.JoinCommands, auth.Access{Verb: "create", Resource: "tokens"}, request(h.printJoinCommand)},
		{http.MethodPost, "/v1/token", "create-token", httplimit.JoinCommands, auth.Access{Verb: "create", Resource: "tokens"}, request(h.createToken)},
		{http.MethodGet, "/v1/token", "list-tokens", httplimit.Lifecycle, auth.Access{Verb: "list", Resource: "tokens"}, request(h.listTokens)},
		{http.MethodGet, "/v1/token/{id:[^-]+}", "get-token", httplimit.Lifecycle, auth.Access{Verb: "get", Resource: "tokens"}, request(h.getToken)},
		{http.MethodDelete, "/v1/token/{id:[^-]+}", "delete-token", httplimit.Lifecycle, auth.Access{Verb: "delete", Resource: "tokens"}, request(h.deleteToken)},
		{http.MethodPost, "/v1/token/{id:[^-]+}/renew", "renew-token", httplimit.Lifecycle, auth.Access{Verb: "update", Resource: "tokens"}, request(h.renewToken)},
		{http.MethodGet, "/v1/claim", "list-claims", httplimit.Lifecycle, auth.Access{Verb: "list", Resource: "claims"}, request(h.listClaims)},
		{http.MethodDelete, "/v1/claim/{node}", "release-claim", httplimit.Lifecycle, auth.Access{Verb: "delete", Resource: "claims"}, request(h.releaseClaim)},
		{http.MethodPost, "/v1/machine", "add-machines", httplimit.Lifecycle, auth.Access{Verb: "create", Resource: "machines"}, request(h.addMachines)},
		{http.MethodGet, "/v1/machine", "list-machines", httplimit.Lifecycle, auth.Access{Verb: "list", Resource: "machines"}, request(h.listMachines)},
		{http.MethodGet, "/v1/pending-machine", "list-pending-machines", httplimit.Lifecycle, auth.Access{Verb: "list", Resource: "machines"}, request(h.listPendingMachines)},
		{http.MethodPost, "/v1/machine/print-join-command", "print-machine-join-command", httplimit.Lifecycle, auth.Access{Verb: "list", Resource: "machines"}, request(h.printMachineJoin)},
		{http.MethodGet, "/v1/machine/{node}", "get-machine", httplimit.Lifecycle, auth.Access{Verb: "get", Resource: "machines"}, request(h.getMachine)},
		{http.MethodDelete, "/v1/machine/{node}", "delete-machine", httplimit.Lifecycle, auth.Access{Verb: "delete", Resource: "machines"}, request(h.deleteMachine)},
		{http.MethodGet, "/v1/issued", "list-issued", httplimit.Lifecycle, auth.Access{Verb: "list", Resource: "issued"}, request(h.listIssued)},
		{http.MethodGet, "/v1/issued/{serial}", "get-issued", httplimit.Lifecycle, auth.Access{Verb: "get", Resource: "issued"}, request(h.getIssued)},
		{http.MethodGet, "/v1/revocation", "list-revocations", httplimit.Lifecycle, auth.Access{Verb: "list", Resource: "revocations"}, request(h.listRevocations)},
		{http.MethodPost, "/v1/revocation", "revoke", httplimit.Lifecycle, auth.Access{Verb: "create", Resource: "revocations"}, request(h.revoke)},
		{http.MethodDelete, "/v1/revocation/{revoked}", "undo-revocation", httplimit.Lifecycle, auth.Access{Verb: "delete", Resource: "revocations"}, request(h.undoRevocation)},
		{http.MethodGet, rotationPath, "ca-rotation", httplimit.Lifecycle, auth.Access{Verb: "get", Resource: "ca-rotations"}, request(h.rotation)},
		{http.MethodPost, rotationPath + "/prepare", "prepare-ca", httplimit.Lifecycle, auth.Access{Verb: "update", Resource: "ca-rotations"}, request(h.prepareCA)},
		{http.MethodPost, rotationPath + "/trust", "trust-ca", httplimit.Lifecycle, auth.Access{Verb: "update", Resource: "ca-rotations"}, h.stepCA("trust")},
		{http.MethodPost, rotationPath + "/switch", "switch-ca", httplimit.Lifecycle, auth.Access{Verb: "update", Resource: "ca-rotations"}, h.stepCA("switch")},
		{http.MethodPost, rotationPath + "/finish", "finish-ca", httplimit.Lifecycle, auth.Access{Verb: "update", Resource: "ca-rotations"}, h.stepCA("finish")},
		{http.MethodPost, rotationPath + "/abort", "abort-ca", httplimit.Lifecycle, auth.Access{Verb: "update", Resource: "ca-rotations"}, h.stepCA("abort")},
		{http.MethodPost, "/v1/explain", "explain-request", httplimit.Lifecycle, auth.Access{Verb: "get", Resource: "explanations"}, request(h.explainRequest)},
		{http.MethodGet, "/v1/explain/{node}", "explain", httplimit.Lifecycle, auth.Access{Verb: "get", Resource: "explanations"}, h.explanation},
		{http.MethodGet, "/v1/join", "list-joins", httplimit.Watches, auth.Access{Verb: "list", Resource: "explanations"}, request(h.listJoins)},
		{http.MethodGet, "/v1/permissions", "list-permissions", httplimit.Lifecycle, auth.Access{}, query(h.listPermissions)},
		{http.MethodPost, turnPath, "take-turn", httplimit.Lifecycle, auth.Access{}, h.takeTurn},
		{http.MethodDelete, turnPath, "give-back-turn", httplimit.Lifecycle, auth.Access{}, h.giveBackTurn},

		{http.MethodGet, "/v1/cluster-info", "cluster-info", httplimit.Discovery, auth.Access{}, query(h.discoveryFile)},
		{http.MethodGet, "/v1/ca", "ca", httplimit.Discovery, auth.Access{}, query(h.ca)},
		{http.MethodGet, discoveryPath, "discovery", httplimit.Discovery, auth.Access{}, h.discovery},
		{http.MethodGet, "/healthz", "healthz", httplimit.Probes, auth.Access{}, h.healthz},
		{http.MethodGet, "/readyz", "readyz", httplimit.Probes, auth.Access{}, h.readyz},
		{http.MethodGet, "/version", "version", httplimit.Others, auth.Access{}, h.version},
		{http.MethodGet, "/openapi.yaml", "openapi", httplimit.Others, auth.Access{}, query(h.openAPIYAML)},
		{http.MethodGet, "/openapi.json", "openapi-json", httplimit.Others, auth.Access{}, query(h.openAPIJSON)},
		{http.MethodGet, "/", "reference", httplimit.Others, auth.Access{}, query(h.reference)},
	}
	if h.Certificates != nil {
		all = append(all, route{http.MethodPost, certificatePath, "certificate", httplimit.Certificates, auth.Access{}, h.certificate})
		all = append(all, route{http.MethodPost, machineJoinPath, "join-machine", httplimit.JoinCommands, auth.Access{}, request(h.joinMachine)})
		all = append(all, route{http.MethodPost, "/v1/rejoin/key", "bind-key", httplimit.Certificates, auth.Access{}, h.bindKey})
	}
	if h.Webhooks.TokenReview != nil {
		for _, version := range reviewVersions {
			all = append(all, route{http.MethodPost, reviewPath(version), "tokenreview", httplimit.TokenReviews, auth.Access{}, h.tokenReview})
		}
	}
	if h.Webhooks.Authorization != nil {
		all = append(all, route{http.MethodPost, accessReviewPath, "subjectaccessreview", httplimit.AccessReviews, auth.Access{}, h.accessReview})
	}
	if h.Console {
		all = append(all, route{http.MethodGet, "/console", "console", httplimit.Others, auth.Access{}, query(h.console)})
		all = append(all, route{http.MethodGet, "/console/{file}", "console-file", httplimit.Others, auth.Access{}, query(h.consoleFile)})
	}
	if h.Status.Metrics != nil {
		all = append(all, route{http.MethodGet, "/metrics", "metrics", httplimit.Others, auth.Access{Verb: "get", Resource: "metrics"}, h.metrics})
	}
	return all
}

// router returns the handler of all routes and of unknown paths and methods.
func (h *handler) router() http.Handler {
	routes, classes := h.routes(), []httplimit.Class{httplimit.Others}
	for _, on := range routes {
		classes = append(classes, on.class)
	}
	slices.Sort(classes)
	limiter := httplimit.New(h.clientRate(), h.userRate(), slices.Compact(classes), h.Registerer, h.log)
	r := chi.NewRouter()
	r.NotFound(h.serve(route{name: "unknown", class: httplimit.Others, act: h.notFound}, limiter))
	r.MethodNotAllowed(h.serve(route{name: "unknown", class: httplimit.Others, act: h.methodNotAllowed}, limiter))
	for _, on := range routes {
		if on.access != (auth.Access{}) {
			on.act = h.allowed(on.access, on.act)
		}
		handle := h.serve(on, limiter)
		r.Method(on.method, on.path, handle)
		if on.method == http.MethodGet {
			r.Method(http.MethodHead, on.path, handle)
		}
	}
	return r
}
