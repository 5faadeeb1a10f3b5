package server

import (
	"net/http"

	"github.com/go-chi/chi/v5"
)

// A route is one method of one path.
type route struct {
	method string
	path   string // as chi and OpenAPI have it, but for what stands behind the name of a parameter
	name   string // in logs and metrics
	class  string // whose room it takes
	// access is what the user must be allowed; the zero Access is for routes that know by themselves
	// who may ask, and those that anybody may.
	access Access
	act    action
}

// kind is what is asked of its requests before their work.
func (on route) kind() kind {
	switch {
	case on.class == classProbe:
		return probe
	case on.class == classTokenReview:
		return reviews
	case on.access == (Access{}) && (on.class == classDiscovery || on.class == classOther):
		return public
	}
	return authenticated
}

// routes are all that the server answers.
func (h *handler) routes() []route {
	all := []route{
		{http.MethodPost, "/v1/token/print-join-command", "print-join-command", classJoinCommand, Access{Verb: "create", Resource: "tokens"}, h.printJoinCommand},
		{http.MethodPost, "/v1/token", "create-token", classJoinCommand, Access{Verb: "create", Resource: "tokens"}, h.createToken},
		{http.MethodGet, "/v1/token", "list-tokens", classLifecycle, Access{Verb: "list", Resource: "tokens"}, h.listTokens},
		{http.MethodGet, "/v1/token/{id:[^-]+}", "get-token", classLifecycle, Access{Verb: "get", Resource: "tokens"}, h.getToken},
		{http.MethodDelete, "/v1/token/{id:[^-]+}", "delete-token", classLifecycle, Access{Verb: "delete", Resource: "tokens"}, h.deleteToken},
		{http.MethodPost, "/v1/token/{id:[^-]+}/renew", "renew-token", classLifecycle, Access{Verb: "update", Resource: "tokens"}, h.renewToken},
		{http.MethodGet, "/v1/claim", "list-claims", classLifecycle, Access{Verb: "list", Resource: "claims"}, h.listClaims},
		{http.MethodDelete, "/v1/claim/{node}", "release-claim", classLifecycle, Access{Verb: "delete", Resource: "claims"}, h.releaseClaim},
		{http.MethodGet, "/v1/issued", "list-issued", classLifecycle, Access{Verb: "list", Resource: "issued"}, h.listIssued},
		{http.MethodGet, "/v1/issued/{serial}", "get-issued", classLifecycle, Access{Verb: "get", Resource: "issued"}, h.getIssued},
		{http.MethodPost, "/v1/explain", "explain-request", classLifecycle, Access{Verb: "get", Resource: "explanations"}, h.explainRequest},
		{http.MethodGet, "/v1/explain/{node}", "explain", classLifecycle, Access{Verb: "get", Resource: "explanations"}, h.explanation},

		{http.MethodGet, "/v1/cluster-info", "cluster-info", classDiscovery, Access{}, h.discoveryFile},
		{http.MethodGet, "/v1/ca", "ca", classDiscovery, Access{}, h.ca},
		{http.MethodGet, discoveryPath, "discovery", classDiscovery, Access{}, h.discovery},
		{http.MethodGet, "/healthz", "healthz", classProbe, Access{}, h.healthz},
		{http.MethodGet, "/readyz", "readyz", classProbe, Access{}, h.readyz},
		{http.MethodGet, "/version", "version", classOther, Access{}, h.version},
		{http.MethodGet, "/openapi.yaml", "openapi", classOther, Access{}, h.openAPIYAML},
		{http.MethodGet, "/openapi.json", "openapi-json", classOther, Access{}, h.openAPIJSON},
		{http.MethodGet, "/", "reference", classOther, Access{}, h.reference},
	}
	if h.Certificates != nil {
		all = append(all, route{http.MethodPost, certificatePath, "certificate", classCertificate, Access{}, h.certificate})
	}
	if h.TokenReview != nil {
		for _, version := range reviewVersions {
			all = append(all, route{http.MethodPost, reviewPath(version), "tokenreview", classTokenReview, Access{}, h.tokenReview})
		}
	}
	if h.Metrics != nil {
		all = append(all, route{http.MethodGet, "/metrics", "metrics", classOther, Access{Verb: "get", Resource: "metrics"}, h.metrics})
	}
	return all
}

// router answers all routes.
func (h *handler) router() http.Handler {
	routes, used := h.routes(), map[string]bool{classOther: true}
	for _, on := range routes {
		used[on.class] = true
	}
	classes := newClasses(h.Registerer, used)
	r := chi.NewRouter()
	r.NotFound(h.route("unknown", public, classes[classOther], h.notFound))
	r.MethodNotAllowed(h.route("unknown", public, classes[classOther], h.methodNotAllowed))
	for _, on := range routes {
		act := on.act
		if on.access != (Access{}) {
			act = h.allowed(on.access, act)
		}
		handle := h.route(on.name, on.kind(), classes[on.class], act)
		r.Method(on.method, on.path, handle)
		if on.method == http.MethodGet {
			r.Method(http.MethodHead, on.path, handle)
		}
	}
	return r
}
