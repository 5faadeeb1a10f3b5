package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/rejoining"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func claimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "claim",
		Short: "List the node names that tokens hold, and release them",
		Long: `List the node names that tokens hold, and release them. When a node joins with a limited
token, the token claims the node name, and no other token can use it. kubejoin removes a
claim when its Node is deleted, or when its token is gone and no Node was registered.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(claimListCommand(), claimReleaseCommand())
	return cmd
}

func claimListCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
	}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the node names that limited tokens hold",
		Long:    `List the node names that limited tokens hold.` + remoteHelp,
		Example: `  kubejoin claim list`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if err := r.mayListClaims(ctx); err != nil {
					return err
				}
				list, err := r.ListClaims(ctx)
				if err != nil {
					return err
				}
				return o.claims(cmd, list)
			})
		},
	}
	cmd.Flags().SortFlags = false
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	return cmd
}

// claims prints a list of claims.
func (o *output) claims(cmd *cobra.Command, list api.ClaimList) error {
	w := cmd.OutOrStdout()
	if done, err := o.object(w, list); done || len(list.Items) == 0 {
		return err
	}
	if o.format == "name" {
		for _, c := range list.Items {
			if _, err := fmt.Fprintln(w, c.Node); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"NODE", "TOKEN", "AGE", "KEYS", "REGISTERED", "REJOINS", "REVOKED"}}
	now := time.Now()
	for _, c := range list.Items {
		registered := "no"
		if c.NodeUID != "" {
			registered = "yes"
		}
		revoked := "no"
		if c.Revoked {
			revoked = "yes"
		}
		rows = append(rows, []string{c.Node, c.Token, age(c.Created, now), strconv.Itoa(c.Keys), registered, strconv.Itoa(len(c.Rejoins)), revoked})
	}
	return table(w, rows)
}

func claimReleaseCommand() *cobra.Command {
	var o struct {
		remoteOptions
		dryRun bool
	}
	cmd := &cobra.Command{
		Use:   "release NODE…",
		Short: "Release node names, so that other machines can use them",
		Long: `Release node names: another machine can use the name, and its token gets a free slot.
If a Node was deleted, its name is free, but its token still counts it. The command then frees the slot.
The command prints a line for each name. The exit code is 1 if one cannot be released.

Certificates with the name stay valid, so release only names of machines that must not
join. The machine of a released name cannot rejoin. Until another token claims the name, renewals last at most as long as the old token
allowed. A standalone kubejoin refuses such renewals.` + remoteHelp,
		Example: `  kubejoin claim release worker-7`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			if len(args) == 0 {
				errs = append(errs, errors.New("NODE: none given, want one node name or several"))
			}
			for _, name := range args {
				if err := tokens.CheckNodeName(name); err != nil {
					errs = append(errs, fmt.Errorf("NODE: %w", err))
				}
			}
			if len(errs) > 0 {
				return usageOf(cmd, &usageError{err: errors.Join(errs...)})
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if err := r.mayListClaims(ctx); err != nil {
					return err
				}
				return releaseClaims(ctx, cmd, r, args, o.dryRun)
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would be released, but release nothing")
	o.register(cmd)
	return cmd
}

func releaseClaims(ctx context.Context, cmd *cobra.Command, r *remote, nodes []string, dryRun bool) error {
	var errs []error
	for _, node := range nodes {
		c, err := r.ReleaseClaim(ctx, node, api.ReleaseClaim{DryRun: dryRun})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		warn(cmd, c.Warnings...)
		done := "released"
		if dryRun {
			done = "would be released (dry run)"
		}
		what := "claim of token " + c.Token + " on"
		if c.Token == "" {
			what = "identity of"
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s node name %q %s\n", what, node, done); err != nil {
			return err
		}
	}
	return each(cmd, len(nodes), errs)
}

// Exit codes of rejoin.
const (
	exitRejoinRefused = 3
	exitRejoinTimeout = 4
)

// rejoinOptions are the flags of rejoin.
type rejoinOptions struct {
	url, caFile         string
	host                string // of url
	kubeconfig          string
	bootstrapKubeconfig string
	key, node, bindKey  string
	before, wait        time.Duration
	restart             string
	output
}

// A rejoined is the result of rejoin, for -o json.
type rejoined struct {
	Node   string `json:"node"`
	Result string `json:"result"`
	// NotAfter is when the certificate that the machine has expires, or has expired.
	NotAfter            *time.Time `json:"notAfter,omitempty"`
	BootstrapKubeconfig string     `json:"bootstrapKubeconfig,omitempty"`
	BoundKey            string     `json:"boundKey,omitempty"`
}

// Values of rejoined.Result.
const (
	rejoinValid   = "valid"   // there is nothing to do
	rejoinWritten = "written" // the bootstrap kubeconfig
	rejoinBound   = "bound"   // a key
)

func rejoinCommand() *cobra.Command {
	var o rejoinOptions
	cmd := &cobra.Command{
		Use:   "rejoin --url https://HOST:PORT",
		Short: "Let this machine come back after its kubelet's certificate has expired",
		Long: `Let this machine come back after its kubelet's certificate has expired. Run it on the
machine, as root.

A kubelet that was off until its certificate expired cannot renew it. This command proves
to a kubejoin server with the key of the expired certificate that the machine is its node.
It writes the bootstrap kubeconfig that it gets. Then start the kubelet, or give
--restart: it requests a new certificate and keeps its Node, with labels and pods.

The server needs --rejoin-window. Its URL must have a name or address of the server's
certificate. While the certificate is valid, the command changes nothing, so a timer or
OnFailure= of kubelet.service can run it: see deploy/systemd.

A machine that loses its disk at each boot keeps a private key in another place. Bind it
once, while the node has its first certificate: --bind-key FILE. Then the machine comes
back with --key FILE --node NAME.

The exit code is 0 if the certificate is valid or the file is written, 1 if something on
this machine is missing, 2 for invalid flags, 3 if the server refuses, and 4 if it does
not decide within --wait.`,
		Example: `  kubejoin rejoin --url https://join.example.com:9443 --restart kubelet

  # a machine without a disk: once, and then at each boot
  openssl genpkey -algorithm ed25519 -out /boot/node.key
  kubejoin rejoin --url https://join.example.com:9443 --bind-key /boot/node.key
  kubejoin rejoin --url https://join.example.com:9443 --ca-file ca.crt \
    --key /boot/node.key --node worker-7`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.run(cmd)
			var p *api.Problem
			code := 0
			switch {
			case errors.As(err, &p) && (p.Named(api.ProblemRejoinRefused) || p.Named(api.ProblemRejoinUnproven)):
				code = exitRejoinRefused
				err = fmt.Errorf("%s: %w", p.Reason, err)
			case errors.Is(err, rejoining.ErrTimeout):
				code = exitRejoinTimeout
			default:
				return usageOf(cmd, err)
			}
			cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
			return exitCode(code)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.url, "url", "", "https://HOST:PORT[/PATH] of the kubejoin server (default: $KUBEJOIN_URL)")
	f.StringVar(&o.caFile, "ca-file", "", "CA certificates to verify the server with (default: those of --kubeconfig)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "/etc/kubernetes/kubelet.conf", "kubeconfig of the kubelet, with its client certificate")
	f.StringVar(&o.bootstrapKubeconfig, "bootstrap-kubeconfig", "/etc/kubernetes/bootstrap-kubelet.conf", "file to write: --bootstrap-kubeconfig of the kubelet")
	f.StringVar(&o.key, "key", "", "file with the private key that was bound to the node, instead of --kubeconfig")
	f.StringVar(&o.node, "node", "", "with --key: name of the node")
	f.StringVar(&o.bindKey, "bind-key", "", "bind the public key of this private key file to the node, and do nothing else")
	f.DurationVar(&o.before, "before", 0, "rejoin also if the certificate expires within this time")
	f.DurationVar(&o.wait, "wait", 5*time.Minute, "how long to retry while the server does not respond")
	f.StringVar(&o.restart, "restart", "", "systemd unit to restart after the file was written, for example kubelet")
	o.output.register(cmd, "text")
	return cmd
}

func (o *rejoinOptions) run(cmd *cobra.Command) error {
	if err := o.check(); err != nil {
		return err
	}
	credential, err := o.credential()
	if err != nil {
		return err
	}
	done := rejoined{Node: credential.Node}
	if credential.Leaf != nil {
		done.NotAfter = &credential.Leaf.NotAfter
	}
	if o.bindKey == "" && credential.Fresh(time.Now(), o.before) {
		done.Result = rejoinValid
		if _, err := rejoining.Clean(o.bootstrapKubeconfig); err != nil {
			return err
		}
		return o.print(cmd, done, fmt.Sprintf("nothing to do: the certificate of node %s is valid until %s", done.Node, done.NotAfter.UTC().Format(time.RFC3339)))
	}
	server, stop, err := o.server(cmd, credential.CA)
	if err != nil {
		return err
	}
	defer stop()
	if o.bindKey != "" {
		key, err := rejoining.ReadKey(o.bindKey)
		if err != nil {
			return fmt.Errorf("--bind-key: %w", err)
		}
		if done.BoundKey, err = server.Bind(cmd.Context(), credential, key); err != nil {
			return err
		}
		done.Result = rejoinBound
		return o.print(cmd, done, fmt.Sprintf("bound key %s to node %s: rejoin with --key %s --node %s", done.BoundKey, done.Node, o.bindKey, done.Node))
	}
	if err := server.Rejoin(cmd.Context(), credential, o.bootstrapKubeconfig); err != nil {
		return err
	}
	done.Result, done.BootstrapKubeconfig = rejoinWritten, o.bootstrapKubeconfig
	next := "now start or restart the kubelet, with --bootstrap-kubeconfig=" + o.bootstrapKubeconfig
	if o.restart != "" {
		if out, err := exec.CommandContext(cmd.Context(), "systemctl", "restart", o.restart).CombinedOutput(); err != nil {
			return fmt.Errorf("--restart: systemctl restart %s: %w: %s", o.restart, err, strings.TrimSpace(string(out)))
		}
		next = o.restart + " was restarted"
	}
	return o.print(cmd, done, fmt.Sprintf("node %s may rejoin within 10 minutes: wrote %s; %s", done.Node, o.bootstrapKubeconfig, next))
}

func (o *rejoinOptions) check() error {
	o.url = cmp.Or(o.url, os.Getenv("KUBEJOIN_URL"))
	u, err := url.Parse(o.url)
	switch {
	case o.url == "":
		return &usageError{err: errors.New("--url: none given, want https://HOST:PORT of the kubejoin server")}
	case err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.ContainsAny(o.url, "?#"):
		return &usageError{err: errors.New("--url: want https://HOST:PORT, or https://HOST:PORT/PATH where the server is mounted under a path")}
	case (o.key == "") != (o.node == ""):
		return &usageError{err: errors.New("--key: a key and --node go together, and one of them is missing")}
	case o.key != "" && o.bindKey != "":
		return &usageError{err: errors.New("--bind-key: cannot be combined with --key, since only the certificate of the node binds a key")}
	case o.before < 0 || o.wait < 0:
		return &usageError{err: errors.New("--before, --wait: want 0s or more")}
	case strings.HasPrefix(o.restart, "-"):
		return &usageError{err: fmt.Errorf("--restart: %q given, want a systemd unit", o.restart)}
	}
	o.host = strings.ToLower(u.Hostname())
	if o.node != "" {
		if err := tokens.CheckNodeName(o.node); err != nil {
			return &usageError{err: fmt.Errorf("--node: %w", err)}
		}
	}
	return o.output.check()
}

// credential returns what the machine proves with that it is its node. A machine with a bound key may have a valid
// certificate, too.
func (o *rejoinOptions) credential() (*rejoining.Credential, error) {
	own, err := rejoining.OfKubeconfig(o.kubeconfig)
	if o.key == "" {
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig: %w", err)
		}
		return own, nil
	}
	if err == nil && own.Node == o.node && own.Fresh(time.Now(), o.before) {
		return own, nil
	}
	key, err := rejoining.ReadKey(o.key)
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	c := &rejoining.Credential{Node: o.node, Key: key}
	if own != nil {
		c.CA = own.CA
	}
	return c, nil
}

func (o *rejoinOptions) server(cmd *cobra.Command, ca []byte) (*rejoining.Server, func(), error) {
	if o.caFile != "" {
		var err error
		if ca, err = os.ReadFile(o.caFile); err != nil {
			return nil, nil, fmt.Errorf("--ca-file: %w", err)
		}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(ca) {
		return nil, nil, errors.New("--ca-file: no CA certificate in PEM, there or in --kubeconfig")
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second}
	var last string
	return &rejoining.Server{
		Client: &client.Client{URL: o.url, HTTP: &http.Client{Transport: transport, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}},
		Host:   o.host, Wait: o.wait,
		Waits: func(err error) {
			if text := err.Error(); text != last {
				cmd.PrintErrln("kubejoin: waiting:", sanitize(text))
				last = text
			}
		},
	}, transport.CloseIdleConnections, nil
}

func (o *rejoinOptions) print(cmd *cobra.Command, done rejoined, text string) error {
	if printed, err := o.object(cmd.OutOrStdout(), done); printed || err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), sanitize(text))
	return err
}
