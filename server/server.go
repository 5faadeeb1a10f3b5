package server

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/batch"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/web"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/cache"
)

// A Server describes the HTTPS API. Handler and HTTPServer copy its fields: later changes have no effect.
type Server struct {
	// Tokens stores the tokens. It is required.
	Tokens tokens.Store
	// Claims stores the claims: node names taken with limited tokens. If it is nil, /v1/claim returns 404.
	Claims tokens.Claims
	// ClusterInfo provides the cluster-info that joining nodes trust. It is required.
	ClusterInfo ClusterInfo
	// Callers authenticates and authorizes the users. The zero Callers refuses every request that needs a user.
	Callers Callers
	// Minting configures how tokens and join commands are made.
	Minting Minting
	// Limits limits clients and users. The zero Limits has the defaults.
	Limits Limits
	// Certificates serves POST /v1/certificate and /v1/rejoin/key. With nil, these paths return 404.
	Certificates *Certificates
	// Webhooks serves the reviews of kube-apiserver. The zero Webhooks serves none.
	Webhooks Webhooks
	// Cluster has what only a Kubernetes cluster can provide. The zero Cluster is for a server without one.
	Cluster Cluster
	// IssuanceRecord is the issuance record. If it is nil, /v1/issued returns 404.
	IssuanceRecord issuance.Store
	// Revocations revokes nodes and certificates. If it is nil, /v1/revocation returns 404. It usually has the Tokens,
	// Claims, ClusterInfo, IssuanceRecord and Node of the Server.
	Revocations *desk.Revoker
	// Rotations rotates CAs. If it is nil, /v1/ca/CA/rotation returns 404. The ExpireTokens of its Desk is usually
	// [operations.ExpireTokens].
	Rotations *operations.Rotations
	// MaxRemainingLifetime returns how long any certificate may still be valid. It is for kubejoin without a cluster:
	// after a release, the store keeps the past of the claim for that long, so that its certificates cannot be
	// renewed. With a cluster it is nil, and only the release of a claim with a certificate duration leaves a past.
	MaxRemainingLifetime func() time.Duration
	// Console serves the page at /console. Without it, this path and those below it return 404.
	Console bool
	// Status has what the server reports about itself: /readyz, /version and /metrics.
	Status Status
	// Logger logs every request: successful POSTs and failures at level info or error, the rest at level debug.
	// For failures without a user, it logs only a sample above level debug. Nil logs nothing.
	Logger *slog.Logger
	// Registerer registers the metrics kubejoin_http_*, kubejoin_join_commands_total and, with a
	// TokenReview, kubejoin_token_reviews_total. Nil registers none.
	Registerer prometheus.Registerer

	ending <-chan struct{} // closed when the HTTPServer shuts down
}

// Callers authenticates and authorizes the users of a [Server].
type Callers struct {
	// Authenticate returns the user who sent a request; nil refuses every request that needs a user. Use
	// [auth.TokenFile], [auth.ClientCertificate], [auth.AnyOf], [auth.HeaderOrCertificate], package
	// server/auth/kubeauth, which calls an API server, or a custom function. The server refuses users without a
	// name and users of bootstrap tokens, regardless of Authorize.
	Authenticate auth.Authenticate
	// Authorize decides whether a user has a permission; nil denies all. Use [auth.AllowGroup], RBAC by
	// server/auth/kubeauth, or a custom function. docs/http-api.md lists the permissions: one Access for
	// each path, and more for a token that may do more than the default.
	Authorize auth.Authorize
}

// Minting configures how a [Server] makes tokens and join commands.
type Minting struct {
	// Advertise is the HOST:PORT for discovery in join commands. If it is empty, join commands name
	// the API server of cluster-info.
	Advertise string
	// SignTimeout is how long a request waits for the signature of a new token in cluster-info. After
	// that, a request for a join command deletes its token. Zero or less is mint.DefaultSignTimeout.
	SignTimeout time.Duration
	// SignedBy names the component that should sign cluster-info, and where to look. It appears in the
	// error message after SignTimeout. Empty names every component that could sign.
	SignedBy string
	// UploadCertificates uploads the certificates that control planes share, for join commands of control planes. It is
	// usually Upload of an Uploader of package clusterinfo/kubeadmcerts. Nil refuses such requests.
	UploadCertificates func(ctx context.Context) (joinformat.Upload, error)
	// Warnings returns warnings for the user who creates the token, for example that nothing enforces
	// its limits or that the CA expires soon. Nil adds no warnings.
	Warnings func(ctx context.Context, made tokens.Record) []string
}

// Limits limits the clients and users of a [Server].
type Limits struct {
	// ClientRate is how many requests one client may send and, with HTTPServer, how many connections
	// it may open. A client is an IP address, or the /64 network of an IPv6 address. The zero Rate is
	// DefaultClientQPS and DefaultClientBurst. Two more limits of clients apply: a client may send 100
	// credentials that are not accepted, then 10 a second, and it may hold at most as many slots for
	// requests and connections as are free. A request beyond a limit gets 429. A negative rate
	// disables all limits of clients, for clients that share one address, for example behind a proxy.
	// docs/abuse.md has the reasons.
	ClientRate Rate
	// UserRate is how many requests one user may send from one client. A user is a name from
	// Authenticate, a client certificate or a bootstrap token. Without limits of clients, it applies to
	// all requests of a user, and a user may hold at most as many slots as are free. The zero Rate is
	// DefaultUserQPS and DefaultUserBurst. A negative rate disables both limits.
	UserRate Rate
	// UserTokens is how many unexpired tokens one user may have created, over all replicas. Zero is
	// mint.DefaultUserTokens, and a negative number is unlimited. A request beyond it gets 507.
	UserTokens int
	// MaxTokenTTL is the longest lifetime that a user may give a token, from now, without the permission to
	// create tokens/unlimited, or to update them for a renewal. Zero is DefaultMaxTokenTTL, and a negative
	// duration is unlimited. A request beyond it gets 403.
	MaxTokenTTL time.Duration
	// MaxTokenNodes is the highest node limit of a new token without the permission to create
	// tokens/unlimited. Zero is DefaultMaxTokenNodes, and a negative number is unlimited. A request beyond
	// it gets 403.
	MaxTokenNodes int
}

// Webhooks are the webhooks of kube-apiserver that a [Server] serves.
type Webhooks struct {
	// TokenReview serves the token reviews of kube-apiserver; nil disables their paths.
	TokenReview *TokenReview
	// Authorization serves the subject access reviews of kube-apiserver; nil disables their path.
	Authorization *Authorization
}

// Cluster has what only a Kubernetes cluster can provide. Each field is zero without a cluster.
type Cluster struct {
	// Node reads the current Node of a name, for tokens that replace it. The error wraps
	// tokens.ErrNotFound if there is no such Node.
	Node func(ctx context.Context, name string) (tokens.NodeRef, error)
	// Owners allows tokens to have an owner. Set it if Tokens keeps tokens in Secrets.
	Owners bool
	// NodeProperties returns why Nodes do not get the properties of their token, as an error about a field of the
	// request. With nil, tokens have no properties of Nodes.
	NodeProperties func(ctx context.Context, field string) error
	// Turns makes control planes join one after the other. With nil, the path returns 404.
	Turns Turns
	// Explain explains why a machine of that name has or has not joined, usually by the Reader of
	// package server/explain/kube. With nil, GET /v1/explain/NODE returns 404.
	Explain func(ctx context.Context, node string) (api.NodeExplanation, error)
	// ExplainRequest explains what kubejoin would do about a CertificateSigningRequest and why. It
	// explains the request of that name, or the object if one is given. The error wraps
	// tokens.ErrNotFound if there is no request of that name. It is usually Requests of package
	// server/explain/kube. With nil, POST /v1/explain returns 404.
	ExplainRequest func(ctx context.Context, name string, object *certificates.CertificateSigningRequest) (api.RequestExplanation, error)
	// Joins lists the machines that join, or only the one with a node name, or those of a token ID. It is usually List of a
	// Joins of package server/explain/kube. With nil, GET /v1/join returns 404.
	Joins func(ctx context.Context, node, token string) (api.JoinList, error)
}

// Status has what a [Server] reports about itself.
type Status struct {
	// Checks are the checks of /readyz. Without checks, /readyz reports ready.
	Checks []Check
	// Version is the response of /version.
	Version api.Version
	// Metrics serves /metrics to users with the permission; nil disables the path.
	Metrics http.Handler
}

// ClusterInfo provides the data of the cluster-info ConfigMap. Use clusterinfo.Computed without Kubernetes, or
// ConfigMap or Complete of package clusterinfo/configmap. An implementation that can hold only a limited number
// of signatures should also be a [mint.Bounded].
type ClusterInfo interface {
	// The requirements of JSON on errors, caching and bytes also apply to Config. But Config need not validate
	// the kubeconfig, because the server validates each new kubeconfig. When WaitSigned returns, the result of
	// JSON has the signature.
	mint.ClusterInfo
	// JSON returns the ConfigMap as clusterinfo.MarshalConfigMap encodes it. The error wraps
	// clusterinfo.ErrNotFound if there is no cluster-info, and clusterinfo.ErrKubeconfig if its kubeconfig must
	// not be served. Any client can cause calls of JSON, so it should cache its result. Neither the server nor
	// the implementation may change the bytes.
	JSON(ctx context.Context) ([]byte, error)
}

// handler is a Server with the state of one Handler.
type handler struct {
	Server
	log                *slog.Logger
	unauthenticatedLog *rate.Limiter // limits log lines of unauthenticated requests
	uploads            *rate.Limiter // limits uploads of control plane certificates
	operations         *operations.Operations
	readiness          readiness
	documents          documents
	results            results
	pending            pendingMachines
	permissions        *cache.LRUExpireCache // api.PermissionList by user
	absentToken        tokens.Record         // checked in place of a token that does not exist; see bootstrapUser
}

// readiness is the state of /readyz.
type readiness struct {
	failing  atomic.Int32                    // failed checks in the last response
	checking batch.Queue[struct{}, *[]error] // runs of the checks
	passes   *prometheus.GaugeVec
}

// documents are the public documents.
type documents struct {
	published                    atomic.Pointer[publicKubeconfig]
	configMap, kubeconfig        web.Document
	caPEM, caSet                 web.Document // the CAs in PEM, and as JSON
	openAPI, openAPIJSON         web.Document
	referencePage, referenceText web.Document
}

// results count the outcomes of requests.
type results struct {
	requests                                      *prometheus.CounterVec
	duration                                      *prometheus.HistogramVec
	joinCommands, certificates, rejoins, machines *prometheus.CounterVec
	tokenReviews, accessReviews                   *prometheus.CounterVec
}

// newResults registers the metrics about requests.
func newResults(r prometheus.Registerer) results {
	return results{
		requests:      metrics.Counter(r, "kubejoin_http_requests_total", "HTTP requests, by route and status.", "route", "status"),
		duration:      metrics.Histogram(r, "kubejoin_http_request_duration_seconds", "Time to respond to an HTTP request, by route.", prometheus.DefBuckets, "route"),
		joinCommands:  metrics.Counter(r, "kubejoin_join_commands_total", "Requests for a join command, by result: ok or failed.", "result"),
		certificates:  metrics.Counter(r, "kubejoin_http_certificates_total", "Certificate requests over HTTPS, by result: issued, refused, not_permitted, waits or failed (an error of kubejoin). Unauthenticated and malformed requests are not counted.", "result"),
		rejoins:       metrics.Counter(r, "kubejoin_rejoins_total", "Requests of nodes that have proven a key to rejoin, by result: issued (a certificate), bound (a key), waits, failed (an error of kubejoin), or the reason of the refusal.", "result"),
		machines:      metrics.Counter(r, "kubejoin_machine_proofs_total", "Requests of machines that have proven a key to join, by result: granted, unknown (no machine has the key), cloned (proofs for two minutes while the Node is Ready), failed (an error of kubejoin), or the reason of the refusal.", "result"),
		tokenReviews:  metrics.Counter(r, "kubejoin_token_reviews_total", "Token reviews from kube-apiserver, by result: authenticated, refused or failed.", "result"),
		accessReviews: metrics.Counter(r, "kubejoin_authorization_reviews_total", "Subject access reviews from kube-apiserver, by result: denied, no_opinion or failed.", "result"),
	}
}

// Handler returns a handler of the whole API, with limits on bodies and on requests in flight. Serve it
// only over TLS. [Server.HTTPServer] does that and also limits connections and their times. The error names
// a required field that is missing.
func (s Server) Handler() (http.Handler, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	metrics.Gauge(s.Registerer, "kubejoin_build_info", "Always 1; the label has the version of kubejoin.", "version").WithLabelValues(s.Status.Version.Version).Set(1)
	h := &handler{
		Server: s, log: s.logger(), results: newResults(s.Registerer),
		unauthenticatedLog: rate.NewLimiter(unauthenticatedLogQPS, unauthenticatedLogBurst),
		uploads:            s.Limits.uploads(),
		readiness:          readiness{passes: metrics.Gauge(s.Registerer, "kubejoin_ready", "1 if a check of /readyz passes, else 0.", "check")},
		absentToken:        tokens.Record{Token: tokens.Generate()},
		permissions:        cache.NewLRUExpireCache(maxPermissions),
	}
	h.operations = &operations.Operations{
		Minter: &mint.Minter{
			Tokens: s.Tokens, ClusterInfo: s.ClusterInfo, Claims: s.Claims, Endpoint: s.Minting.Advertise,
			SignTimeout: s.signTimeout(), SignedBy: s.Minting.SignedBy, UserTokens: s.Limits.UserTokens, Warnings: s.Minting.Warnings,
		},
		Readers:     operations.Readers{Node: s.Cluster.Node, NodeProperties: s.Cluster.NodeProperties},
		ClusterInfo: s.ClusterInfo, Claims: s.Claims, UserMachines: max(cmp.Or(s.Limits.UserTokens, mint.DefaultUserTokens), 0), Revocations: s.Revocations, ExplainNode: s.Cluster.Explain, ExplainCSR: s.Cluster.ExplainRequest, Joins: s.Cluster.Joins, MaxRemainingLifetime: s.MaxRemainingLifetime, Why: h.why,
	}
	if s.Cluster.Owners {
		h.operations.Owner = operations.GivenOwner
	}
	return h.router(), nil
}

// check returns an error that names missing required fields.
func (s Server) check() error {
	var missing []string
	need := func(field string, given bool) {
		if !given {
			missing = append(missing, field)
		}
	}
	need("Tokens", s.Tokens != nil)
	need("ClusterInfo", s.ClusterInfo != nil)
	if c := s.Certificates; c != nil {
		need("Certificates.Authority", c.Authority != nil)
		need("Certificates.Authority.Facts", c.Authority == nil || c.Authority.Facts != nil)
	}
	if a := s.Webhooks.Authorization; a != nil {
		need("Webhooks.Authorization.Revoked", a.Revoked != nil)
	}
	if d := s.Revocations; d != nil {
		need("Revocations.Guard", d.Guard != nil)
		need("Revocations.Tokens", d.Tokens != nil)
		need("Revocations.ClusterInfo", d.ClusterInfo != nil)
		need("Revocations.Claims", d.Claims != nil || s.Claims == nil)
		need("Revocations.IssuanceRecord", d.IssuanceRecord != nil || s.IssuanceRecord == nil)
	}
	if r := s.Rotations; r != nil {
		d := cmp.Or(r.Desk, &rotation.Desk{})
		need("Rotations.Desk.Store", d.Store != nil)
		need("Rotations.Desk.Keys", d.Keys != nil)
		need("Rotations.Desk.Observer", d.Observer != nil)
		need("Rotations.Desk.Trusted", d.Trusted != nil)
	}
	for _, c := range s.Status.Checks {
		need("Status.Checks: Ready of "+c.Name, c.Ready != nil)
	}
	if len(missing) > 0 {
		return fmt.Errorf("server.Server lacks required fields: %s", strings.Join(missing, ", "))
	}
	return nil
}

// logger returns the Logger, or a logger that discards everything.
func (s Server) logger() *slog.Logger { return cmp.Or(s.Logger, slog.New(slog.DiscardHandler)) }

// signTimeout returns the SignTimeout, or its default.
func (s Server) signTimeout() time.Duration {
	return cmp.Or(max(s.Minting.SignTimeout, 0), mint.DefaultSignTimeout)
}
