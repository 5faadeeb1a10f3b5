package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/server/operations/kube"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"
)

// Default locations of a standalone kubejoin, and kubeadm's kubeconfig for administrators.
const (
	defaultURL    = "https://127.0.0.1:9443"
	defaultCurlrc = "kubejoin-data/curlrc"
	adminConf     = "/etc/kubernetes/admin.conf"
)

// remoteOptions are the flags that select where the tokens are: on a cluster or on a kubejoin server.
type remoteOptions struct {
	kubeconfig, context   string
	url, caFile           string
	bearerFile, curlrc    string
	clientCert, clientKey string

	// pkiDir has the files of a control plane, for commands that upload them on a cluster.
	pkiDir string

	// connect stores here what it has used, for hints: the URL of a server, its CA file, the credential with what to do if
	// the server refuses it, or the kubeconfig of a cluster.
	server, trusted, credential, kubeconfigFile string
	cluster                                     bool // connect has chosen a cluster

	given func(flag string) bool
	// serverOnly is true for commands that only a kubejoin server supports. They do not look for a kubeconfig.
	serverOnly bool
	// instead ends the errors of a command with serverOnly. It says what to do without a server.
	instead string
	// waits says what the command waits for besides the response. The zero value says nothing.
	waits waiting
	// running is the command that calls run. Other callers of connect print what they wait for themselves.
	running *cobra.Command
	// ownServer sends the bearer token of a curlrc only to the server that this file names.
	ownServer bool
}

// remoteOutput has the flags of commands that read a cluster or a kubejoin server and print the result.
type remoteOutput struct {
	remoteOptions
	output
}

// whereHelp, in the help of kubejoin, says how to select a cluster or a server. Each command with remoteOptions ends its
// help with one of the other texts.
const (
	whereHelp = `Commands work on a cluster or on a kubejoin server: the first one that is given by
  1. --kubeconfig or --context: a cluster
  2. --url, --curlrc or another connection flag: a kubejoin server
  3. $KUBEJOIN_URL or $KUBEJOIN_CURLRC: a kubejoin server
  4. $KUBECONFIG, ~/.kube/config, ` + adminConf + ` or the service account
     of a pod: a cluster
  5. ` + defaultCurlrc + `, which 'kubejoin serve' wrote: a kubejoin server`
	remoteHelp = `

The command works on a cluster or on a kubejoin server: 'kubejoin --help' says on which.
The exit code is 3 if the server refuses the caller.`
	serverHelp = `

The command needs a kubejoin server: --url or --curlrc, else $KUBEJOIN_URL or
$KUBEJOIN_CURLRC, else ` + defaultCurlrc + `.
The exit code is 3 if the server refuses the caller.`
	clusterHelp = `

The command works on a cluster: the first of --kubeconfig, $KUBECONFIG, ~/.kube/config,
` + adminConf + ` and the service account of a pod.`
)

func (o *remoteOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	o.given = f.Changed
	if f.Lookup("kubeconfig") == nil {
		o.registerCluster(f)
	}
	f.StringVar(&o.url, "url", "", "https://HOST:PORT[/PATH] of the kubejoin server (default, in this order: that of a given --curlrc, $KUBEJOIN_URL, that of the default --curlrc, "+defaultURL+")")
	f.StringVar(&o.curlrc, "curlrc", "", "file of 'kubejoin serve' with its URL, CA and bearer token (default: $KUBEJOIN_CURLRC or "+defaultCurlrc+")")
	f.StringVar(&o.caFile, "ca-file", "", "CA certificates of the server (default: those of --curlrc, else the system's)")
	f.StringVar(&o.bearerFile, "bearer-file", "", "file with a bearer token and nothing else")
	f.StringVar(&o.clientCert, "client-certificate", "", "client certificate file, instead of a bearer token")
	f.StringVar(&o.clientKey, "client-key", "", "private key of --client-certificate")
	heading(f, "Connection flags", "kubeconfig", "context", "url", "curlrc", "ca-file", "bearer-file", "client-certificate", "client-key")
}

// registerCluster adds the flags that select a cluster.
func (o *remoteOptions) registerCluster(f *pflag.FlagSet) {
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to work on")
	f.StringVar(&o.context, "context", "", "context of the kubeconfig (default: its current context)")
	for _, flag := range []string{"kubeconfig", "context"} {
		f.Lookup(flag).Hidden = o.serverOnly // it is an error that says what to use instead
	}
}

// clusterFlag returns the flag that selects a cluster, or nothing.
func (o *remoteOptions) clusterFlag() string {
	switch {
	case o.kubeconfig != "":
		return "--kubeconfig"
	case o.context != "":
		return "--context"
	}
	return ""
}

// readEnvironment completes the flags from the environment. Flags have priority: --kubeconfig and --context select a
// cluster, and --curlrc selects the server in that file, if the file names one.
func (o *remoteOptions) readEnvironment() {
	if o.clusterFlag() != "" {
		return
	}
	if o.curlrc == "" {
		o.url = cmp.Or(o.url, os.Getenv("KUBEJOIN_URL"))
	}
	o.curlrc = cmp.Or(o.curlrc, os.Getenv("KUBEJOIN_CURLRC"))
}

// connect selects the cluster or the server and connects to it. close stops the informers or closes the connections.
func (o *remoteOptions) connect(ctx context.Context) (r *remote, close func(), err error) {
	o.readEnvironment()
	var m mistakes
	if m.together("client-certificate", o.clientCert, "client-key", o.clientKey); len(m) > 0 {
		return nil, nil, m.err()
	}
	flag := o.clusterFlag()
	if o.serverOnly && flag != "" {
		return nil, nil, usagef("%s: this command needs a kubejoin server, want --url https://HOST:PORT or --curlrc FILE%s", flag, o.instead)
	}
	ofServer := o.url != "" || o.curlrc != "" || o.caFile != "" || o.bearerFile != "" || o.clientCert != ""
	if flag != "" && ofServer {
		return nil, nil, usagef("%s: selects a cluster, and --url, --curlrc, --ca-file, --bearer-file and --client-certificate select a kubejoin server; give only one of the two", flag)
	}
	if ofServer {
		return o.connectServer()
	}
	if rules, found := o.findKubeconfig(); (found || flag != "") && !o.serverOnly {
		if !found {
			return nil, nil, errNoKubeconfig
		}
		o.cluster, o.kubeconfigFile = true, kubeconfigFiles(rules)
		if o.running != nil {
			reach := o.response()
			reach.most = kube.ReachTimeout
			defer reach.begin(o.running)()
		}
		return o.connectCluster(ctx, rules)
	}
	if exists(defaultCurlrc) {
		return o.connectServer()
	}
	if o.serverOnly {
		return nil, nil, errors.New("no kubejoin server given: want --url https://HOST:PORT or --curlrc FILE" + o.instead)
	}
	return nil, nil, fmt.Errorf("no cluster or kubejoin server given, and no kubeconfig found: want --kubeconfig FILE for a cluster, or --url https://HOST:PORT for a kubejoin server")
}

// run connects and calls do. Its errors name flags, not fields of the API.
func (o *remoteOptions) run(cmd *cobra.Command, do func(context.Context, *remote) error) error {
	o.running = cmd
	r, stop, err := o.connect(cmd.Context())
	if err == nil {
		defer stop()
		defer o.waits.or(o.response()).begin(cmd)()
		err = explain(do(cmd.Context(), r))
	}
	return o.hint(err)
}

// response describes the wait for a response of the cluster or server that connect has chosen.
func (o *remoteOptions) response() waiting {
	if o.cluster {
		return waiting{what: "for the API server of " + cmp.Or(o.kubeconfigFile, "this pod")}
	}
	return waiting{"for " + o.server, serverWait}
}

// hint adds which file to check, and the next command, to an error about a connection or a credential.
func (o *remoteOptions) hint(err error) error {
	var network *net.OpError
	var unknown x509.UnknownAuthorityError
	var p *api.Problem
	unreached, untrusted := errors.As(err, &network), errors.As(err, &unknown)
	refused := apierrors.IsUnauthorized(err) || errors.As(err, &p) && p.Status == http.StatusUnauthorized
	switch {
	case !unreached && !untrusted && !refused, o.server == "" && !o.cluster: // or the error is about another server
		return err
	case o.cluster:
		return fmt.Errorf("%w; %s", err, o.clusterHint(refused))
	case untrusted:
		return fmt.Errorf("%w; the CA in %s did not issue the certificate of this server: give its CA with --ca-file, which 'kubejoin serve' keeps as ca.crt in --data-dir", err, cmp.Or(o.trusted, "the system's trust store"))
	case unreached:
		return fmt.Errorf("%w; no kubejoin responds there: start it with 'kubejoin serve', or give its address with --url https://HOST:PORT", err)
	case o.credential == "":
		return fmt.Errorf("%w; give a credential with --curlrc, --bearer-file or --client-certificate", err)
	}
	return fmt.Errorf("%w: the %s", err, o.credential)
}

func (o *remoteOptions) clusterHint(refused bool) string {
	file, flag := "the service account of this pod", ""
	if o.kubeconfigFile != "" {
		file, flag = "kubeconfig "+o.kubeconfigFile, " --kubeconfig "+safetext.Quote(o.kubeconfigFile)
	}
	if o.context != "" {
		file, flag = "context "+o.context+" of "+file, flag+" --context "+safetext.Quote(o.context)
	}
	if refused {
		return "the API server does not accept the credential in " + file + ": see 'kubectl auth whoami" + flag + "'"
	}
	return "the API server of " + file + " does not respond, or has another CA: see 'kubectl cluster-info" + flag + "'"
}

// onThisMachine returns the URL of a server if its host is a loopback address, or else nothing.
func onThisMachine(server string) string {
	u, err := url.Parse(server)
	if err != nil {
		return ""
	}
	if address, err := netip.ParseAddr(u.Hostname()); err != nil || !address.IsLoopback() {
		return ""
	}
	return server
}

var errNoKubeconfig = errors.New("no kubeconfig found: want --kubeconfig FILE")

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

// kubeconfigFiles returns the files of a kubeconfig, or nothing for the service account of a pod.
func kubeconfigFiles(rules *clientcmd.ClientConfigLoadingRules) string {
	return cmp.Or(rules.ExplicitPath, os.Getenv(clientcmd.RecommendedConfigPathEnvVar))
}

// connectServer returns a client of a kubejoin server over HTTPS.
func (o *remoteOptions) connectServer() (*remote, func(), error) {
	file, own := o.curlrc, true
	if file == "" && exists(defaultCurlrc) {
		// If a flag gives another credential, use only the server from the file.
		if own = o.bearerFile == "" && o.clientCert == ""; own || o.url == "" {
			file = defaultCurlrc
		}
	}
	var curlrc datadir.CurlConfig
	if file != "" {
		var err error
		if curlrc, err = datadir.ReadCurlrc(file); err != nil && own {
			return nil, nil, fmt.Errorf("--curlrc: %w", err)
		}
	}
	if !own {
		// Any user may own the folder, and the given credential may belong to another server. So use only the address, if
		// it is on this machine, and ignore the token in the file.
		curlrc = datadir.CurlConfig{Server: onThisMachine(curlrc.Server)}
	}
	bearer, address := curlrc.Bearer, cmp.Or(o.url, curlrc.Server, os.Getenv("KUBEJOIN_URL"), defaultURL)
	o.server, o.trusted = address, cmp.Or(o.caFile, curlrc.CAFile)
	if curlrc.Bearer != "" {
		o.credential = "bearer token in --curlrc " + file + " is not one of this server: 'kubejoin serve' writes this file into its --data-dir"
	}
	// The URL may have a path: kubejoin may be mounted under a prefix of another server.
	if _, err := clusterinfo.Endpoint(address); err != nil {
		return nil, nil, usagef("--url: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file := o.trusted; file != "" {
		bundle, err := os.ReadFile(file)
		if err != nil {
			return nil, nil, fmt.Errorf("--ca-file: %w", err)
		}
		if config.RootCAs, err = pemfile.Pool(bundle); err != nil {
			return nil, nil, fmt.Errorf("--ca-file: %s: %w", file, err)
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
		o.credential = "bearer token in --bearer-file " + o.bearerFile + " is unknown here: get a current one from the operator"
		if t, err := tokens.Parse(bearer.Reveal()); err == nil {
			o.credential = "bootstrap token " + t.ID() + " in --bearer-file " + o.bearerFile + " has expired or was deleted: see 'kubejoin token list', and create another with 'kubejoin token create'"
		}
	}
	if o.clientCert != "" {
		if o.bearerFile == "" { // the bearer token in curlrc may belong to another user
			bearer = ""
		}
		certificate, err := pemfile.LoadKeyPair(o.clientCert, o.clientKey)
		if err != nil {
			return nil, nil, fmt.Errorf("--client-certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
		if o.bearerFile == "" {
			o.credential = "client certificate in --client-certificate " + o.clientCert + " has expired, was revoked or is from another CA: see 'openssl x509 -noout -issuer -enddate -in " + safetext.Quote(o.clientCert) + "'"
		}
	}
	if o.ownServer && o.bearerFile == "" && bearer != "" && address != curlrc.Server {
		return nil, nil, fmt.Errorf("--curlrc: %s is not for %s", file, address)
	}
	c, stop := newClient(address, config)
	c.Bearer = bearer
	return &remote{backend: onServer{c}, server: c}, stop, nil
}

// newClient returns a client of a kubejoin server, and a function that closes its connections.
func newClient(address string, config *tls.Config) (*client.Client, func()) {
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true,
		DialContext:           (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: serverWait,
	}
	web := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a kubejoin server never redirects
	}}
	return &client.Client{URL: address, HTTP: web}, transport.CloseIdleConnections
}
