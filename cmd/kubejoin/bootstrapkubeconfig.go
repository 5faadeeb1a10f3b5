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
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// discoverTimeout is how long cluster-info is asked for.
const discoverTimeout = 30 * time.Second

// maxTokenFile is the most bytes of a file with one token.
const maxTokenFile = 4 << 10

// bootstrapOptions are the flags of kubeconfig bootstrap.
type bootstrapOptions struct {
	tokenFile           string
	user, tokenAuthFile string

	caFile, apiServer string
	kubeconfig        string
	discovery         string
	pins              []string

	output string
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
  a bootstrap token      --token-file, or - for standard input
  a static user          --user, with its line in --token-auth-file

Where it goes, and what it trusts there, is one of
  files                  --ca-file and --api-server
  the cluster's own      --kubeconfig of somebody who can read cluster-info
  discovery              --discovery HOST:PORT and --discovery-token-ca-cert-hash,
                         as kubeadm join does it, with a bootstrap token

A static user is a line of kube-apiserver's --token-auth-file, which 'kubejoin token
generate -o csv' makes. It never expires, and kube-apiserver reads the file when it
starts and not again: a line that is taken away is good until the next restart. A
bootstrap token ends by itself and can be deleted.

What either may do is a matter of RBAC: ClusterRole system:node-bootstrapper, and
system:certificates.k8s.io:certificatesigningrequests:nodeclient to have the request
approved without a person.`,
		Example: `  kubejoin kubeconfig bootstrap --token-file token --ca-file ca.crt \
    --api-server https://api.example.com:6443 -o /etc/kubernetes/bootstrap-kubelet.conf

  kubejoin kubeconfig bootstrap --user kubelet-bootstrap --token-auth-file token.csv \
    --kubeconfig admin.conf -o bootstrap-kubelet.conf`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
			}
			return bootstrapKubeconfig(cmd.Context(), o, cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.tokenFile, "token-file", "", "file with a bootstrap token; - is standard input")
	f.StringVar(&o.user, "user", "", "name of a static user, such as kubelet-bootstrap")
	f.StringVar(&o.tokenAuthFile, "token-auth-file", "", "kube-apiserver's file of static users, of lines token,user,uid,\"group1,group2\"")
	f.StringVar(&o.caFile, "ca-file", "", "CA of the API server's certificate, such as /etc/kubernetes/pki/ca.crt")
	f.StringVar(&o.apiServer, "api-server", "", "https://HOST:PORT of the API server")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "read both from the cluster-info of this cluster")
	f.StringVar(&o.discovery, "discovery", "", "HOST:PORT to ask for cluster-info as a joining machine does")
	f.StringSliceVar(&o.pins, "discovery-token-ca-cert-hash", nil, "CA that may be trusted then, as sha256:HEX (repeatable)")
	f.StringVarP(&o.output, "output-file", "o", "", "write to this file, which only its owner can read (default: standard output)")
	return cmd
}

func (o *bootstrapOptions) check() error {
	var errs []error
	if (o.tokenFile == "") == (o.user == "") {
		errs = append(errs, errors.New("--token-file: want this or --user with --token-auth-file, and not both"))
	}
	if (o.user == "") != (o.tokenAuthFile == "") {
		errs = append(errs, errors.New("--user: goes together with --token-auth-file, and one of them is missing"))
	}
	ways := 0
	for _, given := range []bool{o.caFile != "" || o.apiServer != "", o.kubeconfig != "", o.discovery != "" || len(o.pins) > 0} {
		if given {
			ways++
		}
	}
	switch {
	case ways != 1:
		errs = append(errs, errors.New("--ca-file: want this and --api-server, or --kubeconfig, or --discovery, and only one of the three"))
	case (o.caFile == "") != (o.apiServer == ""):
		errs = append(errs, errors.New("--ca-file: goes together with --api-server, and one of them is missing"))
	case (o.discovery == "") != (len(o.pins) == 0):
		errs = append(errs, errors.New("--discovery: goes together with --discovery-token-ca-cert-hash, and one of them is missing"))
	case o.discovery != "" && o.user != "":
		errs = append(errs, errors.New("--discovery: needs a bootstrap token, whose signature shows that the answer is right; for a static user give --ca-file and --api-server"))
	}
	return errors.Join(errs...)
}

func bootstrapKubeconfig(ctx context.Context, o bootstrapOptions, stdin io.Reader, stdout io.Writer) error {
	bearer, name, token, err := o.credential(stdin)
	if err != nil {
		return err
	}
	kubeconfig, err := o.clusterInfo(ctx, token)
	if err != nil {
		return err
	}
	server, cas, err := clusterinfo.ParseKubeconfig(kubeconfig)
	if err != nil {
		return err
	}
	var bundle []byte
	for _, ca := range cas {
		bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})...)
	}
	content, err := clientcmd.Write(oneCluster("kubernetes", &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: bundle}, name, &clientcmdapi.AuthInfo{Token: bearer}))
	if err != nil {
		return err
	}
	return emit(o.output, content, stdout)
}

// credential is the bearer token and what the kubeconfig calls its user, and the bootstrap
// token, if it is one.
func (o bootstrapOptions) credential(stdin io.Reader) (bearer, name string, token tokens.Token, err error) {
	if o.user != "" {
		content, err := os.ReadFile(o.tokenAuthFile)
		if err != nil {
			return "", "", token, fmt.Errorf("--token-auth-file: %w", err)
		}
		bearer, err := staticBearer(content, o.user)
		if err != nil {
			return "", "", token, fmt.Errorf("--token-auth-file: %s: %w", o.tokenAuthFile, err)
		}
		return bearer, o.user, token, nil
	}
	source := stdin
	if o.tokenFile != "-" {
		f, err := os.Open(o.tokenFile)
		if err != nil {
			return "", "", token, fmt.Errorf("--token-file: %w", err)
		}
		defer func() { _ = f.Close() }() // only read
		source = f
	}
	content, err := io.ReadAll(io.LimitReader(source, maxTokenFile))
	if err == nil {
		token, err = tokens.Parse(strings.TrimSpace(string(content)))
	}
	if err != nil {
		return "", "", token, fmt.Errorf("--token-file: %w", err)
	}
	return token.Reveal(), "tls-bootstrap-token-user", token, nil // kubeadm's name
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
		case !bearerPattern.MatchString(row[0]):
			return "", fmt.Errorf("line %d: the token has characters that no bearer token has (RFC 6750)", line)
		default:
			bearer = row[0]
		}
	}
}

// clusterInfo is a discovery kubeconfig, from where the flags say.
func (o bootstrapOptions) clusterInfo(ctx context.Context, token tokens.Token) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	switch {
	case o.discovery != "":
		found, err := clusterinfo.Discover(ctx, o.discovery, token, o.pins)
		return found.Kubeconfig, err
	case o.kubeconfig != "":
		config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		info, err := client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("cluster-info: %w", err)
		}
		return []byte(info.Data[clusterinfo.KubeconfigKey]), nil
	}
	return kubeconfigOf(o.caFile, o.apiServer)
}
