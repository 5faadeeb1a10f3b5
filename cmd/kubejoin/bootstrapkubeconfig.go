package main

import (
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
	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// discoverTimeout is how long cluster-info is asked for.
const discoverTimeout = 30 * time.Second

// maxTokenFile is the most bytes of a file with one token.
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
		Short: "Make kubeconfig files",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(bootstrapKubeconfigCommand())
	return cmd
}

func bootstrapKubeconfigCommand() *cobra.Command {
	var o bootstrapOptions
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Make a kubelet's bootstrap-kubelet.conf",
		Long: `Make the kubeconfig for a kubelet's --bootstrap-kubeconfig, by which it asks for its
first client certificate: for machines that are installed without kubeadm.

Who the kubelet is until then is one of
  a new bootstrap token  which is made as 'kubejoin token create' does
  a bootstrap token      --token-file, or - for standard input
  a static user          --user, with its line in --token-auth-file

Where it goes, and what it trusts there, is one of
  cluster-info           of the cluster or kubejoin server that tokens are made in
  files                  --api-server, with its CA in --ca-file
  discovery              --discovery HOST:PORT and --discovery-token-ca-cert-hash,
                         as kubeadm join does it, with a bootstrap token

A static user is a line of kube-apiserver's --token-auth-file, which 'kubejoin token
generate -o csv' makes. It never expires, and kube-apiserver reads the file when it
starts and not again: a line that is taken away is good until the next restart. A
bootstrap token ends by itself and can be deleted.

What either may do is a matter of RBAC: ClusterRole system:node-bootstrapper, and
system:certificates.k8s.io:certificatesigningrequests:nodeclient to have the request
approved without a person.` + remoteHelp,
		Example: `  # with a token for this one machine
  kubejoin kubeconfig bootstrap --max-nodes 1 --node-name worker-7 -o bootstrap-kubelet.conf

  # with one that is there, and no cluster asked
  kubejoin kubeconfig bootstrap --token-file token --ca-file ca.crt \
    --api-server https://api.example.com:6443 -o /etc/kubernetes/bootstrap-kubelet.conf

  kubejoin kubeconfig bootstrap --user kubelet-bootstrap --token-auth-file token.csv \
    --kubeconfig admin.conf -o bootstrap-kubelet.conf`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
			}
			return usageOf(cmd, explain(o.run(cmd)))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.tokenFile, "token-file", "", "file with a bootstrap token; - is standard input")
	f.StringVar(&o.user, "user", "", "name of a static user, such as kubelet-bootstrap")
	f.StringVar(&o.tokenAuthFile, "token-auth-file", "", "kube-apiserver's file of static users, of lines token,user,uid,\"group1,group2\"")
	f.DurationVar(&o.ttl, "ttl", tokens.DefaultTTL, "how long a new token lives; 0 is for ever")
	f.IntVar(&o.maxNodes, "max-nodes", 0, fmt.Sprintf("how many nodes may join with a new token, 1 to %d (default any number)", tokens.MaxNodes))
	f.StringSliceVar(&o.nodeNames, "node-name", nil, "name that a node may join under with a new token, or a pattern (repeatable; default any)")
	f.StringVar(&o.description, "description", "", "what a new token is for, in words")
	f.StringVar(&o.apiServer, "api-server", "", "https://HOST:PORT of the API server, whose CA is in --ca-file then")
	f.StringVar(&o.discovery, "discovery", "", "HOST:PORT to ask for cluster-info as a joining machine does")
	f.StringSliceVar(&o.pins, "discovery-token-ca-cert-hash", nil, "CA that may be trusted then, as sha256:HEX (repeatable)")
	f.StringVarP(&o.outputFile, "output-file", "o", "", "write to this file, which only its owner can read (default: standard output)")
	o.remoteOptions.register(cmd)
	return cmd
}

func (o *bootstrapOptions) check() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	old := "" // what says who the kubelet is
	switch {
	case o.tokenFile != "" && (o.user != "" || o.tokenAuthFile != ""):
		fail("--token-file: want this or --user with --token-auth-file, and not both")
	case (o.user == "") != (o.tokenAuthFile == ""):
		fail("--user: goes together with --token-auth-file, and one of them is missing")
	case o.tokenFile != "":
		old = "token-file"
	case o.user != "":
		old = "user"
	}
	for _, flag := range []string{"ttl", "max-nodes", "node-name", "description"} {
		if old != "" && o.given(flag) {
			fail("--%s: is about a new token, and --%s gives another credential", flag, old)
		}
	}
	if (o.discovery == "") != (len(o.pins) == 0) {
		fail("--discovery: goes together with --discovery-token-ca-cert-hash, and one of them is missing")
	}
	if o.discovery != "" && o.tokenFile == "" {
		fail("--discovery: needs --token-file: the signature of the token shows that the answer is right")
	}
	if o.apiServer != "" {
		if o.caFile == "" {
			fail("--api-server: goes together with --ca-file, which is missing")
		}
		if old == "" {
			fail("--api-server: a new token goes where the cluster-info goes in which it is made; want --token-file or --user with this")
		}
	}
	if o.apiServer != "" || o.discovery != "" {
		if o.apiServer != "" && o.discovery != "" {
			fail("--discovery: want this or --api-server, and not both")
		}
		for _, flag := range []string{"kubeconfig", "url", "curlrc", "bearer-file", "client-certificate"} {
			if o.given(flag) {
				fail("--%s: is not asked with --api-server or --discovery: give one of them", flag)
			}
		}
		if o.discovery != "" && o.caFile != "" {
			fail("--ca-file: discovery trusts what --discovery-token-ca-cert-hash says: give one of them")
		}
	}
	if err := checkTTL(o.ttl); err != nil {
		errs = append(errs, err)
	}
	if o.given("max-nodes") && o.maxNodes < 1 {
		fail("--max-nodes: %d given, want 1 to %d; leave it out for any number", o.maxNodes, tokens.MaxNodes)
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
	server, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return fmt.Errorf("cluster-info: %w", err)
	}
	made := who.bearer == ""
	if made {
		if who, err = o.mint(ctx, cmd, r); err != nil {
			return err
		}
	}
	var bundle []byte
	for _, ca := range cas {
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	content, err := clientcmd.Write(oneCluster("kubernetes", &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: bundle}, who.name, &clientcmdapi.AuthInfo{Token: who.bearer}))
	if err != nil {
		return err
	}
	if err := emit(o.outputFile, content, cmd.OutOrStdout()); err != nil {
		if made {
			err = fmt.Errorf("%w; token %s was made for it, and can be deleted", err, who.token.ID())
		}
		return err
	}
	return nil
}

// A bootstrapper is who a kubelet is before it has a certificate.
type bootstrapper struct {
	bearer string
	name   string       // in the kubeconfig
	token  tokens.Token // zero for a static user
}

// ofToken has kubeadm's name for it.
func ofToken(t tokens.Token) bootstrapper {
	return bootstrapper{t.Reveal(), "tls-bootstrap-token-user", t}
}

// credential is the one that the flags name, or none.
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
		defer func() { _ = f.Close() }() // only read
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

// mint makes a token for what a kubelet does with it: discovery is over.
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

// clusterInfo is the discovery kubeconfig of where tokens are. A server is asked for that alone: the
// ConfigMap has the signatures of all tokens as well.
func (r *remote) clusterInfo(ctx context.Context) ([]byte, error) {
	if r.cluster == nil {
		kubeconfig, err := r.ClusterInfo(ctx)
		if err != nil {
			return nil, fmt.Errorf("cluster-info: %w", err)
		}
		return kubeconfig, nil
	}
	info, err := r.cluster.client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("cluster-info: %w", err)
	}
	return []byte(info.Data[clusterinfo.KubeconfigKey]), nil
}

// staticBearer finds the token of a user as kube-apiserver reads the file. Its errors hold
// nothing of the file but the number of a line.
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
		case row[1] != user || row[0] == "": // kube-apiserver passes over an empty token
		case bearer != "":
			return "", fmt.Errorf("line %d: another line for user %q; want one, so that it is clear which token is meant", line, user)
		case !datadir.IsBearer(row[0]):
			return "", fmt.Errorf("line %d: the token has characters that no bearer token has (RFC 6750)", line)
		default:
			bearer = row[0]
		}
	}
}
