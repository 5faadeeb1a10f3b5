package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// discoverTimeout limits all requests of the command together: discovery, cluster-info and the new token.
const discoverTimeout = 30 * time.Second

// maxTokenFile is how many bytes of a token file are read.
const maxTokenFile = 4 << 10

// bootstrapOptions are the flags of kubeconfig bootstrap.
type bootstrapOptions struct {
	remoteOptions

	tokenFile           string
	user, tokenAuthFile string
	ttl                 time.Duration
	maxNodes            int
	nodeNames           []string
	description         string

	apiServer string
	discovery string
	pins      []string

	outputFile string
}

func kubeconfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubeconfig",
		Short: "Create and check kubeconfig files",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(bootstrapKubeconfigCommand(), nodeKubeconfigCommand(), userKubeconfigCommand(), checkKubeconfigCommand())
	return cmd
}

// credentialOptions are the flags of kubeconfig node and kubeconfig user.
type credentialOptions struct {
	remoteOptions
	caKey string
	// caKeyPassphrase is the file with the passphrase of caKey.
	caKeyPassphrase string
	apiServer       string
	duration        time.Duration
	groups          []string
	wait            time.Duration
	outputFile      string
	force           bool
}

// credentialHelp ends the help of kubeconfig node and kubeconfig user.
const credentialHelp = `

The command makes the key, and sends only a certificate request. One of these signs it:
  --kubeconfig        the cluster, with a CertificateSigningRequest that you may approve
  --url or --curlrc   a kubejoin server; you need the permission to sign
  --ca-file, --ca-key a CA on this machine, by the same rules

The signer keeps --duration within its bounds. The command reports a changed duration.` + remoteHelp

func nodeKubeconfigCommand() *cobra.Command {
	o := &credentialOptions{}
	cmd := &cobra.Command{
		Use:   "node NAME",
		Short: "Create the kubeconfig of a kubelet, without TLS bootstrap",
		Long: `Create /etc/kubernetes/kubelet.conf for a machine that joins without TLS bootstrap. kubeadm
calls this custom kubelet credentials. The name of an existing Node is refused.` + credentialHelp,
		Example: `  # on the machine that joins, then: kubeadm join … \
  #   --ignore-preflight-errors=FileAvailable--etc-kubernetes-kubelet.conf
  kubejoin kubeconfig node worker-7 --url https://join.example.com:9443 --ca-file ca.crt \
    --bearer-file token --output-file /etc/kubernetes/kubelet.conf

  # with the CA key
  kubejoin kubeconfig node worker-7 --ca-file ca.crt --ca-key ca.key \
    --api-server https://api.example.com:6443 --output-file kubelet.conf`,
	}
	return o.complete(cmd, func(name string) (credentials.Identity, error) { return credentials.Node(name) })
}

func userKubeconfigCommand() *cobra.Command {
	o := &credentialOptions{}
	cmd := &cobra.Command{
		Use:   "user NAME",
		Short: "Create the kubeconfig of a user",
		Long: `Create a kubeconfig with a client certificate for a user and groups. A certificate cannot be
revoked, so prefer a short --duration.` + credentialHelp,
		Example: `  kubejoin kubeconfig user jane --group developers --duration 24h --output-file jane.conf

  # with the CA key
  kubejoin kubeconfig user jane --group developers --duration 24h --ca-file ca.crt \
    --ca-key ca.key --api-server https://api.example.com:6443 --output-file jane.conf`,
	}
	listVar(cmd.Flags(), &o.groups, "group", nil, "group of the user (repeatable; default: none)")
	return o.complete(cmd, func(name string) (credentials.Identity, error) { return credentials.User(name, o.groups) })
}

// complete adds what both commands have.
func (o *credentialOptions) complete(cmd *cobra.Command, identity func(name string) (credentials.Identity, error)) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := o.check(args, identity)
		if err != nil {
			return &usageError{command: cmd.CommandPath(), err: err}
		}
		return usageOf(cmd, o.hint(explain(o.run(cmd, id))))
	}
	f := cmd.Flags()
	f.SortFlags = false
	durationVar(f, &o.duration, "duration", 0, "requested lifetime, at least 10m (default: the signer's)")
	durationVar(f, &o.wait, "wait", time.Minute, "how long to wait for the certificate")
	f.StringVar(&o.apiServer, "api-server", "", "https://HOST:PORT of the API server to write into the file (default: that in cluster-info)")
	f.StringVar(&o.caKey, "ca-key", "", "private key of the CA in --ca-file, to sign on this machine")
	f.StringVar(&o.caKeyPassphrase, "ca-key-passphrase-file", "", "file with the passphrase of --ca-key, in one line (default: the key is not encrypted)")
	f.StringVar(&o.outputFile, "output-file", "", "file to write, with mode 0600 (- or default: standard output)")
	f.BoolVar(&o.force, "force", false, "replace the file of --output-file if it exists")
	heading(f, "Output flags", "output-file", "force")
	o.register(cmd)
	return cmd
}

func (o *credentialOptions) check(args []string, identity func(name string) (credentials.Identity, error)) (credentials.Identity, error) {
	var errs []error
	var id credentials.Identity
	if len(args) != 1 {
		errs = append(errs, fmt.Errorf("NAME: %d given, want one", len(args)))
	} else {
		var err error
		if id, err = identity(args[0]); err != nil {
			errs = append(errs, fmt.Errorf("NAME: %w", err))
		}
	}
	if o.given("duration") && o.duration < 10*time.Minute {
		errs = append(errs, fmt.Errorf("--duration: %s given, want at least 10m", o.duration))
	}
	if o.wait <= 0 {
		errs = append(errs, fmt.Errorf("--wait: %s given, want more than 0", o.wait))
	}
	if o.caKey == "" && o.caKeyPassphrase != "" {
		errs = append(errs, errors.New("--ca-key-passphrase-file: needs --ca-key, the key that it decrypts"))
	}
	if o.caKey != "" {
		if o.caFile == "" {
			errs = append(errs, errors.New("--ca-file: needed with --ca-key, as the certificate of this key"))
		}
		if o.apiServer == "" {
			errs = append(errs, errors.New("--api-server: needed with --ca-key, as https://HOST:PORT"))
		}
		for _, flag := range []string{"kubeconfig", "url", "curlrc", "bearer-file", "client-certificate"} {
			if o.given(flag) {
				errs = append(errs, fmt.Errorf("--%s: excludes --ca-key, which signs on this machine", flag))
			}
		}
	}
	if o.apiServer != "" {
		if _, err := clusterinfo.Endpoint(o.apiServer); err != nil {
			errs = append(errs, fmt.Errorf("--api-server: %w", err))
		}
	}
	if o.force && o.outputFile == "" {
		errs = append(errs, errors.New("--force: needs --output-file"))
	}
	return id, errors.Join(errs...)
}

func (o *credentialOptions) run(cmd *cobra.Command, id credentials.Identity) error {
	toFile := !isStdout(o.outputFile)
	if toFile && !o.force && exists(o.outputFile) {
		return fmt.Errorf("--output-file: %s exists; replace it with --force", o.outputFile)
	}
	var to *atomicfile.Replacement // checked before the request
	if toFile {
		var err error
		if to, err = atomicfile.Prepare(o.outputFile); err != nil {
			return fmt.Errorf("--output-file: %w", err)
		}
		defer to.Drop()
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), o.wait)
	defer cancel()
	sign, kubeconfig, stop, err := o.signer(ctx, cmd)
	if err != nil {
		return err
	}
	defer stop()
	cluster, err := clusterOf(kubeconfig)
	if err != nil {
		return err
	}
	cluster.Server = cmp.Or(o.apiServer, cluster.Server)
	made, err := id.Issue(ctx, sign, o.duration)
	if err != nil {
		return err
	}
	content, err := clientcmd.Write(oneCluster("kubernetes", cluster, id.User, &clientcmdapi.AuthInfo{ClientCertificateData: made.Chain, ClientKeyData: made.Key}))
	if err != nil {
		return err
	}
	if to != nil {
		err = to.Write(content, 0o600)
	} else {
		_, err = cmd.OutOrStdout().Write(content)
	}
	if err != nil {
		return err
	}
	end := made.Certificate.NotAfter
	cmd.PrintErrln("kubejoin: the certificate for", sanitize(id.User), "ends at", end.UTC().Format(time.RFC3339))
	// A certificate begins 5 minutes before it is issued, and a long one ends 5 minutes earlier.
	if differs := time.Until(end) - o.duration; o.duration > 0 && differs.Abs() > 10*time.Minute {
		warn(cmd, fmt.Sprintf("the signer does not issue certificates for %s", o.duration))
	}
	return nil
}

// clusterOf returns the cluster in cluster-info, for a kubeconfig.
func clusterOf(info []byte) (*clientcmdapi.Cluster, error) {
	server, cas, err := clusterinfo.ParseKubeconfig(info)
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	cluster := &clientcmdapi.Cluster{Server: server}
	for _, ca := range cas {
		cluster.CertificateAuthorityData = append(cluster.CertificateAuthorityData, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	return cluster, nil
}

// signer returns who signs, and the cluster-info of the cluster.
func (o *credentialOptions) signer(ctx context.Context, cmd *cobra.Command) (sign credentials.SignFunc, kubeconfig []byte, stop func(), err error) {
	if o.caKey != "" {
		ca, err := signer.LoadEncryptedCA(o.caFile, o.caKey, o.caKeyPassphrase)
		if err != nil {
			return nil, nil, nil, err
		}
		signers := map[string]signer.Signer{} // of client certificates: the CA may sign no others
		for _, name := range []string{certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeAPIServerClientSignerName} {
			if signers[name], err = signer.NewSigner(name, signer.Fixed(ca), signer.ProfileConfig{Usages: signer.KubernetesUsages(name)}, nil); err != nil {
				return nil, nil, nil, err
			}
		}
		kubeconfig, err = clusterinfo.Kubeconfig(o.apiServer, ca.Bundle())
		return credentials.SignLocally(signers), kubeconfig, func() {}, err
	}
	r, stop, err := o.connect(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	if kubeconfig, err = r.clusterInfo(ctx); err != nil {
		stop()
		return nil, nil, nil, err
	}
	if r.cluster != nil {
		return credentials.SignByCSRObject(r.cluster.Client, func(message string) { cmd.PrintErrln("kubejoin:", message) }), kubeconfig, stop, nil
	}
	return overHTTPS(cmd, r, o.wait), kubeconfig, stop, nil
}

// overHTTPS returns a SignFunc that asks a kubejoin server, and retries until the certificate can be issued.
func overHTTPS(cmd *cobra.Command, r *remote, wait time.Duration) credentials.SignFunc {
	return func(ctx context.Context, asked credentials.Request) ([]byte, error) {
		one := signOptions{signer: asked.Signer, duration: asked.Duration, wait: wait}
		for _, u := range asked.Usages {
			one.usages = append(one.usages, string(u))
		}
		return one.sign(ctx, cmd, r, asked.CSR)
	}
}

func checkKubeconfigCommand() *cobra.Command {
	var o struct {
		output
		node    string
		offline bool
	}
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Find what is wrong with a kubeconfig",
		Long: `Find what is wrong with a kubeconfig, for example /etc/kubernetes/kubelet.conf: in the file,
its certificate, its key and its CA, and at the API server, with two requests that change
nothing. The requests take the same way as kubectl's, and run the exec plugin that the file
names. Each finding is one line with a remedy.

The exit code is 0 if there is no finding. It is 1 if there are findings. It is 2 if no
finding was made but a check could not run, or if the command cannot read the file.`,
		Example: `  kubejoin kubeconfig check /etc/kubernetes/kubelet.conf --node worker-7

  kubejoin kubeconfig check jane.conf -o jsonpath='{.findings[*].id}'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := o.check()
			switch {
			case err != nil:
			case len(args) != 1 || args[0] == "":
				err = &usageError{err: fmt.Errorf("FILE: %d given, want one", len(args))}
			case o.node != "" && tokens.CheckNodeName(o.node) != nil:
				err = &usageError{err: fmt.Errorf("--node: %w", tokens.CheckNodeName(o.node))}
			}
			if err != nil {
				return usageOf(cmd, err)
			}
			report, err := credentials.Checker{Node: o.node, Offline: o.offline}.Check(cmd.Context(), args[0])
			if err != nil {
				cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
				return exitUnchecked
			}
			done, err := o.object(cmd.OutOrStdout(), report)
			if !done {
				_, err = io.WriteString(cmd.OutOrStdout(), sanitize(report.Text()))
			}
			switch {
			case err != nil:
				return err
			case len(report.Findings) > 0:
				return exitFindings
			case len(report.Unchecked) > 0:
				return exitUnchecked
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.node, "node", "", "node that the file is for (default: any)")
	f.BoolVar(&o.offline, "offline", false, "check only the file, not the API server")
	o.registerFormats(cmd, "text", "json", "yaml")
	return cmd
}

func bootstrapKubeconfigCommand() *cobra.Command {
	var o bootstrapOptions
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Create the bootstrap kubeconfig of a kubelet",
		Long: `Create the file for a kubelet's --bootstrap-kubeconfig, for machines that are installed
without kubeadm. The kubelet requests its first client certificate with it.

The credential in the file is one of:
  (no flag)                a new bootstrap token, like from 'kubejoin token create'
  --token-file             an existing bootstrap token
  --user, --token-auth-file
                           a static user, see 'kubejoin token generate --help'

The API server and its CA come from one of:
  (no flag)                cluster-info of the cluster or the kubejoin server
  --api-server, --ca-file  flags
  --discovery, --discovery-token-ca-cert-hash
                           discovery with the bootstrap token, like in kubeadm join

Prefer a bootstrap token: it expires and you can delete it. A static user never expires,
and kube-apiserver accepts a removed one until it restarts.

The credential needs ClusterRole system:node-bootstrapper. For automatic approval it also
needs system:certificates.k8s.io:certificatesigningrequests:nodeclient.` + remoteHelp,
		Example: `  # with a new token for this machine
  kubejoin kubeconfig bootstrap --max-nodes 1 --node-name worker-7 --output-file bootstrap-kubelet.conf

  # with an existing token, without contacting a cluster
  kubejoin kubeconfig bootstrap --token-file token --ca-file ca.crt \
    --api-server https://api.example.com:6443 --output-file /etc/kubernetes/bootstrap-kubelet.conf

  # with a static user
  kubejoin kubeconfig bootstrap --user kubelet-bootstrap --token-auth-file token.csv \
    --kubeconfig admin.conf --output-file bootstrap-kubelet.conf`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
			}
			return usageOf(cmd, o.hint(explain(o.run(cmd))))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.tokenFile, "token-file", "", "file with a bootstrap token; - is standard input")
	f.StringVar(&o.user, "user", "", "name of a static user, for example kubelet-bootstrap")
	f.StringVar(&o.tokenAuthFile, "token-auth-file", "", "kube-apiserver's CSV file of static users, lines of token,user,uid,\"group1,group2\"")
	durationVar(f, &o.ttl, "ttl", tokens.DefaultTTL, "lifetime of a new token (0: never expires)")
	f.IntVar(&o.maxNodes, "max-nodes", 0, fmt.Sprintf("maximum number of nodes that may join with a new token, 1 to %d (default: unlimited)", tokens.MaxNodes))
	listVar(f, &o.nodeNames, "node-name", nil, "node name that a new token allows, or a pattern such as 'worker-*' (repeatable; default: any)")
	f.StringVar(&o.description, "description", "", "description of a new token")
	heading(f, "Credential flags")
	f.StringVar(&o.apiServer, "api-server", "", "https://HOST:PORT of the API server, with its CA in --ca-file")
	f.StringVar(&o.discovery, "discovery", "", "HOST:PORT to fetch cluster-info from, like a joining machine")
	listVar(f, &o.pins, "discovery-token-ca-cert-hash", nil, "with --discovery: pin of a trusted CA, as sha256:HEX (repeatable)")
	heading(f, "API server flags")
	f.StringVar(&o.outputFile, "output-file", "", "file to write, with mode 0600 (- or default: standard output)")
	heading(f, "Output flags")
	o.remoteOptions.register(cmd)
	return cmd
}

func (o *bootstrapOptions) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	old := "" // the flag that gives an existing credential; empty for a new token
	switch {
	case o.tokenFile != "" && (o.user != "" || o.tokenAuthFile != ""):
		fail("--token-file: excludes --user and --token-auth-file")
	case (o.user == "") != (o.tokenAuthFile == ""):
		fail("--user: goes together with --token-auth-file, and one of them is missing")
	case o.tokenFile != "":
		old = "token-file"
	case o.user != "":
		old = "user"
	}
	for _, flag := range []string{"ttl", "max-nodes", "node-name", "description"} {
		if old != "" && o.given(flag) {
			fail("--%s: applies only to a new token, and --%s gives an existing credential", flag, old)
		}
	}
	if (o.discovery == "") != (len(o.pins) == 0) {
		fail("--discovery: goes together with --discovery-token-ca-cert-hash, and one of them is missing")
	}
	if o.discovery != "" {
		if err := clusterinfo.CheckEndpoint(o.discovery); err != nil {
			fail("--discovery: %w", err)
		}
	}
	if o.discovery != "" && o.tokenFile == "" {
		fail("--discovery: needs --token-file, since discovery verifies cluster-info with the token")
	}
	if o.apiServer != "" {
		if _, err := clusterinfo.Endpoint(o.apiServer); err != nil {
			fail("--api-server: %w", err)
		}
		if o.caFile == "" {
			fail("--api-server: goes together with --ca-file, which is missing")
		}
		if old == "" {
			fail("--api-server: needs --token-file or --user, since a new token is created where cluster-info is read")
		}
	}
	if o.apiServer != "" || o.discovery != "" {
		if o.apiServer != "" && o.discovery != "" {
			fail("--discovery: excludes --api-server, and both are given")
		}
		for _, flag := range []string{"kubeconfig", "url", "curlrc", "bearer-file", "client-certificate"} {
			if o.given(flag) {
				fail("--%s: excludes --api-server and --discovery, which replace it as the source of cluster-info", flag)
			}
		}
		if o.discovery != "" && o.caFile != "" {
			fail("--ca-file: excludes --discovery, which trusts the CA of --discovery-token-ca-cert-hash")
		}
	}
	if err := checkTTL(o.ttl); err != nil {
		errs = append(errs, err)
	}
	if o.given("max-nodes") && o.maxNodes < 1 {
		fail("--max-nodes: %d given, want 1 to %d; leave it out for no limit", o.maxNodes, tokens.MaxNodes)
	}
	return errors.Join(errs...)
}

func (o *bootstrapOptions) run(cmd *cobra.Command) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), discoverTimeout)
	defer cancel()
	who, err := o.credential(cmd.InOrStdin())
	if err != nil {
		return err
	}
	var kubeconfig []byte
	var r *remote
	switch {
	case o.apiServer != "":
		kubeconfig, err = kubeconfigOf(o.caFile, o.apiServer)
	case o.discovery != "":
		var found clusterinfo.Discovered
		found, err = clusterinfo.Discover(ctx, o.discovery, who.token, o.pins)
		kubeconfig = found.Kubeconfig
	default:
		var stop func()
		if r, stop, err = o.connect(ctx); err != nil {
			return err
		}
		defer stop()
		kubeconfig, err = r.clusterInfo(ctx)
	}
	if err != nil {
		return err
	}
	cluster, err := clusterOf(kubeconfig)
	if err != nil {
		return err
	}
	made := who.bearer == ""
	if made {
		if who, err = o.mint(ctx, cmd, r); err != nil {
			return err
		}
	}
	content, err := clientcmd.Write(oneCluster("kubernetes", cluster, who.name, &clientcmdapi.AuthInfo{Token: who.bearer}))
	if err != nil {
		return err
	}
	if err := emit(o.outputFile, content, cmd.OutOrStdout()); err != nil {
		if made {
			err = fmt.Errorf("%[1]w; token %[2]s was created for this file and is unused: kubejoin token delete %[2]s", err, who.token.ID())
		}
		return err
	}
	return nil
}

// A bootstrapper is the credential of a kubelet that has no certificate yet. The zero value means no credential.
type bootstrapper struct {
	bearer string
	name   string       // of the user in the kubeconfig
	token  tokens.Token // zero for a static user
}

// ofToken returns the credential for a bootstrap token, with the user name that kubeadm gives it.
func ofToken(t tokens.Token) bootstrapper {
	return bootstrapper{t.Reveal(), "tls-bootstrap-token-user", t}
}

// credential reads the existing credential that the flags name. It returns the zero value if they name none.
func (o *bootstrapOptions) credential(stdin io.Reader) (bootstrapper, error) {
	switch {
	case o.user != "":
		content, err := os.ReadFile(o.tokenAuthFile)
		if err != nil {
			return bootstrapper{}, fmt.Errorf("--token-auth-file: %w", err)
		}
		bearer, err := staticBearer(content, o.user)
		if err != nil {
			return bootstrapper{}, fmt.Errorf("--token-auth-file: %s: %w", o.tokenAuthFile, err)
		}
		return bootstrapper{bearer: bearer, name: o.user}, nil
	case o.tokenFile == "":
		return bootstrapper{}, nil
	}
	source := stdin
	if o.tokenFile != "-" {
		f, err := os.Open(o.tokenFile)
		if err != nil {
			return bootstrapper{}, fmt.Errorf("--token-file: %w", err)
		}
		defer func() { _ = f.Close() }() // read only
		source = f
	}
	content, err := io.ReadAll(io.LimitReader(source, maxTokenFile))
	if err != nil {
		return bootstrapper{}, fmt.Errorf("--token-file: %w", err)
	}
	token, err := tokens.Parse(strings.TrimSpace(string(content)))
	if err != nil {
		return bootstrapper{}, fmt.Errorf("--token-file: %w", err)
	}
	return ofToken(token), nil
}

// mint creates a token that can authenticate but not sign: the kubelet does no discovery.
func (o *bootstrapOptions) mint(ctx context.Context, cmd *cobra.Command, r *remote) (bootstrapper, error) {
	token := tokens.Generate()
	answer, err := r.CreateToken(ctx, api.CreateToken{Token: api.Secret(token.Reveal()), TokenSpec: api.TokenSpec{
		TTL: o.ttl.String(), Usages: []string{api.UsageAuthentication}, Description: o.description,
		MaxNodes: o.maxNodes, NodeNames: o.nodeNames,
	}})
	if err != nil {
		return bootstrapper{}, err
	}
	warn(cmd, answer.Warnings...)
	return ofToken(token), nil
}

// clusterInfo returns the kubeconfig in cluster-info.
func (r *remote) clusterInfo(ctx context.Context) ([]byte, error) {
	kubeconfig, err := r.ClusterInfo(ctx)
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	return kubeconfig, nil
}

// staticBearer returns the token of a user. It reads the file as kube-apiserver does. Its errors contain line numbers
// and nothing else from the file.
func staticBearer(content []byte, user string) (string, error) {
	rows := csv.NewReader(strings.NewReader(string(content)))
	rows.FieldsPerRecord = -1
	bearer := ""
	for {
		row, err := rows.Read()
		var at *csv.ParseError
		switch {
		case errors.Is(err, io.EOF) && bearer == "":
			return "", fmt.Errorf("no line for user %q", user)
		case errors.Is(err, io.EOF):
			return bearer, nil
		case errors.As(err, &at):
			return "", fmt.Errorf("line %d: %w", at.Line, at.Err)
		case err != nil:
			return "", err
		}
		line, _ := rows.FieldPos(0)
		switch {
		case len(row) < 3:
			return "", fmt.Errorf("line %d: %d columns given, want token,user,uid or token,user,uid,\"group1,group2\"; kube-apiserver would not start", line, len(row))
		case row[1] != user || row[0] == "": // kube-apiserver skips a line with an empty token
		case bearer != "":
			return "", fmt.Errorf("line %d: second line for user %q, want only one", line, user)
		case !datadir.IsBearer(row[0]):
			return "", fmt.Errorf("line %d: the token has characters that are not allowed in a bearer token (RFC 6750)", line)
		default:
			bearer = row[0]
		}
	}
}
