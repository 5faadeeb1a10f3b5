package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/daemon"
	"github.com/kubejoin/kubejoin/internal/logging"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

// A failure reports that a flag is invalid.
type failure func(flag, format string, args ...any)

// options checks the flags, and converts them for the daemon.
func (o *serveOptions) options() (daemon.Options, error) {
	var errs []error
	fail := failure(func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	})
	o.checkAddresses(fail)
	o.checkFiles(fail)
	o.checkLimits(fail)
	o.checkNodes(fail)
	made := o.Options
	made.Serving = o.serving(fail)
	enabled, err := enabledControllers(o.controllers)
	if err != nil {
		fail("controllers", "%v", err)
	}
	made.Controllers = enabled
	o.checkTokenStore(fail)
	o.checkOutput(fail)
	if len(errs) > 0 {
		return daemon.Options{}, errors.Join(errs...)
	}
	if o.isOnCluster() {
		o.checkOnCluster(enabled, fail)
		onCluster := o.cluster
		onCluster.OwnTokens = o.tokenStore == storeFile || o.tokenStore == storeEtcd
		onCluster.LeaderElect = o.cluster.LeaderElect && o.tokenStore != storeFile // replicas share no file
		made.Cluster = &onCluster
	} else {
		o.checkStandalone(fail)
	}
	if o.tokenStore == storeEtcd {
		made.Etcd = &o.etcd
	}
	made.TLS.MinVersion = tls.VersionTLS13
	if o.tlsMinVersion == tls12 {
		made.TLS.MinVersion = tls.VersionTLS12
	}
	made.Limits = server.Limits{
		ClientRate: limit(o.clients), UserRate: limit(o.users), UserTokens: cmp.Or(o.userTokens, -1),
		MaxTokenTTL: cmp.Or(o.maxTokenTTL, -1), MaxTokenNodes: cmp.Or(o.maxTokenNodes, -1),
	}
	made.NodeRules.AllowExisting = o.existingNodes == allowExisting
	made.Version, made.Around = buildVersion(), wrapHandler
	return made, errors.Join(errs...)
}

// wrapHandler wraps the HTTP handler. Builds with the tag apicheck check all responses against openapi.yaml.
var wrapHandler = func(h http.Handler) http.Handler { return h }

// isOnCluster reports whether kubejoin runs on a cluster, not standalone.
func (o *serveOptions) isOnCluster() bool {
	return o.cluster.Kubeconfig != "" || inCluster() && (o.given("token-store") || !o.given("data-dir"))
}

// inCluster reports whether kubejoin runs in a pod with a service account.
func inCluster() bool {
	_, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token")
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && err == nil
}

func (o *serveOptions) checkAddresses(fail failure) {
	if _, port, err := net.SplitHostPort(o.Listen); err != nil || port == "" {
		fail("listen", "%q given, want HOST:PORT or :PORT", o.Listen)
	}
	if o.ShutdownDelay < 0 {
		fail("shutdown-delay-duration", "%s given, want 0s or more", o.ShutdownDelay)
	}
	if o.Advertise != "" {
		if err := clusterinfo.CheckEndpoint(o.Advertise); err != nil {
			fail("advertise", "%v", err)
		}
	}
	if o.APIServer != "" {
		if _, err := clusterinfo.Endpoint(o.APIServer); err != nil {
			fail("api-server", "%v", err)
		}
	}
	for _, san := range o.TLS.SANs {
		if clusterinfo.CheckEndpoint(net.JoinHostPort(san, "1")) != nil {
			fail("tls-san", "%q given, want a DNS name or an IP address", san)
		}
	}
}

func (o *serveOptions) checkFiles(fail failure) {
	for flag, pair := range map[string][2]string{
		"cluster-signing-cert-file": {o.CA.CertFile, o.CA.KeyFile + o.CA.Remote.URL},
		"tls-cert-file":             {o.TLS.CertFile, o.TLS.KeyFile},
	} {
		if (pair[0] == "") != (pair[1] == "") {
			fail(flag, "certificate and key go together, and one of them is missing")
		}
	}
	switch {
	case o.CA.PassphraseFile == "" && o.given("cluster-signing-key-passphrase-file"):
		fail("cluster-signing-key-passphrase-file", "is empty, want a file")
	case o.CA.PassphraseFile != "" && o.CA.KeyFile == "":
		fail("cluster-signing-key-passphrase-file", "needs --cluster-signing-key-file, the key that it decrypts")
	}
	o.checkRemoteKey(fail)
	if o.tlsMinVersion != tls12 && o.tlsMinVersion != tls13 {
		fail("tls-min-version", "%q given, want %s or %s", o.tlsMinVersion, tls12, tls13)
	}
	if o.SignerConfig == "" && o.given("signer-config") {
		fail("signer-config", "is empty, want a file")
	}
	if o.IssuanceRecord == "" && o.given("issuance-record") {
		fail("issuance-record", "is empty, want a file, or - for standard output")
	}
}

// checkRemoteKey checks the flags about a CA key that is elsewhere.
func (o *serveOptions) checkRemoteKey(fail failure) {
	r := o.CA.Remote
	switch {
	case r.URL != "" && o.CA.KeyFile != "":
		fail("cluster-signing-key-url", "excludes --cluster-signing-key-file: the key is in one place")
	case r.URL != "":
		if err := r.Check(); err != nil {
			fail("cluster-signing-key-url", "%v", err)
		}
	case r.CAFile+r.CertFile+r.KeyFile != "":
		fail("cluster-signing-key-url", "needed with --cluster-signing-key-ca-file, --cluster-signing-key-client-cert-file and --cluster-signing-key-client-key-file")
	}
}

func (o *serveOptions) checkLimits(fail failure) {
	for flag, rate := range map[string]server.Rate{"client": o.clients, "user": o.users} {
		if !(rate.QPS >= 0 && rate.QPS <= 1e6) || rate.Burst < 0 { // NaN fails both comparisons
			fail(flag+"-qps", "%g and --%s-burst %d given, want 0 or more, and at most 1000000 per second", rate.QPS, flag, rate.Burst)
		}
	}
	switch name := o.cluster.LeaseName; {
	case !tokens.IsOwnName(name):
		fail("leader-elect-resource-name", "%q given, want %s or a name that begins with %[2]s-, because no node can have it", name, tokens.OwnName)
	case name == secretstore.ProofLease:
		fail("leader-elect-resource-name", "%q given, want another name: kubejoin writes this Lease to prove that its cache is current", name)
	}
	if o.userTokens < 0 {
		fail("user-tokens", "%d given, want 0 or more", o.userTokens)
	}
	if o.maxTokenTTL != 0 && o.maxTokenTTL < time.Second {
		fail("max-token-ttl", "%s given, want 0, or 1s or more, for example 168h", o.maxTokenTTL)
	}
	if o.maxTokenNodes < 0 || o.maxTokenNodes > tokens.MaxNodes {
		fail("max-token-nodes", "%d given, want 0 to %d", o.maxTokenNodes, tokens.MaxNodes)
	}
	if o.CA.Duration < signer.MinDuration {
		fail("cluster-signing-duration", "%s given, want at least %s: a kubelet would renew a shorter certificate all the time, since certificates are valid from 5m before they are issued", o.CA.Duration, signer.MinDuration)
	}
	if err := checkRotationQPS(o.CA.RotationQPS); err != nil {
		fail("ca-rotation-qps", "%v", err)
	}
	if !(o.cluster.QPS >= 0 && o.cluster.QPS <= 1e6) || o.cluster.Burst < 0 { // NaN fails both comparisons
		fail("kube-api-qps", "%g and --kube-api-burst %d given, want 0 or more, and at most 1000000 per second", o.cluster.QPS, o.cluster.Burst)
	}
}

func (o *serveOptions) checkNodes(fail failure) {
	if !slices.Contains([]string{denyExisting, allowExisting}, o.existingNodes) {
		fail("existing-nodes", "%q given, want %s or %s", o.existingNodes, denyExisting, allowExisting)
	}
	for _, pattern := range o.NodeRules.Reserved {
		if err := tokens.CheckNodePattern(pattern); err != nil {
			fail("reserved-node-names", "%v", err)
		}
	}
	switch {
	case o.NodeRules.RejoinWindow < 0:
		fail("rejoin-window", "%s given, want 0 or more, for example 720h", o.NodeRules.RejoinWindow)
	case o.NodeRules.RejoinBudget < 1 || o.NodeRules.RejoinBudget > tokens.MaxRejoins:
		fail("rejoin-budget", "%d given, want 1 to %d", o.NodeRules.RejoinBudget, tokens.MaxRejoins)
	case o.NodeRules.RejoinWindow == 0 && o.given("rejoin-budget"):
		fail("rejoin-budget", "needs --rejoin-window")
	}
	if o.NodeRules.SpentRetention < time.Minute {
		fail("spent-token-retention", "%s given, want 1m or more: a node still needs the token to fetch its certificate", o.NodeRules.SpentRetention)
	}
}

// serving reads the flags about serving certificates of kubelets.
func (o *serveOptions) serving(fail failure) daemon.Serving {
	s := daemon.Serving{Scope: approval.ServingScope{ControlPlane: o.NodeRules.Reserved}}
	for _, text := range o.cidrs {
		p, err := approval.ParseServingCIDR(text)
		if err != nil {
			fail("serving-allowed-cidr", "%v", err)
		}
		s.Scope.CIDRs = append(s.Scope.CIDRs, p)
	}
	for _, text := range o.suffixes {
		suffix, err := approval.ParseServingSuffix(text)
		if err != nil {
			fail("serving-allowed-dns-suffix", "%v", err)
		}
		s.Scope.DNSSuffixes = append(s.Scope.DNSSuffixes, suffix)
	}
	s.Scope.LeaveAlone = o.leaveAlone
	if err := (approval.ServingScope{LeaveAlone: o.leaveAlone}).Check(); err != nil {
		fail("serving-leave-alone", "%v", err)
	}
	for _, text := range o.services {
		// kube-apiserver checks the bits after the prefix.
		p, err := netip.ParsePrefix(text)
		if err != nil || p.Addr().Is4In6() {
			fail("service-cluster-ip-range", "%.300q given, want a range of addresses such as 10.96.0.0/12", text)
		}
		s.ServiceCIDRs = append(s.ServiceCIDRs, p.Masked())
	}
	if len(o.services) > 2 || len(o.services) == 2 && s.ServiceCIDRs[0].Addr().Is4() == s.ServiceCIDRs[1].Addr().Is4() {
		fail("service-cluster-ip-range", "%q given, want one range, or one of IPv4 and one of IPv6", o.services)
	}
	return s
}

// enabledControllers reads a list as kube-controller-manager does: a name in it wins over '*'.
func enabledControllers(list []string) (map[string]bool, error) {
	said := map[string]bool{}
	all := false
	for _, item := range list {
		name, off := strings.CutPrefix(item, "-")
		switch {
		case item == "*":
			all = true
		case !slices.Contains(daemon.ControllerNames, name):
			return nil, fmt.Errorf("unknown controller %q, want '*', NAME or -NAME; names: %s", item, strings.Join(daemon.ControllerNames, ", "))
		default:
			if before, twice := said[name]; twice && before == off {
				return nil, fmt.Errorf("%s is switched both on and off", name)
			}
			said[name] = !off
		}
	}
	enabled := map[string]bool{}
	for _, name := range daemon.ControllerNames {
		on, named := said[name]
		enabled[name] = on || all && !named
	}
	return enabled, nil
}

// checkTokenStore refuses flags that the token store does not support, and flags that exclude each other.
func (o *serveOptions) checkTokenStore(fail failure) {
	if !slices.Contains([]string{"", storeKubernetes, storeFile, storeEtcd}, o.tokenStore) {
		fail("token-store", "%q given, want %s, %s or %s", o.tokenStore, storeKubernetes, storeFile, storeEtcd)
	}
	if o.tokenStore == storeEtcd {
		checkEtcd(o.etcd, fail)
	} else {
		for _, flag := range []string{"etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "etcd-prefix"} {
			if o.given(flag) {
				fail(flag, "needs --token-store=etcd")
			}
		}
	}
	if o.IssuanceRetention < 0 {
		fail("issuance-retention", "%s given, want 0 or more, for example 2160h", o.IssuanceRetention)
	}
	if o.tokenStore == storeFile && o.cluster.LeaderElect && o.given("leader-elect") {
		fail("leader-elect", "excludes --token-store=file, which supports only one replica")
	}
	if o.cluster.Kubeconfig != "" && (o.tokenStore == "" || o.tokenStore == storeKubernetes) && o.given("data-dir") {
		fail("data-dir", "needs standalone mode, --token-store=file or --token-store=etcd; --kubeconfig stores tokens in the cluster")
	}
	if (o.Webhook.ClientCAFile == "") != (o.Webhook.ClientName == "") {
		fail("webhook-client-ca-file", "goes together with --webhook-client-name, and one of them is missing")
	}
}

// checkEtcd reports each invalid flag of a store in etcd.
func checkEtcd(c etcdstore.Config, fail failure) {
	for _, err := range c.Check() {
		fail(err.Field, "%v", err.Err)
	}
}

func (o *serveOptions) checkOutput(fail failure) {
	if !slices.Contains([]string{"text", "json"}, o.logFormat) {
		fail("log-format", "%q given, want text or json", o.logFormat)
	}
	if o.verbosity < 0 || o.verbosity > logging.MaxVerbosity {
		fail("verbosity", "%d given, want 0 to %d; higher levels would log the contents of Secrets", o.verbosity, logging.MaxVerbosity)
	}
}

// checkOnCluster refuses flags that make no sense on a cluster.
func (o *serveOptions) checkOnCluster(enabled map[string]bool, fail failure) {
	if o.NodeRules.RejoinWindow > 0 && (!enabled[daemon.CSRSigner] || o.cluster.Shadow) {
		fail("rejoin-window", "needs csr-signer and no --shadow: kubejoin knows only the keys of certificates that it has signed")
	}
	if o.CA.CertFile == "" {
		if enabled[daemon.CSRSigner] && o.SignerConfig == "" {
			fail("controllers", "csr-signer needs --cluster-signing-cert-file and --cluster-signing-key-file (or -key-url); to switch it off: --controllers='*,-csr-signer'")
		}
		if o.TLS.CertFile == "" {
			fail("tls-cert-file", "needed, since kubejoin cannot issue a serving certificate without --cluster-signing-key-file or -key-url")
		}
	}
	if o.tokenStore != storeFile && o.tokenStore != storeEtcd && o.given("webhook-audience") {
		fail("webhook-audience", "needs --token-store=file or etcd; kube-apiserver checks tokens in Secrets without kubejoin")
	}
}

// checkStandalone refuses flags that need a cluster. It reports only the first one.
func (o *serveOptions) checkStandalone(fail failure) {
	for _, flag := range []string{"shadow", "leader-elect", "leader-elect-resource-namespace", "leader-elect-resource-name", "kube-api-qps", "kube-api-burst", "api-audiences", "pki-dir"} {
		if o.given(flag) {
			fail(flag, "needs a cluster: give --kubeconfig")
			return
		}
	}
	if o.tokenStore == storeKubernetes {
		fail("token-store", "kubernetes needs a cluster: give --kubeconfig")
		return
	}
	for _, name := range o.controllers {
		if name == daemon.BootstrapSigner || strings.HasPrefix(name, "csr-") {
			fail("controllers", "%s needs a cluster: give --kubeconfig", name)
			return
		}
	}
}

// limit converts a rate from flags, where 0 means unlimited, to a server.Rate, where a negative QPS does.
func limit(r server.Rate) server.Rate {
	if r.QPS == 0 {
		r.QPS = -1
	}
	return r
}
