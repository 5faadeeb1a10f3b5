package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/atomicfile"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/kubelet"
	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// exitRejoinTimeout is the exit code if the server did not decide within --wait.
const exitRejoinTimeout exitCode = 4

// minRejoinRetry is the shortest delay before a retry.
const minRejoinRetry = 2 * time.Second

// rejoinOptions are the flags of rejoin. The flag --kubeconfig names the kubelet's kubeconfig.
type rejoinOptions struct {
	remoteOptions
	certDir, key, node, bindKey string
	before, wait                time.Duration
	restart                     string
	output

	shown string // what the machine presents to the server, for errors
}

// A rejoined is the result of rejoin, for -o json.
type rejoined struct {
	Node string `json:"node"`
	// Result is "valid" (nothing to do), "issued" or "bound".
	Result string `json:"result"`
	// NotAfter is when the certificate that the machine has now expires.
	NotAfter *time.Time `json:"notAfter,omitempty"`
	// File is the link to the new certificate.
	File     string `json:"file,omitempty"`
	BoundKey string `json:"boundKey,omitempty"`
}

func rejoinCommand() *cobra.Command {
	var o rejoinOptions
	cmd := &cobra.Command{
		Use:   "rejoin --url https://HOST:PORT",
		Short: "Let this machine come back after its kubelet's certificate has expired",
		Long: `Let this machine come back after its kubelet's certificate has expired. Run it on the
machine, as root. The kubelet keeps its Node, with labels and pods.

The command presents the expired certificate to a kubejoin server in the TLS handshake,
and writes the new certificate as the kubelet does. While the certificate is valid, it
changes nothing. The server needs --rejoin-window, and no proxy may end TLS.

A machine that loses its disk at each boot keeps a private key in another place. Bind it
once with --bind-key FILE, while the node has a valid certificate. Then the machine comes
back with --key FILE --node NAME.

The exit code is 0 if the certificate is valid, a new one is written, or the key is bound.
It is 2 for invalid flags, 3 if the server refuses, 4 if it does not decide within --wait,
and 1 for all other errors.`,
		Example: `  kubejoin rejoin --url https://join.example.com:9443 --restart kubelet

  # a machine without a disk: once, and then at each boot
  openssl genpkey -algorithm ed25519 -out /boot/node.key
  kubejoin rejoin --url https://join.example.com:9443 --bind-key /boot/node.key
  kubejoin rejoin --url https://join.example.com:9443 --ca-file ca.crt \
    --key /boot/node.key --node worker-7`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.run(cmd)
			if p := (*api.Problem)(nil); errors.As(err, &p) && p.Reason != "" && p.Status == http.StatusForbidden {
				err = fmt.Errorf("%s: %w (%s)", p.Reason, err, o.shown) // the detail has the next command
			}
			return o.hint(err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.url, "url", "", "https://HOST:PORT[/PATH] of the kubejoin server (default: $KUBEJOIN_URL)")
	f.StringVar(&o.caFile, "ca-file", "", "CA certificates to verify the server with (default: those of --kubeconfig)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "/etc/kubernetes/kubelet.conf", "kubeconfig of the kubelet, with its client certificate")
	f.StringVar(&o.certDir, "cert-dir", "/var/lib/kubelet/pki", "folder for the new certificate, if --kubeconfig does not name a file for it")
	f.StringVar(&o.key, "key", "", "file with the private key that was bound to the node, instead of --kubeconfig")
	nodeVar(f, &o.node, "node", "with --key: name of the node")
	f.StringVar(&o.bindKey, "bind-key", "", "bind the public key of this private key file to the node, and do nothing else")
	durationVar(f, &o.before, "before", 0, "rejoin also if the certificate expires within this time")
	durationVar(f, &o.wait, "wait", 5*time.Minute, "how long to retry while the server does not respond")
	f.StringVar(&o.restart, "restart", "", "systemd unit to restart after the certificate was written, for example kubelet")
	heading(f, "Connection flags", "url", "ca-file")
	o.output.register(cmd, "text")
	return cmd
}

func (o *rejoinOptions) check() error {
	o.url = cmp.Or(o.url, os.Getenv("KUBEJOIN_URL"))
	var m mistakes
	m.when(o.url == "", "--url: none given, want https://HOST:PORT of the kubejoin server")
	m.url("--url", o.url)
	m.when((o.key == "") != (o.node == ""), "--key, --node: give both or neither")
	m.when(o.key != "" && o.bindKey != "", "--bind-key: cannot be combined with --key, since only the certificate of the node binds a key")
	m.when(o.before < 0 || o.wait < 0, "--before %s, --wait %s: want 0s or more", o.before, o.wait)
	m.when(strings.HasPrefix(o.restart, "-"), "--restart: %q given, want a systemd unit", o.restart)
	return m.first()
}

func (o *rejoinOptions) run(cmd *cobra.Command) error {
	if err := o.check(); err != nil {
		return err
	}
	files, err := o.files()
	if err != nil {
		return err
	}
	pair, node, err := files.Certificate()
	if err != nil && o.key == "" {
		return fmt.Errorf("--kubeconfig: %s: client certificate: %w; to let the machine join again: kubejoin token create --replace-node NODE", o.kubeconfig, err)
	}
	done := rejoined{Node: cmp.Or(o.node, node)}
	if err == nil && done.Node == node && exists(o.kubeconfig) {
		done.NotAfter = &pair.Leaf.NotAfter
	}
	if o.bindKey == "" && done.NotAfter != nil && time.Now().Add(o.before).Before(*done.NotAfter) {
		done.Result = "valid"
		return o.print(cmd, done, "nothing to do: the certificate of node %s is valid until %s", node, done.NotAfter.UTC().Format(time.RFC3339))
	}
	o.shown = "client certificate in " + files.Current
	o.credential = o.shown + " is not accepted: another CA issued it, a proxy ends TLS, or kubejoin runs without --rejoin-window"
	if o.key != "" {
		key, err := readKey(o.key)
		if err == nil {
			pair, err = kubelet.SelfSigned(o.node, key)
		}
		if err != nil {
			return fmt.Errorf("--key: %w; give the private key that 'kubejoin rejoin --bind-key' has bound to the node", err)
		}
		o.shown = "key in --key " + o.key
		o.credential = o.shown + " is not bound to node " + o.node + ": bind it with 'kubejoin rejoin --bind-key' while the certificate of the node is valid"
	}
	o.credential += "; to let the machine join again: kubejoin token create --replace-node " + done.Node
	server, stop, err := o.dial(files.CA, pair)
	if err != nil {
		return err
	}
	defer stop()
	if o.bindKey != "" {
		return o.bind(cmd, server, done)
	}
	return o.rejoin(cmd, server, files, done)
}

// files returns the kubelet files that the kubeconfig names. If a machine with a bound key has no kubeconfig, it has lost
// its disk.
func (o *rejoinOptions) files() (k kubelet.Files, err error) {
	if o.key != "" && !exists(o.kubeconfig) {
		k.Current, err = kubelet.Current(o.certDir)
	} else if k, err = kubelet.Read(o.kubeconfig, o.certDir); err != nil {
		err = fmt.Errorf("--kubeconfig: %w; give the kubeconfig of the kubelet, or without one a bound key with --key and --node", err)
	}
	return k, err
}

// dial returns a client that presents a certificate, even if the server does not list its CA in the TLS handshake.
func (o *rejoinOptions) dial(ca []byte, pair tls.Certificate) (*client.Client, func(), error) {
	o.server, o.trusted = o.url, cmp.Or(o.caFile, o.kubeconfig)
	var roots *x509.CertPool
	var err error
	if o.caFile != "" {
		ca, err = os.ReadFile(o.caFile)
	}
	if err == nil {
		roots, err = pemfile.Pool(ca)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("CA in %s: %w; give the CA of the kubejoin server with --ca-file", o.trusted, err)
	}
	server, stop := newClient(o.url, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	})
	server.HTTP.Timeout = rejoinTimeout // limits one request: after that, rejoin retries
	return server, stop, nil
}

func (o *rejoinOptions) bind(cmd *cobra.Command, server *client.Client, done rejoined) error {
	key, err := readKey(o.bindKey)
	if err != nil {
		return fmt.Errorf("--bind-key: %w; make one: openssl genpkey -algorithm ed25519 -out %s", err, safetext.Quote(o.bindKey))
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("--bind-key: %s: %w", o.bindKey, err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: pemfile.PublicKey, Bytes: der})
	bound, err := retry(cmd, o.wait, func() (api.BoundKey, error) { return server.BindKey(cmd.Context(), api.BindKey{Key: api.Text(public)}) })
	if err != nil {
		return err
	}
	done.Result, done.BoundKey = "bound", bound.Key
	return o.print(cmd, done, "bound key %s to node %s: rejoin with --key %s --node %s", bound.Key, done.Node, o.bindKey, done.Node)
}

func (o *rejoinOptions) rejoin(cmd *cobra.Command, server *client.Client, files kubelet.Files, done rejoined) error {
	file, err := files.Prepare() // before the request, because a request uses up the rejoin budget
	if err != nil {
		return err
	}
	defer file.Drop()
	id, err := credentials.Node(done.Node)
	if err != nil {
		return err
	}
	kubeconfig, err := files.Kubeconfig()
	if err != nil {
		return err
	}
	if !exists(o.kubeconfig) {
		info, err := retry(cmd, o.wait, func() ([]byte, error) { return server.ClusterInfo(cmd.Context()) })
		if err != nil {
			return err
		}
		cluster, err := clusterOf(info)
		if err != nil {
			return err
		}
		if kubeconfig, err = clientcmd.Write(oneCluster("kubernetes", cluster, id.User, &clientcmdapi.AuthInfo{ClientCertificate: files.Current, ClientKey: files.Current})); err != nil {
			return err
		}
	}
	key, err := files.Key()
	if err != nil {
		return err
	}
	made, err := id.IssueFor(cmd.Context(), key, func(ctx context.Context, r credentials.SigningRequest) ([]byte, error) {
		return retry(cmd, o.wait, func() ([]byte, error) { return server.Certificate(ctx, api.SignCertificate{CSR: r.CSR}) })
	}, 0)
	if err != nil {
		return err
	}
	if err := file.Write(append(made.Chain, made.Key...)); err != nil {
		return err
	}
	if kubeconfig != nil {
		if err := errors.Join(os.MkdirAll(filepath.Dir(o.kubeconfig), 0o755), atomicfile.Write(o.kubeconfig, kubeconfig)); err != nil {
			return fmt.Errorf("--kubeconfig: %w", err)
		}
	}
	next := "a kubelet that runs uses it after it has restarted"
	if o.restart != "" {
		if out, err := exec.CommandContext(cmd.Context(), "systemctl", "restart", o.restart).CombinedOutput(); err != nil {
			return fmt.Errorf("--restart: systemctl restart %s: %w: %s", o.restart, err, strings.TrimSpace(string(out)))
		}
		next = o.restart + " was restarted"
	}
	done.Result, done.NotAfter, done.File = "issued", &made.Certificate.NotAfter, files.Current
	return o.print(cmd, done, "node %s has a certificate until %s in %s; %s", done.Node, done.NotAfter.UTC().Format(time.RFC3339), done.File, next)
}

// rejoinTimeout limits one request.
const rejoinTimeout = time.Minute

// retry calls try until it succeeds, the server refuses, the server is not trusted, or the time most is over.
func retry[T any](cmd *cobra.Command, most time.Duration, try func() (T, error)) (T, error) {
	deadline, told := time.Now().Add(most), ""
	defer waiting{"for the kubejoin server", most + rejoinTimeout}.begin(cmd)()
	for {
		result, err := try()
		var p *api.Problem
		var untrusted *tls.CertificateVerificationError
		delay := minRejoinRetry
		if errors.As(err, &p) {
			delay = max(delay, p.RetryAfter)
		}
		switch {
		case err == nil, errors.As(err, &untrusted), p != nil && p.Status != http.StatusTooManyRequests && p.Status < http.StatusInternalServerError:
			return result, err
		case time.Now().Add(delay).After(deadline):
			return result, fmt.Errorf("no decision in time (%w): %w", exitRejoinTimeout, err)
		}
		if text := err.Error(); text != told && cmd.Context().Err() == nil {
			progress(cmd, "waiting: %s", text)
			told = text
		}
		if err := loop.Sleep(cmd.Context(), delay); err != nil {
			return result, err
		}
	}
}

func (o *rejoinOptions) print(cmd *cobra.Command, done rejoined, format string, args ...any) error {
	return o.text(cmd.OutOrStdout(), done, fmt.Sprintf(format, args...)+"\n")
}
