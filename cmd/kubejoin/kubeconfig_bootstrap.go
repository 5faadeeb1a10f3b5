package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// discoverTimeout limits all requests of the command together: discovery, cluster-info and the new token.
const discoverTimeout = 30 * time.Second

// maxTokenFile is the largest size of a file with a token, in bytes.
const maxTokenFile = 4 << 10

// ofNewToken are the flags that describe the token that the command creates.
var ofNewToken = []string{"ttl", "max-nodes", "node-name", "description"}

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
  kubejoin kubeconfig bootstrap --max-nodes 1 --node-name worker-7 \
    --output-file bootstrap-kubelet.conf

  # with an existing token, without contacting a cluster
  kubejoin kubeconfig bootstrap --token-file token --ca-file ca.crt \
    --api-server https://api.example.com:6443 --output-file /etc/kubernetes/bootstrap-kubelet.conf

  # with a static user
  kubejoin kubeconfig bootstrap --user kubelet-bootstrap --token-auth-file token.csv \
    --kubeconfig admin.conf --output-file bootstrap-kubelet.conf`,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.hint(explain(o.run(cmd)))
		},
	}
	f := cmd.Flags()
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

func (o *bootstrapOptions) check(*cobra.Command, []string) error {
	var m mistakes
	old := cmp.Or(o.tokenFile, o.user) != ""
	both := o.tokenFile != "" && cmp.Or(o.user, o.tokenAuthFile) != ""
	m.when(both, "--token-file: excludes --user and --token-auth-file")
	if !both {
		m.together("user", o.user, "token-auth-file", o.tokenAuthFile)
	}
	switch {
	case len(m) > 0:
	case o.tokenFile != "":
		m.excludes(o.given, "applies only to a new token, and --token-file gives an existing credential", ofNewToken...)
	case o.user != "":
		m.excludes(o.given, "applies only to a new token, and --user gives an existing credential", ofNewToken...)
	}
	m.together("discovery", o.discovery, "discovery-token-ca-cert-hash", strings.Join(o.pins, ","))
	if o.discovery != "" {
		m.in("--discovery", clusterinfo.CheckEndpoint(o.discovery))
	}
	m.when(o.discovery != "" && o.tokenFile == "", "--discovery: needs --token-file, since discovery verifies cluster-info with the token")
	m.url("--api-server", o.apiServer)
	if o.apiServer != "" {
		m.when(o.caFile == "", "--api-server: goes together with --ca-file, which is missing")
		m.when(!old, "--api-server: needs --token-file or --user, since a new token is created where cluster-info is read")
		m.when(o.discovery != "", "--discovery: excludes --api-server, and both are given")
	}
	if o.apiServer != "" || o.discovery != "" {
		m.excludes(o.given, "excludes --api-server and --discovery, which replace it as the source of cluster-info", "kubeconfig", "context", "url", "curlrc", "bearer-file", "client-certificate")
		m.when(o.discovery != "" && o.caFile != "", "--ca-file: excludes --discovery, which trusts the CA of --discovery-token-ca-cert-hash")
	}
	m.in("--ttl", checkTTL(o.ttl))
	m.when(o.given("max-nodes") && o.maxNodes < 1, "--max-nodes: %d given, want 1 to %d; leave it out for no limit", o.maxNodes, tokens.MaxNodes)
	return m.err()
}

func (o *bootstrapOptions) run(cmd *cobra.Command) error {
	who, err := o.credential(cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), discoverTimeout)
	defer cancel()
	defer waiting{"for cluster-info", discoverTimeout}.begin(cmd)()
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
	name   string       // the user name in the kubeconfig
	token  tokens.Token // zero for a static user
}

// ofToken returns the credential for a bootstrap token, with the user name that kubeadm gives it.
func ofToken(t tokens.Token) bootstrapper {
	return bootstrapper{t.Reveal(), "tls-bootstrap-token-user", t}
}

// credential reads the existing credential that the flags name. It returns the zero value if they name none.
func (o *bootstrapOptions) credential(cmd *cobra.Command) (bootstrapper, error) {
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
	content, err := readInput(cmd, o.tokenFile, maxTokenFile)
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
