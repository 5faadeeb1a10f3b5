package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/atomicfile"
	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/internal/owned"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// reviewPath is where kubejoin answers kube-apiserver, in both versions.
const reviewPath = "/apis/authentication.k8s.io/v1/tokenreviews"

// successCache is how long kube-apiserver remembers any token that it accepted, beside what the
// webhook's cache does. It has no flag.
const successCache = 10 * time.Second

// webhookOptions are webhook-config's flags.
type webhookOptions struct {
	url, dataDir, caFile  string
	tokenFile             string
	clientCert, clientKey string
	cacheTTL              time.Duration
	output                string
}

func webhookConfigCommand() *cobra.Command {
	var o webhookOptions
	cmd := &cobra.Command{
		Use:   "webhook-config",
		Short: "Print how kube-apiserver asks kubejoin about tokens in a file store",
		Long: `Print the kubeconfig for kube-apiserver's --authentication-token-webhook-config-file,
by which it asks kubejoin about bootstrap tokens that are in kubejoin's file store
and not in Secrets, and on standard error the flags that kube-apiserver wants.

The file has the CA that kubejoin's certificate comes from, kubejoin's URL and a
credential that is for this alone: the bearer token that 'kubejoin serve' made in
--data-dir, in the file or as a path to it, or paths to a client certificate that
kubejoin serve knows by --webhook-client-ca-file and --webhook-client-name.

kube-apiserver remembers answers. A token that was deleted, has expired or was used
up is accepted for --cache-ttl and 10s more, at most: 10s is what kube-apiserver
remembers each token for that it accepted. A token that somebody tried before it was
made is refused for --cache-ttl. While kubejoin does not answer, tokens that are not
remembered are refused.

kube-apiserver needs no --enable-bootstrap-token-auth with it, and kubejoin no rights
to Secrets. kube-controller-manager's bootstrap-signer-controller knows Secrets alone
and would take the signatures of all other tokens out of cluster-info: it has to be
switched off.`,
		Example: `  # beside 'kubejoin serve --kubeconfig … --token-store file', on the same machine
  kubejoin webhook-config -o /etc/kubernetes/kubejoin-webhook.conf

  # with the client certificate that kube-apiserver has already
  kubejoin webhook-config --url https://join.example.com:9443 \
    --client-certificate /etc/kubernetes/pki/apiserver-kubelet-client.crt \
    --client-key /etc/kubernetes/pki/apiserver-kubelet-client.key -o kubejoin-webhook.conf`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
			}
			return webhookConfig(o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.url, "url", "https://127.0.0.1:9443", "https://HOST:PORT at which kube-apiserver reaches kubejoin")
	f.StringVar(&o.dataDir, "data-dir", "kubejoin-data", "folder of 'kubejoin serve', for the CA and the bearer token")
	f.StringVar(&o.caFile, "ca-file", "", "CA of the certificate that kubejoin serves (default: ca.crt in --data-dir)")
	f.StringVar(&o.tokenFile, "token-file", "", "name the bearer token's file, by its path where kube-apiserver runs, in place of the token: it may be replaced then")
	f.StringVar(&o.clientCert, "client-certificate", "", "name a client certificate, by its path where kube-apiserver runs, in place of the token")
	f.StringVar(&o.clientKey, "client-key", "", "key of --client-certificate")
	f.DurationVar(&o.cacheTTL, "cache-ttl", 10*time.Second, "how long kube-apiserver is to remember an answer; its own default is 2m")
	f.StringVarP(&o.output, "output-file", "o", "", "write to this file, which only its owner can read (default: standard output)")
	return cmd
}

func (o *webhookOptions) check() error {
	var errs []error
	if err := checkHTTPS(o.url); err != nil {
		errs = append(errs, fmt.Errorf("--url: %w", err))
	}
	if (o.clientCert == "") != (o.clientKey == "") {
		errs = append(errs, errors.New("--client-certificate: certificate and key go together, and one of them is missing"))
	}
	if o.clientCert != "" && o.tokenFile != "" {
		errs = append(errs, errors.New("--token-file: one credential is enough, and --client-certificate is given"))
	}
	for flag, path := range map[string]string{"token-file": o.tokenFile, "client-certificate": o.clientCert, "client-key": o.clientKey} {
		if path != "" && !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("--%s: %q given, want an absolute path, since kube-apiserver reads the file", flag, path))
		}
	}
	if o.cacheTTL < 0 || o.cacheTTL > time.Hour {
		errs = append(errs, fmt.Errorf("--cache-ttl: %s given, want 0 to 1h", o.cacheTTL))
	}
	return errors.Join(errs...)
}

// checkHTTPS says why a URL is not https://HOST:PORT. It does not repeat it: it may hold a
// password.
func checkHTTPS(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || clusterinfo.CheckEndpoint(u.Host) != nil {
		return errors.New("want https://HOST:PORT")
	}
	return nil
}

func webhookConfig(o webhookOptions, stdout, stderr io.Writer) error {
	dir := datadir.Dir(o.dataDir)
	if o.caFile == "" {
		o.caFile = dir.Path(datadir.Bundle)
		if err := owned.Check(o.caFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--data-dir: %w", err)
		}
	}
	bundle, err := readCAs(o.caFile)
	if err != nil {
		return fmt.Errorf("--ca-file: %w", err)
	}
	user := &clientcmdapi.AuthInfo{ClientCertificate: o.clientCert, ClientKey: o.clientKey, TokenFile: o.tokenFile}
	if o.clientCert == "" && o.tokenFile == "" {
		if user.Token, err = dir.ReadWebhookBearer(); err != nil {
			return fmt.Errorf("%w; 'kubejoin serve' makes it in its --data-dir", err)
		}
	}
	content, err := clientcmd.Write(oneCluster("kubejoin", &clientcmdapi.Cluster{Server: o.url + reviewPath, CertificateAuthorityData: bundle}, "kube-apiserver", user))
	if err != nil {
		return err
	}
	if err := emit(o.output, content, stdout); err != nil {
		return err
	}
	_, err = io.WriteString(stderr, o.advice())
	return err
}

// advice is what an operator does with the file.
func (o webhookOptions) advice() string {
	file := "FILE"
	if o.output != "" {
		file = o.output
		if abs, err := filepath.Abs(file); err == nil {
			file = abs
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `kube-apiserver wants, on each machine of the control plane:
  --authentication-token-webhook-config-file=%s
  --authentication-token-webhook-version=v1
  --authentication-token-webhook-cache-ttl=%s
and no --enable-bootstrap-token-auth. It accepts a token for %s at most after its end,
and refuses one that was tried before it was made for %s.
kube-controller-manager has to be without bootstrap-signer-controller (bootstrapsigner).
`, foreign.Quote(file), o.cacheTTL, o.cacheTTL+successCache, o.cacheTTL)
	if o.clientCert != "" {
		b.WriteString("kubejoin serve knows the certificate by --webhook-client-ca-file and --webhook-client-name.\n")
	}
	return b.String()
}

// oneCluster is a kubeconfig of one user at one cluster.
func oneCluster(name string, cluster *clientcmdapi.Cluster, userName string, user *clientcmdapi.AuthInfo) clientcmdapi.Config {
	context := userName + "@" + name
	return clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: cluster},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{userName: user},
		Contexts:       map[string]*clientcmdapi.Context{context: {Cluster: name, AuthInfo: userName}},
		CurrentContext: context,
	}
}

// readCAs reads a bundle and gives the certificates in it alone.
func readCAs(file string) ([]byte, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	cas, err := clusterinfo.ParseCAs(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var bundle bytes.Buffer
	for _, ca := range cas {
		if err := pem.Encode(&bundle, &pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw}); err != nil {
			return nil, err
		}
	}
	return bundle.Bytes(), nil
}

// emit writes what may hold a credential to a file that only its owner can read, or prints it.
func emit(file string, content []byte, stdout io.Writer) error {
	if file == "" {
		_, err := stdout.Write(content)
		return err
	}
	return atomicfile.Write(file, content)
}
