package main

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/daemon"
	"github.com/kubejoin/kubejoin/internal/logging"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

// options checks the flags, and converts them for the daemon.
func (o *serveOptions) options() (daemon.Options, error) {
	var m mistakes
	o.checkAddresses(&m)
	o.checkFiles(&m)
	o.checkLimits(&m)
	o.checkNodes(&m)
	made := o.Options
	made.Serving = o.serving(&m)
	enabled, err := enabledControllers(o.controllers)
	m.in("--controllers", err)
	made.Controllers = enabled
	o.checkTokenStore(&m)
	o.checkOutput(&m)
	if len(m) > 0 {
		return daemon.Options{}, m.err()
	}
	if o.isOnCluster() {
		o.checkOnCluster(enabled, &m)
		onCluster := o.cluster
		onCluster.OwnTokens = o.tokenStore == storeFile || o.tokenStore == storeEtcd
		onCluster.LeaderElect = o.cluster.LeaderElect && o.tokenStore != storeFile // replicas share no file
		made.Cluster = &onCluster
	} else {
		o.checkStandalone(&m)
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
	return made, m.err()
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

func (o *serveOptions) checkAddresses(m *mistakes) {
	_, port, err := net.SplitHostPort(o.Listen)
	m.when(err != nil || port == "", "--listen: %q given, want HOST:PORT or :PORT", o.Listen)
	m.when(o.ShutdownDelay < 0, "--shutdown-delay-duration: %s given, want 0s or more", o.ShutdownDelay)
	if o.Advertise != "" {
		m.in("--advertise", clusterinfo.CheckEndpoint(o.Advertise))
	}
	m.url("--api-server", o.APIServer)
	if _, err := clusterinfo.Endpoint(o.APIServer); err == nil && o.Advertise == "" && o.isOnCluster() {
		_, err = clusterinfo.JoinEndpoint(o.APIServer)
		m.when(err != nil, "--api-server: %w; with --advertise HOST:PORT, join commands name kubejoin instead", err)
	}
	for _, san := range o.TLS.SANs {
		m.when(clusterinfo.CheckEndpoint(net.JoinHostPort(san, "1")) != nil, "--tls-san: %q given, want a DNS name or an IP address", san)
	}
}

func (o *serveOptions) checkFiles(m *mistakes) {
	key := "cluster-signing-key-file"
	if o.CA.Remote.URL != "" {
		key = "cluster-signing-key-url"
	}
	m.together("cluster-signing-cert-file", o.CA.CertFile, key, o.CA.KeyFile+o.CA.Remote.URL)
	m.together("tls-cert-file", o.TLS.CertFile, "tls-private-key-file", o.TLS.KeyFile)
	m.when(o.CA.PassphraseFile == "" && o.given("cluster-signing-key-passphrase-file"), "--cluster-signing-key-passphrase-file: is empty, want a file")
	m.when(o.CA.PassphraseFile != "" && o.CA.KeyFile == "", "--cluster-signing-key-passphrase-file: needs --cluster-signing-key-file, the key that it decrypts")
	o.checkRemoteKey(m)
	m.when(o.SignerConfig == "" && o.given("signer-config"), "--signer-config: is empty, want a file")
	m.when(o.cluster.TokenLimits == "" && o.given("token-limits"), "--token-limits: is empty, want a file")
	m.when(o.IssuanceRecord == "" && o.given("issuance-record"), "--issuance-record: is empty, want a file, or - for standard output")
}

// checkRemoteKey checks the flags about a CA key that is elsewhere.
func (o *serveOptions) checkRemoteKey(m *mistakes) {
	r := o.CA.Remote
	m.when(r.URL != "" && o.CA.KeyFile != "", "--cluster-signing-key-url: excludes --cluster-signing-key-file: the key is in one place")
	if r.URL != "" && o.CA.KeyFile == "" {
		m.in("--cluster-signing-key-url", r.Check())
	}
	m.when(r.URL == "" && r.CAFile+r.CertFile+r.KeyFile != "", "--cluster-signing-key-url: needed with --cluster-signing-key-ca-file, --cluster-signing-key-client-cert-file and --cluster-signing-key-client-key-file")
}

func (o *serveOptions) checkLimits(m *mistakes) {
	qps, err := strconv.ParseFloat(fmt.Sprint(o.cluster.QPS), 64) // as the user typed it
	m.in("--kube-api-qps", err)
	for flag, rate := range map[string]server.Rate{"client": o.clients, "user": o.users, "kube-api": {QPS: qps, Burst: o.cluster.Burst}} {
		ok := rate.QPS >= 0 && rate.QPS <= 1e6 && rate.Burst >= 0 // NaN fails the first comparison
		m.when(!ok, "--%s-qps: %g and --%[1]s-burst %[3]d given, want 0 or more, and at most 1000000 per second", flag, rate.QPS, rate.Burst)
	}
	name := o.cluster.LeaseName
	m.when(!tokens.IsOwnName(name), "--leader-elect-resource-name: %q given, want %s or a name that begins with %[2]s-, because no node can have it", name, tokens.OwnName)
	m.when(name == secretstore.ProofLease, "--leader-elect-resource-name: %q given, want another name: kubejoin writes this Lease to prove that its cache is current", name)
	m.when(o.userTokens < 0, "--user-tokens: %d given, want 0 or more", o.userTokens)
	m.when(o.maxTokenTTL != 0 && o.maxTokenTTL < time.Second, "--max-token-ttl: %s given, want 0, or 1s or more, for example 168h", o.maxTokenTTL)
	m.when(o.maxTokenNodes < 0 || o.maxTokenNodes > tokens.MaxNodes, "--max-token-nodes: %d given, want 0 to %d", o.maxTokenNodes, tokens.MaxNodes)
	m.when(o.CA.Duration < signer.MinDuration, "--cluster-signing-duration: %s given, want at least %s: a kubelet would renew a shorter certificate all the time, since certificates are valid from 5m before they are issued", o.CA.Duration, signer.MinDuration)
	m.in("--ca-rotation-qps", checkRotationQPS(o.CA.RotationQPS))
}

func (o *serveOptions) checkNodes(m *mistakes) {
	for _, pattern := range o.NodeRules.Reserved {
		m.in("--reserved-node-names", tokens.CheckNodePattern(pattern))
	}
	m.when(o.NodeRules.RejoinWindow < 0, "--rejoin-window: %s given, want 0 or more, for example 720h", o.NodeRules.RejoinWindow)
	bad := o.NodeRules.RejoinBudget < 1 || o.NodeRules.RejoinBudget > tokens.MaxRejoins
	m.when(bad, "--rejoin-budget: %d given, want 1 to %d", o.NodeRules.RejoinBudget, tokens.MaxRejoins)
	m.when(!bad && o.NodeRules.RejoinWindow == 0 && o.given("rejoin-budget"), "--rejoin-budget: needs --rejoin-window")
	m.when(o.NodeRules.SpentRetention < time.Minute, "--spent-token-retention: %s given, want 1m or more: a node still needs the token to fetch its certificate", o.NodeRules.SpentRetention)
}

// serving reads the flags about serving certificates of kubelets.
func (o *serveOptions) serving(m *mistakes) daemon.Serving {
	s := daemon.Serving{Scope: approval.ServingScope{ControlPlane: o.NodeRules.Reserved}}
	for _, text := range o.cidrs {
		p, err := approval.ParseServingCIDR(text)
		m.in("--serving-allowed-cidr", err)
		s.Scope.CIDRs = append(s.Scope.CIDRs, p)
	}
	for _, text := range o.suffixes {
		suffix, err := approval.ParseServingSuffix(text)
		m.in("--serving-allowed-dns-suffix", err)
		s.Scope.DNSSuffixes = append(s.Scope.DNSSuffixes, suffix)
	}
	s.Scope.LeaveAlone = o.leaveAlone
	m.in("--serving-leave-alone", (approval.ServingScope{LeaveAlone: o.leaveAlone}).Check())
	for _, text := range o.services {
		// kube-apiserver checks the bits after the prefix.
		p, err := netip.ParsePrefix(text)
		m.when(err != nil || p.Addr().Is4In6(), "--service-cluster-ip-range: %.300q given, want a range of addresses such as 10.96.0.0/12", text)
		s.ServiceCIDRs = append(s.ServiceCIDRs, p.Masked())
	}
	m.when(len(o.services) > 2 || len(o.services) == 2 && s.ServiceCIDRs[0].Addr().Is4() == s.ServiceCIDRs[1].Addr().Is4(), "--service-cluster-ip-range: %q given, want one range, or one of IPv4 and one of IPv6", o.services)
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
func (o *serveOptions) checkTokenStore(m *mistakes) {
	if o.tokenStore == storeEtcd {
		for _, err := range o.etcd.Check() {
			m.in("--"+err.Field, err.Err)
		}
	} else {
		m.excludes(o.given, "needs --token-store=etcd", "etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "etcd-prefix")
	}
	m.when(o.cluster.TokenLimits != "" && (o.tokenStore == storeFile || o.tokenStore == storeEtcd), "--token-limits: excludes --token-store=%s, whose tokens only kubejoin makes: give limits to 'kubejoin token create'", o.tokenStore)
	m.when(o.IssuanceRetention < 0, "--issuance-retention: %s given, want 0 or more, for example 2160h", o.IssuanceRetention)
	m.when(o.tokenStore == storeFile && o.cluster.LeaderElect && o.given("leader-elect"), "--leader-elect: excludes --token-store=file, which supports only one replica")
	m.when(o.cluster.Kubeconfig != "" && (o.tokenStore == "" || o.tokenStore == storeKubernetes) && o.given("data-dir"), "--data-dir: needs standalone mode, --token-store=file or --token-store=etcd; --kubeconfig stores tokens in the cluster")
	m.together("webhook-client-ca-file", o.Webhook.ClientCAFile, "webhook-client-name", o.Webhook.ClientName)
}

func (o *serveOptions) checkOutput(m *mistakes) {
	m.when(o.verbosity < 0 || o.verbosity > logging.MaxVerbosity, "--verbosity: %d given, want 0 to %d; higher levels would log the contents of Secrets", o.verbosity, logging.MaxVerbosity)
}

// checkOnCluster refuses flags that make no sense on a cluster.
func (o *serveOptions) checkOnCluster(enabled map[string]bool, m *mistakes) {
	m.when(o.NodeRules.RejoinWindow > 0 && (!enabled[daemon.CSRSigner] || o.cluster.Shadow), "--rejoin-window: needs csr-signer and no --shadow: kubejoin knows only the keys of certificates that it has signed")
	if o.CA.CertFile == "" {
		m.when(enabled[daemon.CSRSigner] && o.SignerConfig == "", "--controllers: csr-signer needs --cluster-signing-cert-file and --cluster-signing-key-file (or -key-url); to switch it off: --controllers='*,-csr-signer'")
		m.when(o.TLS.CertFile == "", "--tls-cert-file: needed, since kubejoin cannot issue a serving certificate without --cluster-signing-key-file or -key-url")
	}
	m.when(o.tokenStore != storeFile && o.tokenStore != storeEtcd && o.given("webhook-audience"), "--webhook-audience: needs --token-store=file or etcd; kube-apiserver checks tokens in Secrets without kubejoin")
}

// checkStandalone refuses flags that need a cluster. It reports only the first one.
func (o *serveOptions) checkStandalone(m *mistakes) {
	var found mistakes
	found.excludes(o.given, "needs a cluster: give --kubeconfig",
		"shadow", "leader-elect", "leader-elect-resource-namespace", "leader-elect-resource-name", "kube-api-qps", "kube-api-burst", "api-audiences", "pki-dir", "token-limits")
	found.when(o.tokenStore == storeKubernetes, "--token-store: kubernetes needs a cluster: give --kubeconfig")
	for _, name := range o.controllers {
		found.when(name == daemon.BootstrapSigner || strings.HasPrefix(name, "csr-"), "--controllers: %s needs a cluster: give --kubeconfig", name)
	}
	*m = append(*m, found[:min(len(found), 1)]...)
}

// limit converts a rate from flags, where 0 means unlimited, to a server.Rate, where a negative QPS does.
func limit(r server.Rate) server.Rate {
	if r.QPS == 0 {
		r.QPS = -1
	}
	return r
}
