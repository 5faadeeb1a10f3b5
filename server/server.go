package server

import (
	"context"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	certificates "k8s.io/api/certificates/v1"
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
	// Authenticate says who sent a request; nil refuses everybody. [auth.TokenFile], [auth.ClientCertificate],
	// [auth.AnyOf] and [auth.HeaderOrCertificate] are ways, and package server/auth/kubeauth asks an API server; an
	// installer may have its own. Users without a name, and those of bootstrap tokens, are refused
	// whatever Authorize says.
	Authenticate auth.Authenticate
	// Authorize says whether a user may do what a request asks for; nil refuses everything. [auth.AllowGroup]
	// is one, and server/auth/kubeauth has RBAC's. docs/access.md lists what is asked: one Access for each
	// path, and for a token more of them, by what it may be.
	Authorize auth.Authorize
	// TokenReview answers kube-apiserver whose token it was shown; nil has no such path.
	TokenReview *TokenReview
	// Certificates answers POST /v1/certificate; nil has no such path.
	Certificates *Certificates

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
	// Longest is how long certificates may still be valid where there are no Nodes: a name that is
	// released is remembered for as long, so that its certificates are not renewed. Nil is where
	// there are Nodes, and the same is done for claims of a short lifetime alone.
	MaxRemainingLifetime func() time.Duration
	// Issued is the issuance record; nil keeps none that could be asked, and no /v1/issued.
	Issued issuance.Store
	// Node reads a Node as it is now, for tokens that replace it. The error wraps
	// tokens.ErrNotFound if there is none of that name. Nil is where there are no Nodes.
	Node func(ctx context.Context, name string) (tokens.NodeRef, error)
	// Explain says why a machine of that name has or has not joined, usually by the Reader of
	// package server/explain/kube. Nil is where there is no cluster, and no /v1/explain.
	Explain func(ctx context.Context, node string) (api.NodeExplanation, error)
	// ExplainRequest says what would be done about a certificate request and why: about the one of
	// that name, or about the object if one is given. The error wraps tokens.ErrNotFound if there
	// is none of that name. It is usually Requests of package server/explain/kube; nil is where
	// there is no cluster.
	ExplainRequest func(ctx context.Context, name string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error)
	// Warnings are what whoever makes that token should know, in words: that nothing is at work
	// which would hold anybody to its limits, that the CA is near its end, and the like. Nil is
	// nothing.
	Warnings func(ctx context.Context, made tokens.Record) []string
	// ShowCauses has problems tell what an operator would look up in the log. It is for a
	// Handler that is called in the process of the one who asks.
	ShowCauses bool

	// ClientRate is how many requests one client may send and, with HTTPServer, how many connections it may open. A client is
	// an IP address, or the /64 network of an IPv6 address. Two more limits of clients come with it: 100 credentials that are
	// not accepted and 10 more a second, and of slots for requests and connections no more than are free. The zero Rate is
	// DefaultClientQPS and DefaultClientBurst. A negative one switches all limits of clients off, for clients that share one
	// address, as behind a proxy. A request beyond a limit gets 429. docs/security-model.md has the reasons.
	ClientRate Rate
	// UserRate is how many requests one user may send: a name that Authenticate, a client certificate or a bootstrap token
	// gives. A user has no more slots than are free, as a client. The zero Rate is DefaultUserQPS and DefaultUserBurst, and
	// a negative one switches both limits off.
	UserRate Rate

	// UserTokens is how many tokens that are alive one user may have made, over all replicas. Zero is
	// DefaultUserTokens, and less than zero no limit. What exceeds it is answered 507.
	UserTokens int

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
	// Config is the kubeconfig in it alone, with the errors and the terms of JSON. It need not be
	// one that should be passed on: the server looks at each new one.
	Config(ctx context.Context) (kubeconfig []byte, err error)
	// WaitSigned returns the kubeconfig in cluster-info as soon as JSON carries a valid
	// signature of it by the token. The error says what was seen instead until ctx ended.
	WaitSigned(ctx context.Context, t tokens.Token) (kubeconfig []byte, err error)
}

// handler is a Server with what is made once for it.
type handler struct {
	Server
	log                *slog.Logger
	limiter            *httplimit.Limiter
	unauthenticatedLog *rate.Limiter // lines of the log about them
	failing            atomic.Int32  // checks, when /readyz was asked last
	rounds             rounds
	unsigned           pendingSignatures
	counts             tokenCounts
	target             atomic.Pointer[target]
	published          atomic.Pointer[publicKubeconfig]
	discovered         publicDocument // the ConfigMap
	kubeconfig         publicDocument
	caPEM, caSet       publicDocument // the CAs in PEM, and as JSON

	described, describedJSON     publicDocument // openapi.yaml
	referencePage, referenceText publicDocument
	requests                     *prometheus.CounterVec
	duration                     *prometheus.HistogramVec
	joinCommands                 *prometheus.CounterVec
	tokenReviews                 *prometheus.CounterVec
	certificates                 *prometheus.CounterVec
	absentToken                  tokens.Record // has a token that was told to nobody
}

// Handler makes the handler of the whole API, with bounds on bodies and on the requests that are
// answered at the same time. It is to be served over TLS alone: [Server.HTTPServer] does that,
// and bounds connections and their times as well.
func (s Server) Handler() http.Handler {
	h := &handler{Server: s, log: s.Logger, rounds: rounds{turn: make(chan struct{}, 1)}}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.unauthenticatedLog = rate.NewLimiter(unauthenticatedLogQPS, unauthenticatedLogBurst)
	if h.SignTimeout <= 0 {
		h.SignTimeout = DefaultSignTimeout
	}
	if h.SignedBy == "" {
		h.SignedBy = "kubejoin's bootstrap-signer controller, or kube-controller-manager's bootstrap-signer-controller"
	}
	h.requests = metrics.Counter(s.Registerer, "kubejoin_http_requests_total", "Requests answered, by route and status.", "route", "status")
	h.duration = metrics.Histogram(s.Registerer, "kubejoin_http_request_duration_seconds", "Time to answer a request.", prometheus.DefBuckets, "route")
	h.joinCommands = metrics.Counter(s.Registerer, "kubejoin_join_commands_total", "Join commands asked for, by result.", "result")

	if h.Certificates != nil {
		h.certificates = metrics.Counter(s.Registerer, "kubejoin_http_certificates_total", "Certificates asked for over HTTPS, by result: issued, refused, not_permitted, waits or failed, which is by kubejoin's own fault. Who is not known and what cannot be read is not counted.", "result")
	}
	if h.TokenReview != nil {
		h.tokenReviews = metrics.Counter(s.Registerer, "kubejoin_token_reviews_total", "Tokens that kube-apiserver asked about, by result.", "result")
	}
	h.absentToken = tokens.Record{Token: tokens.Generate()}
	return h.router()
}

// InProcess makes the handler for a client in this process that may do everything, as package server/client's InProcess asks it:
// it authenticates and authorizes nobody, and has no rates and no limit on tokens. What fails says why in full, as with
// ShowCauses. Never serve it.
func (s Server) InProcess() http.Handler {
	s.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{Name: "in process"}, nil }
	s.Authorize = func(*http.Request, auth.User, auth.Access) error { return nil }
	s.ClientRate, s.UserRate = Rate{QPS: -1}, Rate{QPS: -1}
	s.UserTokens = -1
	s.ShowCauses = true
	return s.Handler()
}
