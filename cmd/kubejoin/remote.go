package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

// Where a standalone kubejoin is, unless it was told otherwise.
const (
	defaultURL    = "https://127.0.0.1:9443"
	defaultCurlrc = "kubejoin-data/curlrc"
	adminConf     = "/etc/kubernetes/admin.conf"
)

// remoteOptions are the flags that say what tokens a command is about: those of a cluster, or of a
// kubejoin server.
type remoteOptions struct {
	kubeconfig            string
	url, caFile           string
	bearerFile, curlrc    string
	clientCert, clientKey string

	given func(flag string) bool
	// serverOnly is for what a cluster cannot be asked: no kubeconfig is looked for.
	serverOnly bool
}

// remoteHelp is what the help of each such command ends with.
const remoteHelp = `

Tokens of a cluster are reached with a kubeconfig: --kubeconfig, $KUBECONFIG,
~/.kube/config or ` + adminConf + `, whichever is there first. Those of a
kubejoin server are reached with --url, or with the --curlrc that 'kubejoin serve'
has written; KUBEJOIN_URL and KUBEJOIN_CURLRC stand in for these two.`

func (o *remoteOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	o.given = f.Changed
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster whose tokens are meant")
	f.StringVar(&o.url, "url", "", "https://HOST:PORT of the kubejoin server whose tokens are meant, with the path where it is mounted under one (default with --curlrc: "+defaultURL+")")
	f.StringVar(&o.curlrc, "curlrc", "", "file with a CA and a bearer token, as 'kubejoin serve' writes it (default with --url: "+defaultCurlrc+", if it is there)")
	f.StringVar(&o.caFile, "ca-file", "", "CA certificates that the server is checked against (default: --curlrc's, or the system's)")
	f.StringVar(&o.bearerFile, "bearer-file", "", "file with a bearer token alone")
	f.StringVar(&o.clientCert, "client-certificate", "", "client certificate in place of a bearer token")
	f.StringVar(&o.clientKey, "client-key", "", "key of --client-certificate")
}

// A remote is where the tokens are.
type remote struct {
	*client.Client
	// cluster is nil for a kubejoin server.
	cluster *onKubeconfig
}

// connect finds out what is meant and how to ask there. close ends what it has begun.
func (o *remoteOptions) connect(ctx context.Context) (r *remote, close func(), err error) {
	if o.kubeconfig == "" { // which wins over the environment
		o.url = cmp.Or(o.url, os.Getenv("KUBEJOIN_URL"))
		o.curlrc = cmp.Or(o.curlrc, os.Getenv("KUBEJOIN_CURLRC"))
	}
	if (o.clientCert == "") != (o.clientKey == "") {
		return nil, nil, &usageError{err: errors.New("--client-certificate: certificate and key go together, and one of them is missing")}
	}
	ofServer := o.url != "" || o.curlrc != "" || o.caFile != "" || o.bearerFile != "" || o.clientCert != ""
	if o.kubeconfig != "" && ofServer {
		return nil, nil, &usageError{err: errors.New("--kubeconfig is about a cluster, and --url and what goes with it about a kubejoin server: give one of them")}
	}
	if ofServer {
		return o.connectServer()
	}
	if rules, found := o.findKubeconfig(); found && !o.serverOnly {
		return connectCluster(ctx, rules)
	}
	if exists(defaultCurlrc) {
		return o.connectServer()
	}
	if o.serverOnly {
		return nil, nil, errors.New("which kubejoin server? give --url https://HOST:PORT, or --curlrc")
	}
	return nil, nil, fmt.Errorf("which tokens? there is no kubeconfig in the usual places: give --kubeconfig FILE for those of a cluster, or --url for those of a kubejoin server")
}

// run connects, does what a command is for, and puts errors into the terms of the command line.
func (o *remoteOptions) run(cmd *cobra.Command, do func(context.Context, *remote) error) error {
	r, stop, err := o.connect(cmd.Context())
	if err == nil {
		defer stop()
		err = explain(do(cmd.Context(), r))
	}
	return usageOf(cmd, err)
}

// usageOf says of a usage error which command it is about.
func usageOf(cmd *cobra.Command, err error) error {
	var usage *usageError
	if errors.As(err, &usage) && usage.command == "" {
		return &usageError{command: cmd.CommandPath(), err: usage.err}
	}
	return err
}

// warn tells a person something beside the output.
func warn(cmd *cobra.Command, warnings ...string) {
	for _, w := range warnings {
		cmd.PrintErrln("kubejoin: warning:", sanitize(w))
	}
}

// findKubeconfig goes through the places where kubeadm looks, in its order.
func (o *remoteOptions) findKubeconfig() (*clientcmd.ClientConfigLoadingRules, bool) {
	if o.kubeconfig != "" {
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: o.kubeconfig}, true
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	if os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" {
		return rules, true
	}
	for _, file := range []string{clientcmd.RecommendedHomeFile, adminConf} {
		if exists(file) {
			return &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}, true
		}
	}
	return rules, inCluster() // which the rules fall back to
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

// connectServer asks a kubejoin server over HTTPS.
func (o *remoteOptions) connectServer() (*remote, func(), error) {
	if o.curlrc == "" && o.bearerFile == "" && o.clientCert == "" && exists(defaultCurlrc) {
		o.curlrc = defaultCurlrc
	}
	var caFile string
	var bearer api.Secret
	if o.curlrc != "" {
		var err error
		if caFile, bearer, err = datadir.ReadCurlrc(o.curlrc); err != nil {
			return nil, nil, fmt.Errorf("--curlrc: %w", err)
		}
	}
	address := cmp.Or(o.url, defaultURL)
	// Other handlers may be beside it in its server: its own paths go on from that of the URL.
	if u, err := url.Parse(address); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.ContainsAny(address, "?#") {
		return nil, nil, &usageError{err: errors.New("--url: want https://HOST:PORT, or https://HOST:PORT/PATH where the server is mounted under a path")}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := cmp.Or(o.caFile, caFile); file != "" {
		bundle, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, fmt.Errorf("--ca-file: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, nil, fmt.Errorf("--ca-file: %s has no certificate in PEM", file)
		}
	}
	if o.bearerFile != "" {
		content, err := os.ReadFile(o.bearerFile)
		if err != nil {
			return nil, nil, fmt.Errorf("--bearer-file: %w", err)
		}
		if bearer = api.Secret(strings.TrimSpace(string(content))); bearer == "" || strings.ContainsAny(bearer.Reveal(), " \t\r\n") {
			return nil, nil, fmt.Errorf("--bearer-file: %s: want one bearer token and nothing else", o.bearerFile)
		}
	}
	if o.clientCert != "" {
		if o.bearerFile == "" { // which a curlrc may have for others
			bearer = ""
		}
		certificate, err := tls.LoadX509KeyPair(o.clientCert, o.clientKey)
		if err != nil {
			return nil, nil, fmt.Errorf("--client-certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		// The longest that the server itself may take, and some more.
		ResponseHeaderTimeout: server.MaxWait + time.Minute,
	}
	web := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a kubejoin server sends nobody elsewhere
	}}
	return &remote{Client: &client.Client{URL: address, Bearer: bearer, HTTP: web}}, transport.CloseIdleConnections, nil
}

// flagNames are the flags of the fields of requests, where these differ.
var flagNames = map[string]string{
	"maxNodes":            "max-nodes",
	"nodeNames":           "node-name",
	"certificateDuration": "certificate-duration",
	"replaceNode":         "replace-node",
	"tokenID":             "token",
	"endsWithin":          "ends-within",
}

// explain puts a problem into the terms of the command line.
func explain(err error) error {
	var p *api.Problem
	if !errors.As(err, &p) {
		return err
	}
	if p.Status == http.StatusUnauthorized {
		return fmt.Errorf("%w; a credential comes from --curlrc, --bearer-file or --client-certificate", err)
	}
	if p.Field == "" || p.Status != http.StatusBadRequest {
		return err
	}
	if len(p.Errors) == 0 {
		return &usageError{err: errors.New(p.Detail)}
	}
	var lines []string
	for _, e := range p.Errors {
		if e.Field != "" {
			e.Field = "--" + cmp.Or(flagNames[e.Field], e.Field)
		}
		lines = append(lines, e.String())
	}
	return &usageError{err: errors.New(strings.Join(lines, "; "))}
}

// tokenID is the ID in an argument, which may be a whole token as kubeadm takes it.
func tokenID(argument string) (string, error) {
	if strings.Contains(argument, ".") {
		t, err := tokens.Parse(argument)
		return t.ID(), err
	}
	return argument, tokens.CheckID(argument)
}
