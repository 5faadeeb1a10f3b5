package main

import (
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/daemon"
	"github.com/kubejoin/kubejoin/internal/logging"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"github.com/kubejoin/kubejoin/signer/admission"
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
)

// serveOptions are serve's flags.
type serveOptions struct {
	daemon.Options // what needs no conversion

	cluster                   daemon.ClusterOptions // used on a cluster only
	controllers               []string
	clients, users            server.Rate // 0: unlimited
	userTokens                int         // 0: unlimited
	cidrs, suffixes, services []string    // of serving certificates
	existingNodes             string
	tokenStore                string
	tlsMinVersion             string
	logFormat                 string
	verbosity                 int

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
			options, err := o.options()
			if err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
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
	o.register(cmd.Flags())
	_ = cmd.MarkFlagFilename("signer-config", "yaml", "yml")
	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("log-format", "text", "json")
	complete("tls-min-version", tls12, tls13)
	complete("existing-nodes", denyExisting, allowExisting)
	complete("token-store", storeKubernetes, storeFile)
	complete("controllers", append([]string{"*"}, daemon.ControllerNames...)...)
	return cmd
}

func (o *serveOptions) register(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.Listen, "listen", "127.0.0.1:9443", "HOST:PORT to serve HTTPS on; :PORT is every address of this machine")
	f.StringVar(&o.Advertise, "advertise", "", "HOST:PORT that join commands name for discovery (default: standalone this server; on a cluster the API server that cluster-info names)")
	f.StringVar(&o.APIServer, "api-server", "", "https://HOST:PORT of the API server that cluster-info names (default: what cluster-info names already, or the kubeconfig's; standalone port 6443 of --advertise's host)")
	f.StringVar(&o.Callers.TokenFile, "token-auth-file", "", `bearer tokens of operators, as kube-apiserver's: lines of token,user,uid,"group1,group2"; group `+daemon.AdminGroup+" may do everything (default: standalone one that is made in --data-dir; on a cluster none)")
	f.StringVar(&o.Callers.ClientCAFile, "client-ca-file", "", "CA of the client certificates by which nodes are known, and on a cluster users, as kube-apiserver's flag of that name (default: standalone the cluster CA, and for nodes the one that their signer has in --signer-config; on a cluster none)")
	f.StringSliceVar(&o.cluster.Audiences, "api-audiences", []string{kubeauth.Audience}, "on a cluster: audiences of which the bearer token of a service account, or of another user of the cluster, has to be for one (repeatable)")
	f.StringVar(&o.TLS.CertFile, "tls-cert-file", "", "certificate chain to serve with; kubeadm needs one that the cluster CA signed (default: one is issued from the cluster CA and renewed)")
	f.StringVar(&o.TLS.KeyFile, "tls-private-key-file", "", "key of --tls-cert-file")
	f.StringVar(&o.tlsMinVersion, "tls-min-version", tls13, tls12+" or "+tls13+", as kube-apiserver's: the oldest TLS that is spoken; of 1.2 only with forward secrecy and authenticated encryption")
	f.StringSliceVar(&o.TLS.SANs, "tls-san", nil, "more names and addresses for the serving certificate that is issued (repeatable)")

	f.Float64Var(&o.clients.QPS, "client-qps", server.DefaultClientQPS, "most requests a second, and new connections, from one address, or from one /64 of IPv6; more are answered 429. Credentials that are not accepted are counted apart, 100 and then 10 a second. 0 is no limit of either, nor of what one address has in flight, for where all clients come from one address, as behind a proxy")
	f.IntVar(&o.clients.Burst, "client-burst", server.DefaultClientBurst, "most of them at once after a while without; 0 is as many as --client-qps")
	f.Float64Var(&o.users.QPS, "user-qps", server.DefaultUserQPS, "most requests a second of one user, be it an operator, a node or a bootstrap token; more are answered 429; 0 is no limit, nor one of what a user has in flight, nor one of certificates")
	f.IntVar(&o.users.Burst, "user-burst", server.DefaultUserBurst, "most of them at once after a while without; 0 is as many as --user-qps")

	f.IntVar(&o.userTokens, "user-tokens", server.DefaultUserTokens, "most live tokens that one user may have made over HTTPS, over all replicas; more are answered 507; 0 is no limit")

	f.StringVar(&o.DataDir, "data-dir", "kubejoin-data", "folder of the CA, the tokens and curlrc where kubejoin is standalone; of the tokens with --token-store=file")
	f.StringVar(&o.tokenStore, "token-store", "", "where tokens and claims are: kubernetes is Secrets and Leases, file one file in --data-dir, of which kube-apiserver learns as 'kubejoin webhook-config' says; one replica (default: kubernetes on a cluster, file standalone)")
	f.StringVar(&o.Webhook.ClientCAFile, "webhook-client-ca-file", "", "with tokens in a file: CA of kube-apiserver's client certificate, by which it may ask about tokens instead of by the bearer token in --data-dir")
	f.StringVar(&o.Webhook.ClientName, "webhook-client-name", "", "common name of that certificate, such as kube-apiserver-kubelet-client")
	f.StringSliceVar(&o.Webhook.Audiences, "webhook-audience", nil, "with tokens in a file: --api-audiences of kube-apiserver, to say no to reviews for others here (repeatable; default: kube-apiserver does that)")

	f.StringVar(&o.cluster.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to work on (default: the service account in a pod, or standalone)")
	f.Float32Var(&o.cluster.QPS, "kube-api-qps", 0, "most requests a second to the API server; 0 is no limit, the API server's own priority and fairness decides")
	f.IntVar(&o.cluster.Burst, "kube-api-burst", 0, "most requests at once above --kube-api-qps; 0 is as many as --kube-api-qps")
	f.StringSliceVar(&o.controllers, "controllers", []string{"*"}, "controllers to run: '*' is all, NAME switches one on and -NAME off; known: "+strings.Join(daemon.ControllerNames, ", "))
	f.StringVar(&o.CA.CertFile, "cluster-signing-cert-file", "", "the cluster CA's certificate, or several in a rotation: the one that matches the key signs")
	f.StringVar(&o.CA.KeyFile, "cluster-signing-key-file", "", "key of --cluster-signing-cert-file")
	f.DurationVar(&o.CA.Duration, "cluster-signing-duration", 365*24*time.Hour, "longest lifetime of certificates, and the lifetime where a request asks for none")
	f.StringVar(&o.SignerConfig, "signer-config", "", "file that says which signers there are, each with its CA, durations and what may be asked of it, see 'kubejoin signer-config --help'; it is followed as it changes (default: what 'kubejoin signer-config default' prints)")
	f.StringVar(&o.existingNodes, "existing-nodes", denyExisting, "deny or allow: whether a first client certificate may be had for the name of a Node that exists; 'kubejoin token create --replace-node' is for single ones")
	f.StringSliceVar(&o.Nodes.Reserved, "reserved-node-names", nil, "names, with * for any characters, that only tokens of role control-plane may take (repeatable)")
	f.DurationVar(&o.Nodes.SpentRetention, "spent-token-retention", admission.DefaultRetention, "how long a token stays after the last node that it allows has joined")
	f.BoolVar(&o.cluster.Shadow, "shadow", false, "on a cluster: csr-approver and csr-signer decide and write nothing; the log and kubejoin_csr_shadow_total say what they would do, for a trial beside kube-controller-manager; csr-cleaner is off then")
	f.StringSliceVar(&o.cidrs, "serving-allowed-cidr", nil, "addresses, such as 10.0.0.0/16, that kubelets' serving certificates may have: the machines', not those of Pods or Services. Each must be in the Node's status, too, and in no other's (repeatable; default: with this and --serving-allowed-dns-suffix empty, none is approved)")
	f.StringSliceVar(&o.suffixes, "serving-allowed-dns-suffix", nil, "domain, such as node.example.com, below which kubelets' serving certificates may have names, as above; a Node's own name they may have anyway (repeatable)")
	f.StringSliceVar(&o.services, "service-cluster-ip-range", nil, "kube-apiserver's flag of that name, one range or two: no serving certificate has an address in it. Needed where the cluster does not tell, before Kubernetes 1.33")
	f.StringVar(&o.IssuanceRecord, "issuance-record", "", "file to which each certificate that is issued, refused or cannot be issued is appended as a line of JSON; - is standard output, for jq (a file in --data-dir keeps them as well, for 'kubejoin issued')")
	f.BoolVar(&o.cluster.LeaderElect, "leader-elect", true, "on a cluster: run controllers only while holding a Lease, so that replicas can stand by")
	f.StringVar(&o.cluster.LeaseNamespace, "leader-elect-resource-namespace", secretstore.ClaimNamespace, "namespace of that Lease")
	f.StringVar(&o.cluster.LeaseName, "leader-elect-resource-name", leaderLease, "name of that Lease")

	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.IntVarP(&o.verbosity, "verbosity", "v", 0, "0 for operators, 1 for every request and decision, 4 to 6 for calls to the API server")
}
