package daemon

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/kube/nodeproperties"
	"github.com/kubejoin/kubejoin/internal/kube/tokenwarning"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/controlplane/etcd"
	"github.com/kubejoin/kubejoin/server/controlplane/leases"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	authorization "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
)

// A connection is a service with clients for an API server.
type connection struct {
	*service
	ClusterOptions

	config    *rest.Config
	apiServer *apiServer
	client    kubernetes.Interface
	// watch is the context of the watches behind the HTTPS API. A standby replica also serves this API.
	watch context.Context
	// election is nil without leader election.
	election *leader.Election
	// working is the client of the controllers. With leader election, it sends writes only while this replica leads.
	working kubernetes.Interface
	events  events
	failed  failedwrites.Log
	// patchesNodes is set if kubejoin may patch Nodes.
	patchesNodes atomic.Bool
}

// A cluster has the parts of a service that keeps tokens and cluster-info in Kubernetes and runs the controllers.
type cluster struct {
	*connection
	stores
	nodes    *kubefacts.NodeCache
	rotation *clusterRotation
	revoked  *configmaps.List
	trust    trust
	ca       *clusterCA // nil without a CA key
	// configured is nil without a signer configuration.
	configured *configured
	info       *configmap.ConfigMap
}

// onCluster builds the site of a kubejoin with a cluster.
func (s *service) onCluster(ctx context.Context, lines issuance.Log) (*site, error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	c, err := conn.open()
	if err != nil {
		return nil, err
	}
	certificate, err := s.openServingCertificate(c.ca)
	if err != nil {
		return nil, err
	}
	authority, err := c.newAuthority(certificate, lines)
	if err != nil {
		return nil, err
	}
	if err := c.startControllers(authority); err != nil {
		return nil, err
	}
	c.warn(authority)
	api, err := c.newAPI(authority)
	if err != nil {
		return nil, err
	}
	return &site{api: api, certificate: certificate, banner: c.clusterBanner}, nil
}

// connect creates the clients of the API server.
func (s *service) connect(ctx context.Context) (*connection, error) {
	c := &connection{service: s, ClusterOptions: *s.options.Cluster}
	var err error
	if c.config, err = c.clientConfig(); err != nil {
		return nil, err
	}
	c.apiServer = newAPIServer(c.config)
	c.config.Wrap(c.failed.Watch)
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.watch = watch
	c.closers = append(c.closers, func() error { stop(); return nil })
	c.events = c.recordEvents()
	c.working = c.client
	if c.LeaderElect {
		c.election = &leader.Election{
			Client: c.client, Namespace: c.LeaseNamespace, Name: c.LeaseName, Logger: c.log, Registerer: c.registry,
			Annotations: func() map[string]string {
				return map[string]string{failedwrites.Annotation: c.failed.Encode(time.Now()), leader.NodePropertiesAnnotation: c.nodeRight()}
			},
		}
		fenced := rest.CopyConfig(c.config)
		fenced.Wrap(c.election.Fence)
		if c.working, err = kubernetes.NewForConfig(fenced); err != nil {
			return nil, fmt.Errorf("kubeconfig: %w", err)
		}
	}
	return c, nil
}

// clientConfig returns the client configuration for the API server.
func (c *connection) clientConfig() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if c.Kubeconfig != "" {
		config, err = credentials.LoadConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: c.Kubeconfig}, "")
	} else if config, err = rest.InClusterConfig(); err == nil {
		err = credentials.CheckConfig(config)
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent = "kubejoin/" + c.options.Version.Version
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.QPS, config.Burst = -1, 0 // unlimited
	if c.QPS > 0 {                   // all clients share one limiter
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, max(c.Burst, int(c.QPS), 1))
	}
	return config, pingSoon()
}

// pingSoon makes client-go ping a silent connection after 10 s and close it 5 s later. With the defaults, kubejoin
// would notice a lost API server only after 45 s. client-go reads these settings only from the environment. pingSoon
// keeps values that are already set.
func pingSoon() error {
	for name, seconds := range map[string]string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS": "10", "HTTP2_PING_TIMEOUT_SECONDS": "5"} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, seconds); err != nil {
			return err
		}
	}
	return nil
}

// eventComponent is the component that Events name.
const eventComponent = "kubejoin"

// lease returns a reference to the Lease of the replicas. Events about kubejoin as a whole refer to it.
func (c *connection) lease() *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease",
		Namespace: c.LeaseNamespace, Name: c.LeaseName,
	}
}

// recordEvents starts to create Events.
func (c *connection) recordEvents() events {
	events := record.NewBroadcaster(record.WithContext(c.watch))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: eventComponent})
	c.closers = append(c.closers, func() error { events.Shutdown(); return nil })
	return func(object *corev1.ObjectReference, e codes.Event, message string) {
		recorder.Event(cmp.Or(object, c.lease()), e.Type(), e.Reason(), safetext.Text(message, safetext.MaxMessage))
	}
}

// open opens the caches, files and stores.
func (c *connection) open() (*cluster, error) {
	nodes := kubefacts.OpenNodes(c.watch, c.client)
	rotation := c.watchRotation()
	ca, err := c.loadClusterCA(&rotation.rotationState)
	if err != nil {
		return nil, err
	}
	configured, err := c.loadSigners(ca, c.events)
	if err != nil {
		return nil, err
	}
	own, err := c.openTokens()
	if err != nil {
		return nil, err
	}
	if c.OwnTokens && ca != nil {
		if err := c.keepBundle(ca); err != nil {
			return nil, err
		}
	}
	revoked, err := c.openRevocations()
	if err != nil {
		return nil, err
	}
	return &cluster{
		connection: c, stores: own, nodes: nodes, rotation: rotation, revoked: revoked, ca: ca, configured: configured,
		trust: trust{&rotation.rotationState, &revocation.Guard{Store: revoked}}, info: configmap.Open(c.watch, c.working),
	}, nil
}

// loadClusterCA loads the CA. It returns nil if no CA is configured.
func (c *connection) loadClusterCA(rotating *rotationState) (*clusterCA, error) {
	o := c.options.CA
	if o.CertFile == "" {
		return nil, nil
	}
	lifetime := o.Duration
	if !c.options.Controllers[CSRSigner] {
		lifetime = servingcert.Lifetime
	}
	return c.loadCA(o, lifetime, rotating, c.events)
}

// newAuthority creates the authority that decides on every certificate. With --shadow, the authority changes and
// records nothing.
func (c *cluster) newAuthority(certificate servingCertificate, lines issuance.Log) (*signer.Authority, error) {
	signers, err := c.signers(c.ca, c.configured)
	nodes, record := c.admission(c.stores, c.nodes.Node, c.nodes.Ready), c.watchRecord(c.stores, lines)
	if c.Shadow {
		nodes, record = nodes.DryRun(), nil
	}
	return &signer.Authority{
		Signers: signers, Facts: c.facts(c.client, c.apiServer, c.nodes, c.info, certificate), Nodes: nodes,
		Revocations: c.trust.revocations, Record: record, MaxLifetime: c.trust.rotation.maxLifetime,
		Unthrottled: c.options.Limits.UserRate.QPS < 0, // users without a rate limit have no certificate limit either
	}, err
}

// signs reports whether certificates can be requested over HTTPS.
func (c *cluster) signs() bool { return !c.Shadow && (c.ca != nil || c.configured != nil) }

// newAPI returns the HTTPS API. Call it after all readiness checks were added.
func (c *cluster) newAPI(authority *signer.Authority) (server.Server, error) {
	operators, err := c.loadOperators(c.options.Callers.TokenFile, nil)
	if err != nil {
		return server.Server{}, err
	}
	byCertificate, err := c.byClientCA(c.trust)
	if err != nil {
		return server.Server{}, err
	}
	webhooks, err := c.webhooks(c.stores, c.trust)
	if err != nil {
		return server.Server{}, err
	}
	reader := kube.Reader{
		Client: c.client, Tokens: c.tokens, Claims: c.claims, ClusterInfo: c.info,
		LeaseNamespace: c.LeaseNamespace, LeaseName: c.LeaseName, Revocations: c.revoked,
	}
	// The cluster-info that kubejoin serves has the signatures of all tokens. The ConfigMap has only the signatures that fit.
	var discovered server.ClusterInfo = c.info
	if c.options.Advertise != "" {
		complete := c.info.Complete(c.tokens, c.spent())
		discovered, reader.ClusterInfo = complete, complete
	}
	node := func(ctx context.Context, name string) (tokens.NodeRef, error) {
		uid, err := c.nodes.Node(ctx, name)
		return tokens.NodeRef{Name: name, UID: uid}, err
	}
	minting := server.Minting{Advertise: c.options.Advertise, SignedBy: c.signedBy(), Warnings: c.warningsOf}
	turns := &leases.Turns{Client: c.client, Namespace: c.LeaseNamespace}
	if c.PKIDir != "" {
		turns.Etcd = etcd.Members{Dir: c.PKIDir, Log: c.log}
		minting.UploadCertificates = (&kubeadmcerts.Uploader{Client: c.client, Dir: c.PKIDir}).Upload
	}
	var certificates *server.Certificates
	if c.signs() {
		certificates = &server.Certificates{
			Authority: authority, ClientCertificate: c.orNodes(byCertificate, authority, c.trust), RejoinEvent: c.events.rejoin,
			Warning: func(ctx context.Context, signer string) string {
				if signer != credentials.KubeletClientSigner {
					return ""
				}
				return accessreview.KubeletClient(ctx, c.client)
			},
		}
	}
	return server.Server{
		Tokens: c.tokens, Claims: c.claims, ClusterInfo: discovered, IssuanceRecord: c.record,
		Callers: c.callers(operators, byCertificate), Minting: minting, Certificates: certificates, Webhooks: webhooks,
		Cluster: server.Cluster{
			Node: node, Owners: !c.OwnTokens, NodeProperties: c.nodeProperties, Turns: turns, Explain: reader.Explain, Joins: kube.OpenJoins(c.watch, reader, c.nodes).List,
			ExplainRequest: kube.Requests{Client: c.client, Authority: func() (*signer.Authority, error) { return authority, nil }}.Explain,
		},
		Revocations: &desk.Revoker{
			Guard: c.trust.revocations, Tokens: c.tokens, Claims: c.claims, ClusterInfo: discovered, IssuanceRecord: c.record, Node: node,
			Requested: func(ctx context.Context) ([]revocation.Certificate, error) { return csr.Issued(ctx, c.client) },
			Withdraw: func(ctx context.Context, revoked func(revocation.Certificate) bool) error {
				return csr.Withdraw(ctx, c.client, func(name string) bool { _, signs := authority.Signer(name); return signs }, revoked)
			},
			ClientCAs: func(ctx context.Context) ([]*x509.Certificate, error) { return configmaps.ClientCAs(ctx, c.client) },
			Lifetime:  authority.MaxRemainingLifetime, RejoinWindow: c.options.NodeRules.RejoinWindow,
		},
		Rotations: c.rotations(),
		Limits:    c.options.Limits, Console: c.options.Console, Status: c.status(), Logger: c.log, Registerer: c.registry,
	}, nil
}

// nodeProperties returns why kubejoin does not set properties of Nodes.
func (c *cluster) nodeProperties(_ context.Context, field string) error {
	if c.patchesNodes.Load() {
		return nil
	}
	return operations.NodesNotPatched(field)
}

// spent finds the tokens that need no signature, in the ConfigMap and in the cluster-info that kubejoin serves.
func (c *cluster) spent() *clusterinfo.Spent {
	return &clusterinfo.Spent{Claims: c.claims, Registered: c.nodes.Registered}
}

// startControllers starts the controllers, and the watches behind readiness checks.
func (c *cluster) startControllers(authority *signer.Authority) error {
	enabled := c.options.Controllers
	decides := enabled[CSRApprover] || enabled[CSRSigner]
	if c.signs() || decides && !c.Shadow {
		c.watchClaims(c.claims, c.events)
	}
	controllers := []func(context.Context) error{c.watchSize(), c.reportRevocations(), c.watchRotations()}
	if enabled[BootstrapSigner] {
		first, err := c.firstKubeconfig()
		if err != nil {
			return err
		}
		if first == nil {
			c.log.Warn("kubejoin cannot create a missing cluster-info: --api-server is missing, or the CA in the kubeconfig or the pod")
		}
		loop := configmap.Signer{
			ConfigMap: c.info, Tokens: c.tokens, Default: first, Server: c.options.APIServer, Follow: c.rotation.follower(),
			Spent: c.spent(), Logger: c.log, Registerer: c.registry,
		}
		controllers = append(controllers, loop.Run)
	}
	if decides || enabled[CSRCleaner] {
		controllers = append(controllers, c.csrControllers(authority))
	}
	properties := nodeproperties.Open(c.watch, c.working, c.nodes, c.claims.Get, c.patchesNodes.Load, c.log, c.registry)
	controllers = append(controllers, c.cleaners(c.stores, cleaner.Claims{
		Node: c.nodes.Node, Nodes: c.nodes.Nodes, Ready: c.nodes.Ready, Properties: properties,
		NodesChanged: func(ctx context.Context) <-chan struct{} {
			return loop.Either(ctx, c.nodes.Watch(ctx), properties.Watch(ctx))
		},
	})...)
	c.goBackground(loop.Loop{Name: "node-right", Sweep: nodeRightEvery, Logger: c.log, Registerer: c.registry, Step: func(ctx context.Context) (time.Time, error) {
		before := c.patchesNodes.Load()
		next, err := c.checkNodeRight(ctx)
		if !before && c.patchesNodes.Load() {
			properties.Permitted()
		}
		return next, err
	}}.Run)
	c.runWhileLeading(controllers)
	public, err := c.watchPublicAccess(c.config)
	if err != nil {
		return err
	}
	c.checkClusterInfo(public)
	c.check("writes", c.checkWrites)
	return nil
}

// nodeRight returns the value of [leader.NodePropertiesAnnotation].
func (c *connection) nodeRight() string {
	if c.patchesNodes.Load() {
		return "true"
	}
	return ""
}

// nodeRightEvery is how often kubejoin checks whether it may patch Nodes.
const nodeRightEvery = time.Minute

// checkNodeRight checks whether kubejoin may patch Nodes. A standby replica does so, too: it serves the HTTPS API.
func (c *connection) checkNodeRight(ctx context.Context) (time.Time, error) {
	may, err := accessreview.Own(ctx, c.client, authorization.ResourceAttributes{Verb: "patch", Resource: "nodes"})
	if err != nil {
		return time.Time{}, fmt.Errorf("check whether kubejoin may patch nodes: %w", err)
	}
	c.patchesNodes.Store(may && !c.Shadow)
	return time.Time{}, nil
}

// checkWrites reports writes that the API server does not accept. kubejoin continues to serve, because discovery needs no
// writes. The notice is public, so it does not include the cause.
func (c *cluster) checkWrites(context.Context) error {
	all := c.failed.Failing(time.Now())
	if len(all) == 0 {
		return nil
	}
	return api.Notice(fmt.Sprintf("kubejoin cannot %s since %s; see 'kubejoin doctor', or the log", all[0], all[0].At.Format(time.RFC3339)))
}

// csrControllers returns the controllers of CertificateSigningRequests. They share an informer, which runs only while
// the controllers run. No other part of kubejoin reads these objects from a cache.
func (c *cluster) csrControllers(authority *signer.Authority) func(context.Context) error {
	enabled := c.options.Controllers
	signs := enabled[CSRSigner] && !c.Shadow
	decider := csr.Controller{
		Client: c.working, Authority: authority, Approve: enabled[CSRApprover], Sign: enabled[CSRSigner], Shadow: c.Shadow,
		Again:  c.configured.changed(),
		Logger: c.log, Registerer: c.registry,
	}
	cleaner := csr.Cleaner{Client: c.working, Logger: c.log, Registerer: c.registry}
	var renewals csr.Renewals
	if signs {
		decider.SignedByOther = c.watchOtherSigner()
		renewals = c.watchRenewals(authority, c.nodes, c.events)
	}
	return func(ctx context.Context) error {
		requests := csr.NewInformer(c.client)
		decider.Informer, cleaner.Informer, renewals.Informer = requests, requests, requests
		controllers := []func(context.Context) error{func(ctx context.Context) error { requests.RunWithContext(ctx); return nil }}
		if decider.Approve || decider.Sign {
			controllers = append(controllers, decider.Run)
		}
		if signs {
			controllers = append(controllers, renewals.Run)
		}
		if enabled[CSRCleaner] && !c.Shadow {
			controllers = append(controllers, cleaner.Run)
		}
		return together(controllers)(ctx)
	}
}

// runWhileLeading runs all controllers. With leader election, it runs them only while this replica leads.
func (c *cluster) runWhileLeading(controllers []func(context.Context) error) {
	all := together(controllers)
	if c.election == nil {
		c.goBackground(all)
		return
	}
	c.goBackground(func(ctx context.Context) error { return c.election.Run(ctx, all) })
	c.check("leader", c.election.Ready)
}

// warn adds the warnings for callers that create a token.
func (c *cluster) warn(authority *signer.Authority) {
	switch {
	case !c.options.Controllers[CSRSigner]:
		c.warnOf(tokenwarning.Limits("and csr-signer is switched off in this kubejoin"))
		c.warnOf(tokenwarning.ClusterInfoCAs(c.info))
	case c.Shadow:
		c.warnOf(tokenwarning.Limits("and this kubejoin signs none because of --shadow"))
		c.warnOf(tokenwarning.ClusterInfoCAs(c.info))
	default:
		c.warnOf(tokenwarning.OtherSigner(authority))
		c.warnOf(tokenwarning.CA(authority, tokenwarning.ClusterInfoCAs(c.info)))
		c.warnOf(tokenwarning.Duration(authority))
	}
	if c.election != nil {
		c.warnOf(tokenwarning.Leader(c.LeaseNamespace+"/"+c.LeaseName, c.election.Ready))
	}
	switch {
	case c.options.Advertise == "":
		c.warnOf(tokenwarning.Size(c.info))
	case c.options.TLS.CertFile == "" && c.ca != nil:
		c.warnOf(tokenwarning.Trust(c.info, c.ca.Get))
	}
	c.warnOf(tokenwarning.KubeletClient(c.client))
}

// signedBy names the controller that should sign new tokens. A caller whose token was not signed in time gets this name.
func (c *cluster) signedBy() string {
	switch {
	case !c.options.Controllers[BootstrapSigner]:
		return "the bootstrap-signer-controller of kube-controller-manager, since --controllers switches off the one of kubejoin"
	case c.LeaderElect:
		return fmt.Sprintf("the bootstrap-signer of the kubejoin replica that holds Lease %s/%s; see its log", c.LeaseNamespace, c.LeaseName)
	}
	return "the bootstrap-signer of this kubejoin; see its log"
}

func (c *cluster) clusterBanner() string {
	host := c.config.Host
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		host = u.Host
	}
	return fmt.Sprintf("kubejoin serves https://%s for the cluster at %s\n", c.options.shownAddress(), host)
}
