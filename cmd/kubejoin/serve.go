package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/logging"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/kubeauth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Names of the controllers, as in --controllers.
const (
	bootstrapSigner = "bootstrap-signer"
	tokenCleaner    = "token-cleaner"
	csrApprover     = "csr-approver"
	csrSigner       = "csr-signer"
	csrCleaner      = "csr-cleaner"
	claimCleaner    = "claim-cleaner"
)

var controllerNames = []string{bootstrapSigner, tokenCleaner, csrApprover, csrSigner, csrCleaner, claimCleaner}

// Values of --tls-min-version.
const (
	tls12 = "VersionTLS12"
	tls13 = "VersionTLS13"
)

// adminGroup may do everything.
const adminGroup = "kubejoin:admins"

// serveOptions are serve's flags.
type serveOptions struct {
	listen, advertise, apiServer string
	tlsSANs                      []string
	dataDir                      string
	kubeconfig                   string
	kubeAPIQPS                   float32
	kubeAPIBurst                 int
	controllers                  []string
	caCert, caKey                string
	duration                     time.Duration
	signerConfig                 string
	existingNodes                string
	reservedNodeNames            []string
	spentRetention               time.Duration
	serving                      servingOptions
	shadow                       bool
	issuanceRecord               string
	tlsCert, tlsKey              string
	tlsMinVersion                string
	clients, users               server.Rate // zero is no limit
	userTokens                   int         // zero is no limit
	tokenAuthFile                string
	clientCA                     string
	apiAudiences                 []string
	tokenStore                   string
	webhookClientCA              string
	webhookClientName            string
	webhookAudiences             []string
	leaderElect                  bool
	leaseNamespace, leaseName    string
	logFormat                    string
	verbosity                    int

	given func(flag string) bool // on the command line
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the HTTPS API and the controllers",
		Long: `Run the HTTPS API and, on a cluster, the controllers.

Standalone, with neither --kubeconfig nor a pod's service account, tokens are kept
in one file in --data-dir. A cluster CA and an admin's bearer token are made there
on the first start, and a curlrc that holds both for curl -K.

On a cluster --token-store=file keeps tokens out of it: kube-apiserver asks kubejoin
about them, see 'kubejoin webhook-config --help'.

On a cluster, tokens are Secrets, cluster-info is the ConfigMap in kube-public, and
these controllers do the work of kube-controller-manager's:
  bootstrap-signer  keeps cluster-info signed by the tokens that are alive
  token-cleaner     deletes tokens when they expire
  csr-approver      approves kubelets' client certificates, as RBAC lets it, and
                    their serving certificates in --serving-allowed-cidr and
                    --serving-allowed-dns-suffix
  csr-signer        signs what is approved: kubelets' client and serving
                    certificates and kube-apiserver-client
  csr-cleaner       deletes requests that are done with
  claim-cleaner     frees the names that limited tokens took, when their Nodes
                    are deleted
Signers of other names, and other CAs and durations, are in a file: --signer-config,
see 'kubejoin signer-config --help'.
Run each on one side alone: switch it off here with --controllers='*,-NAME', or
there with kube-controller-manager's own --controllers.

Who may do what is RBAC's to say on a cluster: callers come with a service account's
token ('kubectl create token NAME --audience kubejoin'), or with a client certificate
of --client-ca-file, and deploy/manifests has roles for them. Admins in
--token-auth-file may do everything, and standalone nobody else anything.`,
		Example: `  # a join service in seconds, with no cluster
  kubejoin serve

  # on a cluster, with join commands that name kubejoin itself for discovery
  kubejoin serve --kubeconfig admin.conf --listen :9443 --advertise join.example.com:9443 \
    --cluster-signing-cert-file ca.crt --cluster-signing-key-file ca.key \
    --token-auth-file operators.csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.given = cmd.Flags().Changed
			if err := o.check(); err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
			}
			return usageOf(cmd, serve(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr()))
		},
	}
	o.register(cmd.Flags())
	_ = cmd.MarkFlagFilename("signer-config", "yaml", "yml")
	// The names of fixed values complete, and nothing else does but files.
	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("log-format", "text", "json")
	complete("tls-min-version", tls12, tls13)
	complete("existing-nodes", denyExisting, allowExisting)
	complete("token-store", storeKubernetes, storeFile)
	complete("controllers", append([]string{"*"}, controllerNames...)...)
	return cmd
}

func (o *serveOptions) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.listen, "listen", "127.0.0.1:9443", "HOST:PORT to serve HTTPS on; :PORT is every address of this machine")
	f.StringVar(&o.advertise, "advertise", "", "HOST:PORT that join commands name for discovery (default: standalone this server; on a cluster the API server that cluster-info names)")
	f.StringVar(&o.apiServer, "api-server", "", "https://HOST:PORT of the API server that cluster-info names (default: what cluster-info names already, or the kubeconfig's; standalone port 6443 of --advertise's host)")
	f.StringVar(&o.tokenAuthFile, "token-auth-file", "", `bearer tokens of operators, as kube-apiserver's: lines of token,user,uid,"group1,group2"; group `+adminGroup+" may do everything (default: standalone one that is made in --data-dir; on a cluster none)")
	f.StringVar(&o.clientCA, "client-ca-file", "", "CA of the client certificates by which nodes are known, and on a cluster users, as kube-apiserver's flag of that name (default: standalone the cluster CA, and for nodes the one that their signer has in --signer-config; on a cluster none)")
	f.StringSliceVar(&o.apiAudiences, "api-audiences", []string{kubeauth.Audience}, "on a cluster: audiences of which the bearer token of a service account, or of another user of the cluster, has to be for one (repeatable)")
	f.StringVar(&o.tlsCert, "tls-cert-file", "", "certificate chain to serve with; kubeadm needs one that the cluster CA signed (default: one is issued from the cluster CA and renewed)")
	f.StringVar(&o.tlsKey, "tls-private-key-file", "", "key of --tls-cert-file")
	f.StringVar(&o.tlsMinVersion, "tls-min-version", tls13, tls12+" or "+tls13+", as kube-apiserver's: the oldest TLS that is spoken; of 1.2 only with forward secrecy and authenticated encryption")
	f.StringSliceVar(&o.tlsSANs, "tls-san", nil, "more names and addresses for the serving certificate that is issued (repeatable)")

	f.Float64Var(&o.clients.QPS, "client-qps", server.DefaultClientQPS, "most requests a second, and new connections, from one address, or from one /64 of IPv6; more are answered 429. Credentials that are not accepted are counted apart, 100 and then 10 a second. 0 is no limit of either, nor of what one address has in flight, for where all clients come from one address, as behind a proxy")
	f.IntVar(&o.clients.Burst, "client-burst", server.DefaultClientBurst, "most of them at once after a while without; 0 is as many as --client-qps")
	f.Float64Var(&o.users.QPS, "user-qps", server.DefaultUserQPS, "most requests a second of one user, be it an operator, a node or a bootstrap token; more are answered 429; 0 is no limit, nor one of what a user has in flight, nor one of certificates")
	f.IntVar(&o.users.Burst, "user-burst", server.DefaultUserBurst, "most of them at once after a while without; 0 is as many as --user-qps")

	f.IntVar(&o.userTokens, "user-tokens", server.DefaultUserTokens, "most live tokens that one user may have made over HTTPS, over all replicas; more are answered 507; 0 is no limit")

	f.StringVar(&o.dataDir, "data-dir", "kubejoin-data", "folder of the CA, the tokens and curlrc where kubejoin is standalone; of the tokens with --token-store=file")
	f.StringVar(&o.tokenStore, "token-store", "", "where tokens and claims are: kubernetes is Secrets and Leases, file one file in --data-dir, of which kube-apiserver learns as 'kubejoin webhook-config' says; one replica (default: kubernetes on a cluster, file standalone)")
	f.StringVar(&o.webhookClientCA, "webhook-client-ca-file", "", "with tokens in a file: CA of kube-apiserver's client certificate, by which it may ask about tokens instead of by the bearer token in --data-dir")
	f.StringVar(&o.webhookClientName, "webhook-client-name", "", "common name of that certificate, such as kube-apiserver-kubelet-client")
	f.StringSliceVar(&o.webhookAudiences, "webhook-audience", nil, "with tokens in a file: --api-audiences of kube-apiserver, to say no to reviews for others here (repeatable; default: kube-apiserver does that)")

	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to work on (default: the service account in a pod, or standalone)")
	f.Float32Var(&o.kubeAPIQPS, "kube-api-qps", 0, "most requests a second to the API server; 0 is no limit, the API server's own priority and fairness decides")
	f.IntVar(&o.kubeAPIBurst, "kube-api-burst", 0, "most requests at once above --kube-api-qps; 0 is as many as --kube-api-qps")
	f.StringSliceVar(&o.controllers, "controllers", []string{"*"}, "controllers to run: '*' is all, NAME switches one on and -NAME off; known: "+strings.Join(controllerNames, ", "))
	f.StringVar(&o.caCert, "cluster-signing-cert-file", "", "the cluster CA's certificate, or several in a rotation: the one that matches the key signs")
	f.StringVar(&o.caKey, "cluster-signing-key-file", "", "key of --cluster-signing-cert-file")
	f.DurationVar(&o.duration, "cluster-signing-duration", 365*24*time.Hour, "longest lifetime of certificates, and the lifetime where a request asks for none")
	f.StringVar(&o.signerConfig, "signer-config", "", "file that says which signers there are, each with its CA, durations and what may be asked of it, see 'kubejoin signer-config --help'; it is followed as it changes (default: what 'kubejoin signer-config default' prints)")
	f.StringVar(&o.existingNodes, "existing-nodes", denyExisting, "deny or allow: whether a first client certificate may be had for the name of a Node that exists; 'kubejoin token create --replace-node' is for single ones")
	f.StringSliceVar(&o.reservedNodeNames, "reserved-node-names", nil, "names, with * for any characters, that only tokens of role control-plane may take (repeatable)")
	f.DurationVar(&o.spentRetention, "spent-token-retention", signer.DefaultRetention, "how long a token stays after the last node that it allows has joined")
	f.BoolVar(&o.shadow, "shadow", false, "on a cluster: csr-approver and csr-signer decide and write nothing; the log and kubejoin_csr_shadow_total say what they would do, for a trial beside kube-controller-manager; csr-cleaner is off then")
	o.serving.register(f)
	f.StringVar(&o.issuanceRecord, "issuance-record", "", "file to which each certificate that is issued, refused or cannot be issued is appended as a line of JSON; - is standard output, for jq (a file in --data-dir keeps them as well, for 'kubejoin issued')")
	f.BoolVar(&o.leaderElect, "leader-elect", true, "on a cluster: run controllers only while holding a Lease, so that replicas can stand by")
	f.StringVar(&o.leaseNamespace, "leader-elect-resource-namespace", secretstore.ClaimNamespace, "namespace of that Lease")
	f.StringVar(&o.leaseName, "leader-elect-resource-name", "kubejoin", "name of that Lease")

	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.IntVarP(&o.verbosity, "verbosity", "v", 0, "0 for operators, 1 for every request and decision, 4 to 6 for calls to the API server")
}

// check refuses what cannot be meant whatever the files and the cluster hold.
func (o *serveOptions) check() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--%s: %s", flag, fmt.Sprintf(format, args...)))
	}
	if _, port, err := net.SplitHostPort(o.listen); err != nil || port == "" {
		fail("listen", "%q given, want HOST:PORT or :PORT", o.listen)
	}
	if o.advertise != "" {
		if err := clusterinfo.CheckEndpoint(o.advertise); err != nil {
			fail("advertise", "%v", err)
		}
	}
	if o.apiServer != "" {
		u, err := url.Parse(o.apiServer)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			fail("api-server", "want https://HOST:PORT")
		}
	}
	for flag, pair := range map[string][2]string{
		"cluster-signing-cert-file": {o.caCert, o.caKey},
		"tls-cert-file":             {o.tlsCert, o.tlsKey},
	} {
		if (pair[0] == "") != (pair[1] == "") {
			fail(flag, "certificate and key go together, and one of them is missing")
		}
	}
	for _, san := range o.tlsSANs {
		if !isHost(san) {
			fail("tls-san", "%q given, want a DNS name or an IP address", san)
		}
	}
	if o.tlsMinVersion != tls12 && o.tlsMinVersion != tls13 {
		fail("tls-min-version", "%q given, want %s or %s", o.tlsMinVersion, tls12, tls13)
	}
	for flag, rate := range map[string]server.Rate{"client": o.clients, "user": o.users} {
		if !(rate.QPS >= 0 && rate.QPS <= 1e6) || rate.Burst < 0 { // NaN is neither
			fail(flag+"-qps", "%g and --%s-burst %d given; want 0 or more, and a million a second at most", rate.QPS, flag, rate.Burst)
		}
	}
	if o.userTokens < 0 {
		fail("user-tokens", "%d given; want 0 or more", o.userTokens)
	}
	if o.duration < signer.MinDuration {
		fail("cluster-signing-duration", "%s given, want at least %s: a certificate begins 5m before it is issued, and a kubelet would renew a shorter one again at once", o.duration, signer.MinDuration)
	}
	if o.signerConfig == "" && o.given("signer-config") {
		fail("signer-config", "is empty, want a file")
	}
	o.checkAdmission(fail)
	o.serving.check(o.reservedNodeNames, fail)
	if _, err := enabledControllers(o.controllers); err != nil {
		fail("controllers", "%v", err)
	}
	if !(o.kubeAPIQPS >= 0 && o.kubeAPIQPS <= 1e6) || o.kubeAPIBurst < 0 { // NaN is neither
		fail("kube-api-qps", "%g and --kube-api-burst %d given; want 0 or more, and a million at most", o.kubeAPIQPS, o.kubeAPIBurst)
	}
	o.checkTokenStore(fail)
	if len(o.apiAudiences) == 0 || slices.Contains(o.apiAudiences, "") {
		fail("api-audiences", "one is empty, want names such as %s", kubeauth.Audience)
	}
	if o.issuanceRecord == "" && o.given("issuance-record") {
		fail("issuance-record", "is empty, want a file, or - for standard output")
	}
	if !slices.Contains([]string{"text", "json"}, o.logFormat) {
		fail("log-format", "%q given, want text or json", o.logFormat)
	}
	if o.verbosity < 0 || o.verbosity > logging.MaxVerbosity {
		fail("verbosity", "%d given, want 0 to %d; above that client-go would log what Secrets hold", o.verbosity, logging.MaxVerbosity)
	}
	return errors.Join(errs...)
}

// enabledControllers reads a --controllers list as kube-controller-manager does: a name said
// by itself wins over '*'.
func enabledControllers(list []string) (map[string]bool, error) {
	said := map[string]bool{}
	all := false
	for _, item := range list {
		name, off := strings.CutPrefix(item, "-")
		switch {
		case item == "*":
			all = true
		case !slices.Contains(controllerNames, name):
			return nil, fmt.Errorf("%q is not a controller; want '*', NAME or -NAME of %s", item, strings.Join(controllerNames, ", "))
		default:
			if before, twice := said[name]; twice && before == off {
				return nil, fmt.Errorf("%s is switched both on and off", name)
			}
			said[name] = !off
		}
	}
	enabled := map[string]bool{}
	for _, name := range controllerNames {
		on, named := said[name]
		enabled[name] = on || all && !named
	}
	return enabled, nil
}

// limit is a rate of flags, of which zero is no limit.
func limit(r server.Rate) server.Rate {
	if r.QPS == 0 {
		r.QPS = -1
	}
	return r
}

// userTokens is the bound of a flag, of which zero is no limit.
func userTokens(n int) int {
	if n == 0 {
		return -1
	}
	return n
}

// serve chooses the way to run.
func serve(ctx context.Context, o serveOptions, stdout, stderr io.Writer) error {
	log, err := logging.New(stderr, o.logFormat, o.verbosity)
	if err != nil {
		return err
	}
	if err := logging.RouteKlog(log, o.verbosity); err != nil {
		return err
	}
	defer runtime.KeepAlive(roomForGarbage())
	return serveWith(ctx, o, log, stdout)
}

// serveWith is serve with a logger, which klog, being global, need not share.
func serveWith(ctx context.Context, o serveOptions, log *slog.Logger, stdout io.Writer) error {
	build := standalone
	if o.kubeconfig != "" || inCluster() && (o.given("token-store") || !o.given("data-dir")) {
		build = onCluster
	}
	s := newService(o, log, stdout)
	defer s.close()
	if err := s.openRecord(); err != nil {
		return err
	}
	if err := build(ctx, s); err != nil {
		return err
	}
	return s.run(ctx)
}

// inCluster is whether a pod's service account is here.
func inCluster() bool {
	_, err := os.Stat("/var/run/secrets/kubernetes.io/serviceaccount/token")
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && err == nil
}
