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

// Default locations: a standalone kubejoin's, and kubeadm's kubeconfig of the administrator.
const (
	defaultURL    = "https://127.0.0.1:9443"
	defaultCurlrc = "kubejoin-data/curlrc"
	adminConf     = "/etc/kubernetes/admin.conf"
)

// remoteOptions are the flags that select where the tokens are: on a cluster or on a kubejoin server.
type remoteOptions struct {
	kubeconfig            string
	url, caFile           string
	bearerFile, curlrc    string
	clientCert, clientKey string

	// pkiDir has the files of a control plane, for commands that upload them on a cluster.
	pkiDir string

	given func(flag string) bool
	// serverOnly is true for commands that only a kubejoin server supports. They do not look for a kubeconfig.
	serverOnly bool
}

// remoteHelp ends the help of each command with remoteOptions.
const remoteHelp = `

The command works on a cluster or on a kubejoin server. For a cluster it uses the
first kubeconfig of --kubeconfig, $KUBECONFIG, ~/.kube/config and
` + adminConf + `. For a kubejoin server give --url or $KUBEJOIN_URL, or the
curlrc file that 'kubejoin serve' wrote: --curlrc or $KUBEJOIN_CURLRC.`

func (o *remoteOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.SortFlags = false
	o.given = f.Changed
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to work on")
	if o.serverOnly {
		_ = f.MarkHidden("kubeconfig") // it is an error that says what to use instead
	}
	f.StringVar(&o.url, "url", "", "https://HOST:PORT[/PATH] of the kubejoin server to work on (default with --curlrc: "+defaultURL+")")
	f.StringVar(&o.curlrc, "curlrc", "", "file with a CA and a bearer token, written by 'kubejoin serve' (default with --url: "+defaultCurlrc+" if it exists)")
	f.StringVar(&o.caFile, "ca-file", "", "CA certificates to verify the server with (default: those of --curlrc, else the system's)")
	f.StringVar(&o.bearerFile, "bearer-file", "", "file with only a bearer token")
	f.StringVar(&o.clientCert, "client-certificate", "", "client certificate file, instead of a bearer token")
	f.StringVar(&o.clientKey, "client-key", "", "private key of --client-certificate")
}

// A remote is a client of a kubejoin server, or of the in-process server for a cluster.
type remote struct {
	*client.Client
	// cluster is nil for a kubejoin server.
	cluster *onKubeconfig
}

// connect selects the cluster or the server and connects to it. close stops the informers or closes the connections.
func (o *remoteOptions) connect(ctx context.Context) (r *remote, close func(), err error) {
	if o.kubeconfig == "" { // --kubeconfig wins over the environment
		o.url = cmp.Or(o.url, os.Getenv("KUBEJOIN_URL"))
		o.curlrc = cmp.Or(o.curlrc, os.Getenv("KUBEJOIN_CURLRC"))
	}
	if (o.clientCert == "") != (o.clientKey == "") {
		return nil, nil, &usageError{err: errors.New("--client-certificate: certificate and key go together, and one of them is missing")}
	}
	if o.serverOnly && o.kubeconfig != "" {
		return nil, nil, &usageError{err: errors.New("--kubeconfig: this command needs a kubejoin server, want --url https://HOST:PORT or --curlrc FILE")}
	}
	ofServer := o.url != "" || o.curlrc != "" || o.caFile != "" || o.bearerFile != "" || o.clientCert != ""
	if o.kubeconfig != "" && ofServer {
		return nil, nil, &usageError{err: errors.New("--kubeconfig: selects a cluster, and --url, --curlrc, --ca-file, --bearer-file and --client-certificate select a kubejoin server; give only one of the two")}
	}
	if ofServer {
		return o.connectServer()
	}
	if rules, found := o.findKubeconfig(); found && !o.serverOnly {
		return connectCluster(ctx, rules, o.pkiDir)
	}
	if exists(defaultCurlrc) {
		return o.connectServer()
	}
	if o.serverOnly {
		return nil, nil, errors.New("no kubejoin server given: want --url https://HOST:PORT or --curlrc FILE")
	}
	return nil, nil, fmt.Errorf("no cluster or kubejoin server given, and no kubeconfig found: want --kubeconfig FILE for a cluster, or --url https://HOST:PORT for a kubejoin server")
}

// run connects and calls do. Its errors name flags, not fields of the API.
func (o *remoteOptions) run(cmd *cobra.Command, do func(context.Context, *remote) error) error {
	r, stop, err := o.connect(cmd.Context())
	if err == nil {
		defer stop()
		err = explain(do(cmd.Context(), r))
	}
	return usageOf(cmd, err)
}

// usageOf adds the command to a usage error that has none.
func usageOf(cmd *cobra.Command, err error) error {
	var usage *usageError
	if errors.As(err, &usage) && usage.command == "" {
		return &usageError{command: cmd.CommandPath(), err: usage.err}
	}
	return err
}

// warn prints warnings to standard error.
func warn(cmd *cobra.Command, warnings ...string) {
	for _, w := range warnings {
		cmd.PrintErrln("kubejoin: warning:", sanitize(w))
	}
}

// findKubeconfig looks for a kubeconfig in the same places as kubeadm, in the same order.
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
	return rules, inCluster() // the rules fall back to the service account
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil || !errors.Is(err, fs.ErrNotExist)
}

// connectServer returns a client of a kubejoin server over HTTPS.
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
	// The URL may have a path: kubejoin may be mounted under a prefix of another server.
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
		if o.bearerFile == "" { // a bearer in curlrc may be another user's
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
		// The longest wait that the server allows, and a margin.
		ResponseHeaderTimeout: server.MaxWait + time.Minute,
	}
	web := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a kubejoin server never redirects
	}}
	return &remote{Client: &client.Client{URL: address, Bearer: bearer, HTTP: web}}, transport.CloseIdleConnections, nil
}

// flagNames maps fields of requests to flags, where the names differ.
var flagNames = map[string]string{
	"maxNodes":            "max-nodes",
	"nodeNames":           "node-name",
	"certificateDuration": "certificate-duration",
	"replaceNode":         "replace-node",
	"controlPlane":        "control-plane",
	"rejoinURL":           "with-rejoin",
	"tokenID":             "token",
	"endsWithin":          "ends-within",
}

// explain names flags instead of fields in a problem, and adds hints.
func explain(err error) error {
	var p *api.Problem
	if !errors.As(err, &p) {
		return err
	}
	if p.Status == http.StatusUnauthorized {
		return fmt.Errorf("%w; give a credential with --curlrc, --bearer-file or --client-certificate", err)
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

// tokenID returns the token ID in an argument. Like kubeadm, it also accepts a whole token.
func tokenID(argument string) (string, error) {
	if strings.Contains(argument, ".") {
		t, err := tokens.Parse(argument)
		return t.ID(), err
	}
	return argument, tokens.CheckID(argument)
}
