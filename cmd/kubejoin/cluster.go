package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/clusterinfo/configmap"
	"github.com/kubejoin/kubejoin/internal/leader"
	"github.com/kubejoin/kubejoin/internal/servingcert"
	"github.com/kubejoin/kubejoin/internal/tokenwarning"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/explain/kube"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/cleaner"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

// onCluster keeps tokens and cluster-info in Kubernetes and runs the controllers.
func onCluster(ctx context.Context, s *service) error {
	o := &s.options
	enabled, err := enabledControllers(o.controllers)
	if err != nil {
		return err
	}
	if err := checkOnCluster(o, enabled); err != nil {
		return err
	}
	config, err := clientConfig(o)
	if err != nil {
		return err
	}
	api := newAPIServer(config)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	// What is watched lives as long as the program, also on a replica that stands by.
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.closers = append(s.closers, func() error { stop(); return nil })
	s.recordEvents(watch, client)
	if o.caCert != "" {
		lifetime := o.duration
		if !enabled[csrSigner] {
			lifetime = servingcert.Lifetime
		}
		if err := s.loadCA(o.caCert, o.caKey, lifetime); err != nil {
			return err
		}
	}
	if err := s.loadSigners(); err != nil {
		return err
	}
	if o.tokenAuthFile != "" {
		if err := s.loadOperators(o.tokenAuthFile); err != nil {
			return err
		}
	}
	if err := s.knowCertificates(); err != nil {
		return err
	}
	s.callersOnCluster(client)

	store, err := s.openTokens(watch, client)
	if err != nil {
		return err
	}
	claims, err := openClaims(watch, s, client, store)
	if err != nil {
		return err
	}
	nodes, err := csr.OpenNodes(watch, client)
	if err != nil {
		return err
	}
	// What the controllers write with. Deletions of expired tokens are harmless at any time.
	working := client
	var election *leader.Election
	if o.leaderElect {
		election = &leader.Election{Client: client, Namespace: o.leaseNamespace, Name: o.leaseName, Logger: s.log, Registerer: s.registry}
		fenced := rest.CopyConfig(config)
		fenced.Wrap(election.Fence)
		if working, err = kubernetes.NewForConfig(fenced); err != nil {
			return fmt.Errorf("kubeconfig: %w", err)
		}
	}
	info := configmap.Open(watch, working)
	s.api.Tokens, s.api.Claims, s.api.ClusterInfo = store, claims, s.discovered(info, store)
	s.explainOn(client, store, claims, info)
	s.api.Node = func(ctx context.Context, name string) (tokens.NodeRef, error) {
		uid, err := nodes.Node(ctx, name)
		return tokens.NodeRef{Name: name, UID: uid}, err
	}
	if host, _, err := net.SplitHostPort(o.advertise); err == nil {
		s.hosts = append(s.hosts, host)
	}

	controllers := []func(context.Context) error{s.watchSize(info)}
	if enabled[bootstrapSigner] {
		first, err := firstKubeconfig(config, o)
		if err != nil {
			return err
		}
		if first == nil {
			s.log.Warn("should there be no cluster-info, it can be made only with --api-server, the address at which machines reach the API server, and a CA from the kubeconfig or the pod")
		}
		loop := configmap.Signer{ConfigMap: info, Tokens: store, Default: first, Server: o.apiServer, Logger: s.log, Registerer: s.registry}
		controllers = append(controllers, loop.Run)
	}
	if enabled[tokenCleaner] {
		loop := cleaner.Tokens{Store: store, Logger: s.log, Registerer: s.registry}
		controllers = append(controllers, loop.Run)
	}
	facts := s.facts(client, api, nodes, info)
	authority := s.authority(facts, s.admission(store, claims, nodes))
	if err := authority.Check(); err != nil {
		return err
	}
	if o.shadow {
		authority.Nodes, authority.Record = authority.Nodes.DryRun(), nil
	} else if s.ca != nil || o.signerConfig != "" {
		s.giveCertificates(authority)
	}
	if !o.shadow && (enabled[csrApprover] || enabled[csrSigner] || s.ca != nil || o.signerConfig != "") {
		s.watchClaims(claims)
	}
	s.api.ExplainRequest = kube.Requests{Client: client, Authority: func() (*signer.Authority, error) { return authority, nil }}.Explain
	if enabled[csrApprover] || enabled[csrSigner] || enabled[csrCleaner] {
		requests := csr.NewInformer(client)
		go requests.Run(watch.Done())
		if enabled[csrApprover] || enabled[csrSigner] {
			loop := csr.Controller{
				Client: working, Informer: requests, Authority: authority, Approve: enabled[csrApprover], Sign: enabled[csrSigner], Shadow: o.shadow,
				Again:  s.signersChanged(),
				Logger: s.log, Registerer: s.registry,
			}
			if enabled[csrSigner] && !o.shadow {
				loop.SignedByOther = s.watchOtherSigner()
				controllers = append(controllers, s.watchRenewals(requests, authority, nodes))
			}
			controllers = append(controllers, loop.Run)
		}
		if enabled[csrCleaner] && !o.shadow {
			loop := csr.Cleaner{Client: working, Informer: requests, Logger: s.log, Registerer: s.registry}
			controllers = append(controllers, loop.Run)
		}
	}
	if enabled[claimCleaner] {
		loop := cleaner.Claims{
			Store: claims, Tokens: store, Node: nodes.Node, Nodes: nodes.Nodes, Ready: nodes.Ready, NodesChanged: nodes.Watch(watch),
			Logger: s.log, Registerer: s.registry,
		}
		controllers = append(controllers, loop.Run)
	}
	s.runControllers(election, controllers)
	public, err := s.watchPublicAccess(config)
	if err != nil {
		return err
	}
	s.checkClusterInfo(info, public)
	s.api.SignedBy = signedBy(o, enabled)
	switch {
	case !enabled[csrSigner]:
		s.warnOf(tokenwarning.Limits("and csr-signer is switched off here"))
		s.warnOf(tokenwarning.ClusterInfoCAs(info))
	case o.shadow:
		s.warnOf(tokenwarning.Limits("and with --shadow it looks on here"))
		s.warnOf(tokenwarning.ClusterInfoCAs(info))
	default:
		s.warnOf(tokenwarning.OtherSigner(authority))
		s.warnOf(tokenwarning.CA(authority, tokenwarning.ClusterInfoCAs(info)))
		s.warnOf(tokenwarning.Duration(authority))
	}
	if election != nil {
		s.warnOf(tokenwarning.Leader(o.leaseNamespace+"/"+o.leaseName, election.Ready))
	}
	switch {
	case o.advertise == "":
		s.warnOf(tokenwarning.Size(info))
	case o.tlsCert == "" && s.ca != nil:
		s.warnOf(tokenwarning.Trust(info, s.ca.Get))
	}
	s.banner = clusterBanner(o, config.Host)
	return nil
}

// checkOnCluster refuses flags that cannot be meant on a cluster.
func checkOnCluster(o *serveOptions, enabled map[string]bool) error {
	var errs []error
	if o.caCert == "" {
		if enabled[csrSigner] && o.signerConfig == "" {
			errs = append(errs, errors.New("--controllers: csr-signer needs --cluster-signing-cert-file and --cluster-signing-key-file; give them, or switch it off with --controllers='*,-csr-signer'"))
		}
		if o.tlsCert == "" {
			errs = append(errs, errors.New("--tls-cert-file: needed, since without --cluster-signing-key-file no serving certificate can be issued"))
		}
	}
	for _, flag := range []string{"webhook-client-ca-file", "webhook-client-name", "webhook-audience"} {
		if o.tokenStore != storeFile && o.given(flag) {
			errs = append(errs, fmt.Errorf("--%s: is about --token-store=file; tokens in Secrets are known to kube-apiserver without kubejoin", flag))
		}
	}
	if len(errs) > 0 {
		return &usageError{err: errors.Join(errs...)}
	}
	return nil
}

// clientConfig is how the API server is reached.
func clientConfig(o *serveOptions) (*rest.Config, error) {
	var config *rest.Config
	var err error
	if o.kubeconfig == "" {
		config, err = rest.InClusterConfig()
	} else {
		config, err = clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	config.UserAgent = "kubejoin/" + buildVersion().Version
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.QPS, config.Burst = -1, 0 // no limit
	if o.kubeAPIQPS > 0 {            // one for all clients
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(o.kubeAPIQPS, max(o.kubeAPIBurst, int(o.kubeAPIQPS), 1))
	}
	return config, pingSoon()
}

// pingSoon has a connection that says nothing tried after 10 s, and given up 5 s later, where
// client-go takes 45 s in all: so long would everything wait for an API server that is gone
// without a word. client-go reads these from the environment alone; what is there stays.
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

// firstKubeconfig is what cluster-info begins with where there is none. In a pod the address
// at hand is the service's, which no joining machine reaches: --api-server has to say.
func firstKubeconfig(config *rest.Config, o *serveOptions) ([]byte, error) {
	apiServer := o.apiServer
	if apiServer == "" {
		if o.kubeconfig == "" {
			return nil, nil
		}
		apiServer = config.Host
	}
	bundle := config.CAData
	if len(bundle) == 0 && config.CAFile != "" {
		var err error
		if bundle, err = os.ReadFile(config.CAFile); err != nil {
			return nil, fmt.Errorf("--kubeconfig: certificate authority: %w", err)
		}
	}
	if len(bundle) == 0 {
		return nil, nil // its API server is trusted by other means, which cluster-info cannot name
	}
	cas, err := clusterinfo.ParseCAs(bundle)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: certificate authority: %w", err)
	}
	return clusterinfo.Kubeconfig(apiServer, cas)
}

// authority is the one door to a certificate.
func (s *service) authority(facts approval.Facts, nodes *signer.NodeAdmission) *signer.Authority {
	source := func() (*signer.CA, error) {
		if s.ca == nil {
			return nil, errors.New("no CA is given: --cluster-signing-cert-file and --cluster-signing-key-file")
		}
		return s.ca.Get(), nil
	}
	return &signer.Authority{
		Facts:  facts,
		Nodes:  nodes,
		Record: s.record(),
		// --user-qps=0 leaves users without limits, of which this is one.
		Unthrottled: s.options.users.QPS == 0,
		Signers:     s.signers(s.approveServing(signer.KubernetesSigners(source, s.options.duration))),
	}
}

// runControllers runs them all, while leading where replicas elect.
func (s *service) runControllers(election *leader.Election, controllers []func(context.Context) error) {
	all := func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		for _, run := range controllers {
			group.Go(func() error { return run(ctx) })
		}
		return group.Wait()
	}
	if election == nil {
		s.goBackground(all)
		return
	}
	s.goBackground(func(ctx context.Context) error { return election.Run(ctx, all) })
	s.check("leader", election.Ready)
}

func (s *service) checkClusterInfo(info *configmap.ConfigMap, public *publicAccess) {
	s.check("cluster-info", func(ctx context.Context) error {
		data, err := info.Data(ctx)
		var cas []*x509.Certificate
		if err == nil {
			_, cas, err = clusterinfo.ParseKubeconfig([]byte(data[clusterinfo.KubeconfigKey]))
		}
		switch {
		case err == nil && s.ca != nil && s.options.tlsCert == "" && !tokenwarning.Trusted(s.ca.Get(), cas):
			err = server.Notice(tokenwarning.Untrusted)
		case errors.Is(err, clusterinfo.ErrNotFound):
			return errors.New("there is no ConfigMap kube-public/cluster-info")
		case errors.Is(err, context.DeadlineExceeded):
			return errors.New("kube-public/cluster-info has not been read yet, see the log")
		}
		return s.sized(info, noticed(err, public.notice()))
	})
}

// signedBy says what signs new tokens, to a person who waited for it in vain.
func signedBy(o *serveOptions, enabled map[string]bool) string {
	switch {
	case !enabled[bootstrapSigner]:
		return "kube-controller-manager's bootstrap-signer-controller, since --controllers switches kubejoin's own off"
	case o.leaderElect:
		return fmt.Sprintf("the bootstrap-signer of the kubejoin that holds Lease %s/%s; its log says why it did not", o.leaseNamespace, o.leaseName)
	}
	return "this kubejoin's bootstrap-signer; its log says why it did not"
}

func clusterBanner(o *serveOptions, host string) string {
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		host = u.Host
	}
	return fmt.Sprintf("kubejoin serves https://%s for the cluster at %s\n", o.listen, host)
}
