package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/internal/daemon"
	"github.com/kubejoin/kubejoin/internal/logging"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Values of flags.
const (
	tls12 = "VersionTLS12" // --tls-min-version
	tls13 = "VersionTLS13"

	denyExisting  = "deny" // --existing-nodes
	allowExisting = "allow"

	storeKubernetes = "kubernetes" // --token-store
	storeFile       = "file"
	storeEtcd       = "etcd"
)

// serveOptions are serve's flags.
type serveOptions struct {
	daemon.Options // flags that need no conversion

	cluster                   daemon.ClusterOptions // used on a cluster only
	controllers               []string
	clients, users            server.Rate   // 0: unlimited
	userTokens                int           // 0: unlimited
	maxTokenTTL               time.Duration // 0: unlimited
	maxTokenNodes             int           // 0: unlimited
	cidrs, suffixes, services []string      // allowed in serving certificates
	leaveAlone                []string      // reasons for which kubejoin does not deny a serving certificate
	existingNodes             string
	tokenStore                string
	etcd                      etcdstore.Config // with --token-store=etcd
	tlsMinVersion             string
	logFormat                 string
	verbosity                 int

	given func(flag string) bool // whether the command line sets a flag
}

func serveCommand() *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the HTTPS API and the controllers",
		Long: `Run the HTTPS API and, on a cluster, the controllers.

Standalone, without --kubeconfig and outside a pod, kubejoin keeps tokens in a file in
--data-dir. On the first start it also creates there a cluster CA, an admin's bearer
token, and a curlrc with both for curl -K. Only admins may create tokens.

With --token-store=etcd several replicas share tokens, claims, revocations and the issuance
record in etcd, standalone or on a cluster. They need the same CA and operators: give each
the same files.

On a cluster, tokens are Secrets, and cluster-info is the ConfigMap in kube-public. With
--token-store=file or etcd, tokens are outside the cluster, and kube-apiserver asks kubejoin
about each token; see 'kubejoin webhook-config --help'. These controllers replace those of
kube-controller-manager:
  bootstrap-signer  signs cluster-info with all live tokens
  token-cleaner     deletes expired tokens
  csr-approver      approves client certificates of kubelets, as RBAC allows, and their
                    serving certificates, as the --serving-allowed flags allow
  csr-signer        signs approved requests for client and serving certificates of
                    kubelets, and for kube-apiserver-client
  csr-cleaner       deletes old certificate requests
  claim-cleaner     releases the node names of deleted Nodes
Run each controller on one side only. Switch it off here with --controllers='*,-NAME', or
there with the --controllers flag of kube-controller-manager.

On a cluster, RBAC decides what callers may do. The permissions:
` + docsURL + `http-api.md
A caller presents a service account token, from 'kubectl create token NAME --audience kubejoin',
or a client certificate of --client-ca-file. Admins in --token-auth-file may do everything.`,
		Example: `  # a standalone join service
  kubejoin serve

  # on a cluster; join commands use kubejoin for discovery
  kubejoin serve --kubeconfig admin.conf --listen :9443 --advertise join.example.com:9443 \
    --cluster-signing-cert-file ca.crt --cluster-signing-key-file ca.key \
    --token-auth-file operators.csv`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.given = cmd.Flags().Changed
			options, err := o.options()
			if err != nil {
				if file := o.cluster.Kubeconfig; file != "" && !exists(file) { // a missing kubeconfig may be the cause of the other errors
					err = &usageError{err: errors.Join(fmt.Errorf("--kubeconfig: %s does not exist; want the kubeconfig of the cluster, for example %s", file, adminConf), err)}
				}
				return err
			}
			log, err := logging.New(cmd.ErrOrStderr(), o.logFormat, o.verbosity)
			if err != nil {
				return err
			}
			if err := logging.RouteKlog(log, o.verbosity); err != nil {
				return err
			}
			return daemon.Run(cmd.Context(), options, log, cmd.OutOrStdout())
		},
	}
	cmd.Flags().SortFlags = false
	o.register(cmd.Flags())
	_ = cmd.MarkFlagFilename("signer-config", "yaml", "yml")
	_ = cmd.MarkFlagFilename("token-limits", "yaml", "yml")
	complete(cmd, "controllers", append([]string{"*"}, daemon.ControllerNames...)...)
	return cmd
}

// register adds the flags of serve, in groups.
func (o *serveOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.cluster.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: the service account in a pod, else standalone)")
	f.StringVar(&o.DataDir, "data-dir", "kubejoin-data", "folder for kubejoin's own files: credentials, standalone also the CA, and the tokens of --token-store=file")
	choiceVar(f, &o.tokenStore, "token-store", "", "store for tokens and claims: %s; file allows one replica, etcd many (default: kubernetes on a cluster, file standalone)", storeKubernetes, storeFile, storeEtcd)
	registerEtcd(f, &o.etcd)
	listVar(f, &o.controllers, "controllers", []string{"*"}, "controllers to run: * for all, NAME to switch one on, -NAME to switch one off; names: "+strings.Join(daemon.ControllerNames, ", "))
	f.BoolVar(&o.cluster.Shadow, "shadow", false, "on a cluster: csr-approver and csr-signer only log and count what they would do; csr-cleaner is off")
	f.Float32Var(&o.cluster.QPS, "kube-api-qps", 0, "maximum requests per second that kubejoin sends to the API server (0: unlimited)")
	f.IntVar(&o.cluster.Burst, "kube-api-burst", 0, "burst for --kube-api-qps (0: same as --kube-api-qps)")
	f.BoolVar(&o.cluster.LeaderElect, "leader-elect", true, "on a cluster: run controllers only while this replica holds a Lease")
	f.StringVar(&o.cluster.LeaseNamespace, "leader-elect-resource-namespace", secretstore.ClaimNamespace, "namespace of the Lease for leader election")
	f.StringVar(&o.cluster.LeaseName, "leader-elect-resource-name", tokens.OwnName, "name of the Lease for leader election")
	heading(f, "Cluster and storage flags")

	f.StringVar(&o.Listen, "listen", "127.0.0.1:9443", "HOST:PORT to serve HTTPS on; :PORT listens on all addresses of this machine")
	f.StringVar(&o.Advertise, "advertise", "", "HOST:PORT for discovery in join commands (default: this server if standalone, else the API server in cluster-info)")
	f.StringVar(&o.APIServer, "api-server", "", "https://HOST:PORT of the API server in cluster-info (default: the one already there, else that of the kubeconfig; standalone: port 6443 on the host of --advertise)")
	f.StringVar(&o.TLS.CertFile, "tls-cert-file", "", "serving certificate and its chain; kubeadm requires that the cluster CA signed it (default: kubejoin issues and renews one)")
	f.StringVar(&o.TLS.KeyFile, "tls-private-key-file", "", "private key of --tls-cert-file")
	listVar(f, &o.TLS.SANs, "tls-san", nil, "additional DNS name or IP address in the serving certificate that kubejoin issues (repeatable)")
	f.BoolVar(&o.Console, "console", true, "serve the page at /console, which shows what joins")
	durationVar(f, &o.ShutdownDelay, "shutdown-delay-duration", 0, "how long to go on serving after SIGTERM, with /readyz failing so that load balancers notice")
	choiceVar(f, &o.tlsMinVersion, "tls-min-version", tls13, "oldest accepted TLS version: %s", tls12, tls13)
	heading(f, "HTTPS API flags")

	f.StringVar(&o.Callers.TokenFile, "token-auth-file", "", `CSV file of operators' bearer tokens, lines of token,user,uid,"group1,group2"; group `+daemon.AdminGroup+" may do everything (default: standalone operators.csv in --data-dir; on a cluster none)")
	f.StringVar(&o.Callers.ClientCAFile, "client-ca-file", "", "CA of the client certificates that nodes present, and on a cluster also users (default: standalone the cluster CA, on a cluster none)")
	listVar(f, &o.cluster.Audiences, "api-audiences", []string{kubeauth.Audience}, "on a cluster: audience that a service account token for kubejoin must have, or one of them (repeatable)")
	f.StringVar(&o.Webhook.ClientCAFile, "webhook-client-ca-file", "", "CA of the client certificate with which kube-apiserver asks kubejoin; see 'kubejoin authorization-config --help' and 'kubejoin webhook-config --help'")
	f.StringVar(&o.Webhook.ClientName, "webhook-client-name", "", "common name of kube-apiserver's client certificate, for example kube-apiserver-kubelet-client")
	listVar(f, &o.Webhook.Audiences, "webhook-audience", nil, "with --token-store=file or etcd: audience for which kube-apiserver may ask about tokens, as in its --api-audiences (repeatable; default: any)")
	heading(f, "Authentication flags")

	f.Float64Var(&o.clients.QPS, "client-qps", server.DefaultClientQPS, "maximum requests and new connections per second of one client address, for IPv6 of one /64 (0: no limits for addresses, for example behind a proxy)")
	f.IntVar(&o.clients.Burst, "client-burst", server.DefaultClientBurst, "burst for --client-qps (0: same as --client-qps)")
	f.Float64Var(&o.users.QPS, "user-qps", server.DefaultUserQPS, "maximum requests per second of one operator, node or bootstrap token at one address (0: no limits for users)")
	f.IntVar(&o.users.Burst, "user-burst", server.DefaultUserBurst, "burst for --user-qps (0: same as --user-qps)")
	f.IntVar(&o.userTokens, "user-tokens", mint.DefaultUserTokens, "maximum live tokens that one user may have created over HTTPS, across all replicas (0: unlimited)")
	durationVar(f, &o.maxTokenTTL, "max-token-ttl", server.DefaultMaxTokenTTL, "longest lifetime of a token that a user without the permission tokens/unlimited may create or renew (0: unlimited)")
	f.IntVar(&o.maxTokenNodes, "max-token-nodes", server.DefaultMaxTokenNodes, "highest node limit of a token that a user without the permission tokens/unlimited may create (0: unlimited)")
	heading(f, "Client limit flags")

	f.StringVar(&o.CA.CertFile, "cluster-signing-cert-file", "", "certificate of the cluster CA; of several, as during a CA rotation, the one that matches the key signs")
	f.StringVar(&o.CA.KeyFile, "cluster-signing-key-file", "", "private key of --cluster-signing-cert-file")
	f.StringVar(&o.CA.PassphraseFile, "cluster-signing-key-passphrase-file", "", "passphrase of --cluster-signing-key-file, in one line (default: the key is not encrypted)")
	f.StringVar(&o.CA.Remote.URL, "cluster-signing-key-url", "", "https://HOST:PORT or unix:///PATH of 'kubejoin signer', which has the key instead of --cluster-signing-key-file; see 'kubejoin signer --help'")
	f.StringVar(&o.CA.Remote.CAFile, "cluster-signing-key-ca-file", "", "with an https URL of 'kubejoin signer': CA of its own certificate")
	f.StringVar(&o.CA.Remote.CertFile, "cluster-signing-key-client-cert-file", "", "with an https URL of 'kubejoin signer': client certificate; re-read for each connection")
	f.StringVar(&o.CA.Remote.KeyFile, "cluster-signing-key-client-key-file", "", "private key of --cluster-signing-key-client-cert-file")
	durationVar(f, &o.CA.Duration, "cluster-signing-duration", 365*24*time.Hour, "longest lifetime of certificates, and the lifetime if a request names none")
	f.Float64Var(&o.CA.RotationQPS, "ca-rotation-qps", defaultRotationQPS, "during a CA rotation: how many kubelets per second renew; kubejoin issues certificates that are short enough for it")
	f.StringVar(&o.cluster.PKIDir, "pki-dir", "", "on a cluster: folder with a control plane's certificates and keys, for example "+kubeadmcerts.DefaultDir+", with which control planes join by one request and kubejoin finds failed members of etcd (default: kubejoin refuses such requests)")
	f.StringVar(&o.SignerConfig, "signer-config", "", "file that configures the signers, re-read when it changes; see 'kubejoin signer-config --help' (default: what 'kubejoin signer-config default' prints)")
	f.StringVar(&o.cluster.TokenLimits, "token-limits", "", "file with rules that limit tokens, also those that other programs make, re-read when it changes; see 'kubejoin token-limits --help'")
	choiceVar(f, &o.existingNodes, "existing-nodes", denyExisting, "%s a first client certificate for the name of an existing Node; for single nodes use 'kubejoin token create --replace-node'", denyExisting, allowExisting)
	listVar(f, &o.NodeRules.Reserved, "reserved-node-names", nil, "node name, or a pattern with *, that only tokens with role control-plane may use (repeatable)")
	durationVar(f, &o.NodeRules.SpentRetention, "spent-token-retention", admission.DefaultRetention, "how long to keep a token after the last node of its limit has joined")
	durationVar(f, &o.NodeRules.RejoinWindow, "rejoin-window", 0, "how long after the end of its certificate a node may rejoin, for example 720h (0: nodes cannot rejoin)")
	f.IntVar(&o.NodeRules.RejoinBudget, "rejoin-budget", admission.DefaultRejoinBudget, fmt.Sprintf("with --rejoin-window: how often a node may rejoin within the window, 1 to %d", tokens.MaxRejoins))
	listVar(f, &o.cidrs, "serving-allowed-cidr", nil, "range of machine addresses allowed in kubelet serving certificates, for example 10.0.0.0/16 (repeatable; without this and --serving-allowed-dns-suffix, kubejoin approves none)")
	listVar(f, &o.suffixes, "serving-allowed-dns-suffix", nil, "domain allowed in kubelet serving certificates besides the name of the Node, for example node.example.com (repeatable)")
	listVar(f, &o.leaveAlone, "serving-leave-alone", nil, "do not deny kubelet serving certificates for this reason, but wait for a person to approve or deny: "+safetext.List(approval.DenialReasons(), "or")+" (repeatable)")
	listVar(f, &o.services, "service-cluster-ip-range", nil, "Service ranges, as in kube-apiserver's flag, never allowed in serving certificates; required before Kubernetes 1.33")
	f.StringVar(&o.IssuanceRecord, "issuance-record", "", "file to append a JSON line to for each certificate that is issued, refused or failed; - is standard output")
	durationVar(f, &o.IssuanceRetention, "issuance-retention", boltstore.KeepEnded, "how long the issuance record in --data-dir or etcd keeps a certificate after it has expired")
	heading(f, "Node and certificate flags")

	choiceVar(f, &o.logFormat, "log-format", "text", "log format: %s", "text", "json")
	f.IntVarP(&o.verbosity, "verbosity", "v", 0, "log level: 0 for operators, 1 adds every request and decision, 4 to 6 add calls to the API server")
	heading(f, "Other flags")
}

// registerEtcd adds the flags of a store in etcd. They have the names of kube-apiserver's flags.
func registerEtcd(f *pflag.FlagSet, c *etcdstore.Config) {
	const only = "with --token-store=etcd: "
	listVar(f, &c.Endpoints, "etcd-servers", nil, only+"URLs of the members, for example https://10.0.0.1:2379,https://10.0.0.2:2379")
	registerEtcdFiles(f, c, only)
}

// registerEtcdFiles adds the flags of etcd except the flag for URLs.
func registerEtcdFiles(f *pflag.FlagSet, c *etcdstore.Config, only string) {
	f.StringVar(&c.CAFile, "etcd-cafile", "", only+"CA of the members (default: the system's CAs)")
	f.StringVar(&c.CertFile, "etcd-certfile", "", only+"client certificate; re-read for each connection")
	f.StringVar(&c.KeyFile, "etcd-keyfile", "", only+"private key of --etcd-certfile")
	f.StringVar(&c.Prefix, "etcd-prefix", etcdstore.DefaultPrefix, only+"prefix of all keys")
}
