package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"

	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/internal/kube/kubecache"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/internal/web/servingcert"
	"github.com/kubejoin/kubejoin/server/controlplane/etcd"
	"github.com/kubejoin/kubejoin/server/controlplane/leases"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
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

// A cluster is a service that keeps tokens and cluster-info in Kubernetes and runs the controllers.
type cluster struct {
	*service
	ClusterOptions

	config    *rest.Config
	apiServer *apiServer
	client    kubernetes.Interface
	// watch is the context of watches. It ends with the program, because a standby replica watches, too.
	watch context.Context
	// election is nil without leader election.
	election *leader.Election
	// working is the client of the controllers. With leader election it sends writes only while this replica leads.
	working kubernetes.Interface

	stores
	nodes *kubefacts.Nodes
	info  *configmap.ConfigMap
	// stored is the Secret of CA rotations, and copies the ConfigMap that hosts read.
	stored *kubecache.Cache[*corev1.Secret, storedRotation]
	copies *kubecache.Cache[*corev1.ConfigMap, map[string]string]
	// revoked are the stored revocations.
	revoked *configmaps.List

	authority *signer.Authority
}

// onCluster builds the service on a cluster.
func (s *service) onCluster(ctx context.Context) error {
	c := &cluster{service: s, ClusterOptions: *s.options.Cluster}
	for _, build := range []func() error{
		func() error { return c.connect(ctx) },
		c.loadFiles,
		c.openStores,
		c.buildAuthority,
		c.startControllers,
	} {
		if err := build(); err != nil {
			return err
		}
	}
	c.warn()
	c.api.Minting.SignedBy = c.signedBy()
	c.banner = c.clusterBanner()
	return nil
}

// connect creates the clients of the API server.
func (c *cluster) connect(ctx context.Context) (err error) {
	if c.config, err = c.clientConfig(); err != nil {
		return err
	}
	c.apiServer = newAPIServer(c.config)
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.watch = watch
	c.closers = append(c.closers, func() error { stop(); return nil })
	c.recordEvents()
	c.working = c.client
	if c.LeaderElect {
		c.election = &leader.Election{Client: c.client, Namespace: c.LeaseNamespace, Name: c.LeaseName, Logger: c.log, Registerer: c.registry}
		fenced := rest.CopyConfig(c.config)
		fenced.Wrap(c.election.Fence)
		if c.working, err = kubernetes.NewForConfig(fenced); err != nil {
			return fmt.Errorf("kubeconfig: %w", err)
		}
	}
	return nil
}

// clientConfig returns the client configuration for the API server.
func (c *cluster) clientConfig() (*rest.Config, error) {
	var config *rest.Config
	var err error
	if c.Kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	}
	if err == nil {
		err = credentials.CheckConfig(config)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = "kubejoin/" + c.options.Version.Version
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.QPS, config.Burst = -1, 0 // unlimited
	if c.QPS > 0 {                   // one limiter for all clients
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, max(c.Burst, int(c.QPS), 1))
	}
	return config, pingSoon()
}

// pingSoon makes client-go ping a silent connection after 10 s and close it 5 s later. Its defaults take 45 s in all,
// and everything would wait that long for a lost API server. client-go reads these settings only from the
// environment. Values that are already set stay.
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

// lease refers to the Lease of the replicas, which Events about kubejoin as a whole are on.
func (c *cluster) lease() *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease",
		Namespace: c.LeaseNamespace, Name: c.LeaseName,
	}
}

// recordEvents sets up Events about kubejoin as a whole.
func (c *cluster) recordEvents() {
	events := record.NewBroadcaster(record.WithContext(c.watch))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.client.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: eventComponent})
	c.eventOn = func(object *corev1.ObjectReference, kind, reason, message string) {
		recorder.Event(object, kind, reason, safetext.Text(message, safetext.MaxMessage))
	}
	c.event = func(kind, reason, message string) { c.eventOn(c.lease(), kind, reason, message) }
	c.closers = append(c.closers, func() error { events.Shutdown(); return nil })
}

// loadFiles loads the CA, the signers and the credentials of callers.
func (c *cluster) loadFiles() error {
	if o := c.options.CA; o.CertFile != "" {
		lifetime := o.Duration
		if !c.options.Controllers[CSRSigner] {
			lifetime = servingcert.Lifetime
		}
		if err := c.loadCA(o, lifetime); err != nil {
			return err
		}
	}
	if err := c.loadSigners(); err != nil {
		return err
	}
	if err := c.loadOperators(nil); err != nil {
		return err
	}
	if err := c.knowCertificates(); err != nil {
		return err
	}
	c.knowCallers()
	return nil
}

// openStores opens the stores of tokens, claims, Nodes and cluster-info.
func (c *cluster) openStores() (err error) {
	if c.stores, err = c.openTokens(); err != nil {
		return err
	}
	if c.nodes, err = kubefacts.OpenNodes(c.watch, c.client); err != nil {
		return err
	}
	c.liveNodes = c.nodes.Len
	c.watchRotation()
	if err := c.openRevocations(); err != nil {
		return err
	}
	if err := c.answerAccessReviews(); err != nil {
		return err
	}
	c.info = configmap.Open(c.watch, c.working)
	c.api.Tokens, c.api.Claims, c.api.ClusterInfo = c.tokens, c.claims, c.discovered()
	c.api.Cluster.Node = func(ctx context.Context, name string) (tokens.NodeRef, error) {
		uid, err := c.nodes.Node(ctx, name)
		return tokens.NodeRef{Name: name, UID: uid}, err
	}
	turns := &leases.Turns{Client: c.client, Namespace: c.LeaseNamespace}
	if c.PKIDir != "" {
		turns.Etcd = etcd.Members{Dir: c.PKIDir, Log: c.log}
		c.api.Minting.UploadCertificates = (&kubeadmcerts.Uploader{Client: c.client, Dir: c.PKIDir}).Upload
	}
	c.api.Cluster.Turns = turns
	c.api.Cluster.Explain = c.explainer().Explain
	if host, _, err := net.SplitHostPort(c.options.Advertise); err == nil {
		c.hosts = append(c.hosts, host)
	}
	return nil
}

// explainer returns the Reader for explanations. It reads the same cluster-info as joining machines.
func (c *cluster) explainer() kube.Reader {
	reader := kube.Reader{
		Client: c.client, Tokens: c.tokens, Claims: c.claims, ClusterInfo: c.info,
		LeaseNamespace: c.LeaseNamespace, LeaseName: c.LeaseName, Revocations: c.revoked,
	}
	if complete, ok := c.api.ClusterInfo.(kube.ClusterInfo); ok {
		reader.ClusterInfo = complete
	}
	return reader
}

// buildAuthority creates the authority, and enables certificate requests and their explanation.
func (c *cluster) buildAuthority() (err error) {
	if c.authority, err = c.newAuthority(c.facts(c.client, c.apiServer, c.nodes, c.info), c.admission()); err != nil {
		return err
	}
	c.api.Revocations = c.newDesk(c.authority)
	c.api.Revocations.Requested = func(ctx context.Context) ([]revocation.Certificate, error) { return csr.Issued(ctx, c.client) }
	c.api.Revocations.ClientCAs = func(ctx context.Context) ([]*x509.Certificate, error) { return configmaps.ClientCAs(ctx, c.client) }
	if c.Shadow {
		c.authority.Nodes, c.authority.Record = c.authority.Nodes.DryRun(), nil
	} else if c.ca != nil || c.options.SignerConfig != "" {
		c.giveCertificates(c.authority)
		c.api.Certificates.Warning = func(ctx context.Context, signer string) string {
			if signer != credentials.KubeletClientSigner {
				return ""
			}
			return accessreview.KubeletClient(ctx, c.client)
		}
	}
	c.rotateCAs()
	c.api.Cluster.ExplainRequest = kube.Requests{Client: c.client, Authority: func() (*signer.Authority, error) { return c.authority, nil }}.Explain
	return nil
}

// startControllers starts the controllers, and the watches behind readiness checks.
func (c *cluster) startControllers() error {
	enabled := c.options.Controllers
	decides := enabled[CSRApprover] || enabled[CSRSigner]
	if !c.Shadow && (decides || c.ca != nil || c.options.SignerConfig != "") {
		c.watchClaims(c.claims)
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
		loop := configmap.Signer{ConfigMap: c.info, Tokens: c.tokens, Default: first, Server: c.options.APIServer, Follow: c.followRotation(), Logger: c.log, Registerer: c.registry}
		controllers = append(controllers, loop.Run)
	}
	if enabled[TokenCleaner] {
		loop := cleaner.Tokens{Store: c.tokens, Logger: c.log, Registerer: c.registry}
		controllers = append(controllers, loop.Run)
	}
	if decides || enabled[CSRCleaner] {
		controllers = append(controllers, c.csrControllers()...)
	}
	if enabled[ClaimCleaner] {
		loop := cleaner.Claims{
			Store: c.claims, Tokens: c.tokens, Node: c.nodes.Node, Nodes: c.nodes.Nodes, Ready: c.nodes.Ready, NodesChanged: c.nodes.Watch(c.watch),
			RejoinWindow: c.options.NodeRules.RejoinWindow,
			Logger:       c.log, Registerer: c.registry,
		}
		controllers = append(controllers, loop.Run)
	}
	if sweep := c.sweepRecord(); sweep != nil {
		controllers = append(controllers, sweep)
	}
	c.runWhileLeading(controllers)
	public, err := c.watchPublicAccess(c.config)
	if err != nil {
		return err
	}
	c.checkClusterInfo(public)
	return nil
}

// csrControllers returns the controllers that share an informer of CertificateSigningRequests.
func (c *cluster) csrControllers() (controllers []func(context.Context) error) {
	enabled := c.options.Controllers
	requests := csr.NewInformer(c.client)
	go requests.Run(c.watch.Done())
	if enabled[CSRApprover] || enabled[CSRSigner] {
		loop := csr.Controller{
			Client: c.working, Informer: requests, Authority: c.authority, Approve: enabled[CSRApprover], Sign: enabled[CSRSigner], Shadow: c.Shadow,
			Again:  c.signersChanged(),
			Logger: c.log, Registerer: c.registry,
		}
		if enabled[CSRSigner] && !c.Shadow {
			loop.SignedByOther = c.watchOtherSigner()
			controllers = append(controllers, c.watchRenewals(requests, c.authority, c.nodes))
		}
		controllers = append(controllers, loop.Run)
	}
	if enabled[CSRCleaner] && !c.Shadow {
		loop := csr.Cleaner{Client: c.working, Informer: requests, Logger: c.log, Registerer: c.registry}
		controllers = append(controllers, loop.Run)
	}
	return controllers
}

// runWhileLeading runs all controllers: always, or with leader election only while this replica leads.
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
func (c *cluster) warn() {
	switch {
	case !c.options.Controllers[CSRSigner]:
		c.warnOf(tokenwarning.Limits("and csr-signer is switched off in this kubejoin"))
		c.warnOf(tokenwarning.ClusterInfoCAs(c.info))
	case c.Shadow:
		c.warnOf(tokenwarning.Limits("and this kubejoin signs none because of --shadow"))
		c.warnOf(tokenwarning.ClusterInfoCAs(c.info))
	default:
		c.warnOf(tokenwarning.OtherSigner(c.authority))
		c.warnOf(tokenwarning.CA(c.authority, tokenwarning.ClusterInfoCAs(c.info)))
		c.warnOf(tokenwarning.Duration(c.authority))
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

// signedBy names the controller that should sign new tokens, for a caller whose token was not signed in time.
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
	return fmt.Sprintf("kubejoin serves https://%s for the cluster at %s\n", c.options.Listen, host)
}
