package server

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
)

// DefaultSignTimeout is how long a new token may wait for its signature unless
// Server.SignTimeout says otherwise.
const DefaultSignTimeout = 30 * time.Second

// A Server answers the HTTPS API. Its fields are read when Handler is called and not changed.
type Server struct {
	// Tokens keeps the tokens that are handed out. It is required.
	Tokens tokens.Store
	// ClusterInfo is what joining nodes are to trust. It is required.
	ClusterInfo ClusterInfo
	// Authenticate says who sent a request; nil refuses everybody.
	Authenticate Authenticate
	// Authorize says whether a user may do what a request asks for; nil refuses everything.
	Authorize Authorize
	// TokenReview answers kube-apiserver whose token it was shown; nil has no such path.
	TokenReview *TokenReview

	// Advertise is the HOST:PORT that join commands name for discovery. Empty is the API
	// server that cluster-info names.
	Advertise string
	// SignTimeout is how long a new token may wait for its signature in cluster-info before
	// it is deleted again; zero is DefaultSignTimeout.
	SignTimeout time.Duration
	// SignedBy says, in words for the person who waited in vain, what should be signing
	// cluster-info and where to look. Empty names every component that could.
	SignedBy string

	// Claims keeps the node names that were taken with limited tokens; nil has none, and no
	// /v1/claim.
	Claims tokens.Claims
	// Node reads a Node as it is now, for tokens that replace it. The error wraps
	// tokens.ErrNotFound if there is none of that name. Nil is where there are no Nodes.
	Node func(ctx context.Context, name string) (tokens.NodeRef, error)
	// Explain says why a machine of that name has or has not joined, usually by the Reader of
	// package server/explain/kube. Nil is where there is no cluster, and no /v1/explain.
	Explain func(ctx context.Context, node string) (explain.Explanation, error)
	// Warnings are what whoever makes a token with limits should know, in words: that nothing
	// is at work which would hold anybody to them. Nil is nothing.
	Warnings func(ctx context.Context) []string
	// ShowCauses has problems tell what an operator would look up in the log. It is for a
	// Handler that is called in the process of the one who asks.
	ShowCauses bool

	// Checks are what /readyz asks. None is ready.
	Checks []Check
	// Version is what /version answers.
	Version Version
	// Metrics answers /metrics to those who may get it; nil has no such path.
	Metrics http.Handler

	// Logger is told of every request that was authenticated or failed; nil is nobody.
	Logger *slog.Logger
	// Registerer has the kubejoin_http_* metrics and kubejoin_join_commands_total; nil counts
	// nothing.
	Registerer prometheus.Registerer
}

// ClusterInfo is where the data of the cluster-info ConfigMap is found: clusterinfo.Computed
// with no Kubernetes, or clusterinfo/configmap's ConfigMap or Complete. Where there is not room for
// signatures without end, Room and HasSignature as ConfigMap has them refuse tokens in time.
type ClusterInfo interface {
	// JSON is the ConfigMap as clusterinfo.MarshalConfigMap gives it. The error wraps
	// clusterinfo.ErrNotFound if there is none, and clusterinfo.ErrKubeconfig if it is none that
	// should be passed on. It is asked for by anybody and often: what has
	// not changed should be at hand. Neither side changes the bytes.
	JSON(ctx context.Context) ([]byte, error)
	// WaitSigned returns the kubeconfig in cluster-info as soon as JSON carries a valid
	// signature of it by the token. The error says what was seen instead until ctx ended.
	WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error)
}

// handler is a Server with what is made once for it.
type handler struct {
	Server
	log          *slog.Logger
	failing      atomic.Int32 // checks, when /readyz was asked last
	rounds       rounds
	unsigned     unsigned
	target       atomic.Pointer[target]
	requests     *prometheus.CounterVec
	duration     *prometheus.HistogramVec
	joinCommands *prometheus.CounterVec
	tokenReviews *prometheus.CounterVec
	nobody       tokens.Record // has a token that was told to nobody
}

// Handler makes the handler of the whole API, with bounds on bodies and on the requests that are
// answered at the same time. It is to be served over TLS alone: [Server.HTTPServer] does that,
// and bounds connections and their times as well.
func (s Server) Handler() http.Handler {
	h := &handler{Server: s, log: s.Logger, rounds: rounds{turn: make(chan struct{}, 1)}}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	if h.SignTimeout <= 0 {
		h.SignTimeout = DefaultSignTimeout
	}
	if h.SignedBy == "" {
		h.SignedBy = "kubejoin's bootstrap-signer controller, or kube-controller-manager's bootstrap-signer-controller"
	}
	h.requests = metrics.Counter(s.Registerer, "kubejoin_http_requests_total", "Requests answered, by route and status.", "route", "status")
	h.duration = metrics.Histogram(s.Registerer, "kubejoin_http_request_duration_seconds", "Time to answer a request.", prometheus.DefBuckets, "route")
	h.joinCommands = metrics.Counter(s.Registerer, "kubejoin_join_commands_total", "Join commands asked for, by result.", "result")

	newClass := classes(s.Registerer)
	discovery, joinCommands := newClass("discovery", maxDiscovery), newClass("join-command", maxJoinCommands)
	lifecycle, others := newClass("lifecycle", maxLifecycle), newClass("other", maxOthers)
	r := chi.NewRouter()
	r.NotFound(h.route("unknown", others, h.notFound))
	r.MethodNotAllowed(h.route("unknown", others, h.methodNotAllowed))
	if h.TokenReview != nil {
		h.nobody = tokens.Record{Token: tokens.Generate()}
		h.tokenReviews = metrics.Counter(s.Registerer, "kubejoin_token_reviews_total", "Tokens that kube-apiserver asked about, by result.", "result")
		reviews := newClass("token-review", maxTokenReviews)
		for _, version := range reviewVersions {
			r.Post(reviewPath(version), h.route("tokenreview", reviews, h.tokenReview))
		}
	}
	for _, on := range []struct {
		method, path, name string
		class              *class
		access             Access
		act                action
	}{
		{http.MethodPost, "/v1/token/print-join-command", "print-join-command", joinCommands, Access{Verb: "create", Resource: "tokens"}, h.printJoinCommand},
		{http.MethodPost, "/v1/token", "create-token", joinCommands, Access{Verb: "create", Resource: "tokens"}, h.createToken},
		{http.MethodGet, "/v1/token", "list-tokens", lifecycle, Access{Verb: "list", Resource: "tokens"}, h.listTokens},
		{http.MethodGet, "/v1/token/{id:[^-]+}", "get-token", lifecycle, Access{Verb: "get", Resource: "tokens"}, h.getToken},
		{http.MethodDelete, "/v1/token/{id:[^-]+}", "delete-token", lifecycle, Access{Verb: "delete", Resource: "tokens"}, h.deleteToken},
		{http.MethodPost, "/v1/token/{id:[^-]+}/renew", "renew-token", lifecycle, Access{Verb: "update", Resource: "tokens"}, h.renewToken},
		{http.MethodGet, "/v1/claim", "list-claims", lifecycle, Access{Verb: "list", Resource: "claims"}, h.listClaims},
		{http.MethodDelete, "/v1/claim/{node}", "release-claim", lifecycle, Access{Verb: "delete", Resource: "claims"}, h.releaseClaim},
		{http.MethodGet, "/v1/explain/{node}", "explain", lifecycle, Access{Verb: "get", Resource: "explanations"}, h.explanation},
	} {
		handle := h.route(on.name, on.class, h.allowed(on.access, on.act))
		r.Method(on.method, on.path, handle)
		if on.method == http.MethodGet {
			r.Method(http.MethodHead, on.path, handle)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		r.Method(method, discoveryPath, h.route("discovery", discovery, h.discovery))
		r.Method(method, "/healthz", h.route("healthz", others, h.healthz))
		r.Method(method, "/readyz", h.route("readyz", others, h.readyz))
		r.Method(method, "/version", h.route("version", others, h.version))
		if h.Metrics != nil {
			r.Method(method, "/metrics", h.route("metrics", others, h.allowed(Access{Verb: "get", Resource: "metrics"}, h.metrics)))
		}
	}
	return r
}
