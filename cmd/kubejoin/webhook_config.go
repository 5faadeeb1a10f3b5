package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/host/trustedpath"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// reviewPath is where kubejoin accepts TokenReviews from kube-apiserver, v1 and v1beta1.
const reviewPath = "/apis/authentication.k8s.io/v1/tokenreviews"

// successCache is how long kube-apiserver caches an accepted token, in addition to its cache of webhook responses. No
// flag changes it.
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
		Short: "Print the kubeconfig for kube-apiserver to review tokens at kubejoin",
		Long: `Print the kubeconfig for kube-apiserver's --authentication-token-webhook-config-file.
With it, kube-apiserver checks bootstrap tokens that are in kubejoin's file store instead
of in Secrets. The command prints the needed kube-apiserver flags on standard error.

The kubeconfig contains kubejoin's CA and URL, and one credential:
  (no flag)             the bearer token that 'kubejoin serve' made in --data-dir
  --token-file          the path of a file with this bearer token
  --client-certificate  the path of a client certificate, which 'kubejoin serve' accepts
                        with --webhook-client-ca-file and --webhook-client-name

kube-apiserver caches responses. It accepts a deleted, expired or spent token for at most
--cache-ttl plus 10s, the time for which it caches accepted tokens. If a token was tried
before it was created, kube-apiserver refuses it for --cache-ttl. While kubejoin does not
respond, kube-apiserver refuses all tokens that are not cached.

kube-apiserver does not need --enable-bootstrap-token-auth, and kubejoin needs no access
to Secrets. Switch off bootstrap-signer-controller in kube-controller-manager: it knows
only tokens in Secrets and removes all other signatures from cluster-info.`,
		Example: `  # on the machine of 'kubejoin serve --kubeconfig … --token-store file'
  kubejoin webhook-config --output-file /etc/kubernetes/kubejoin-webhook.conf

  # with an existing client certificate of kube-apiserver
  kubejoin webhook-config --url https://join.example.com:9443 \
    --client-certificate /etc/kubernetes/pki/apiserver-kubelet-client.crt \
    --client-key /etc/kubernetes/pki/apiserver-kubelet-client.key \
    --output-file kubejoin-webhook.conf`,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return webhookConfig(o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.url, "url", "https://127.0.0.1:9443", "https://HOST:PORT of kubejoin, as kube-apiserver reaches it")
	f.StringVar(&o.dataDir, "data-dir", "kubejoin-data", "data folder of 'kubejoin serve', with the CA and the bearer token")
	f.StringVar(&o.caFile, "ca-file", "", "CA of the certificate that kubejoin serves (default: ca.crt in --data-dir)")
	f.StringVar(&o.tokenFile, "token-file", "", "path, on the kube-apiserver machine, of a file with the bearer token; use it to replace the token later")
	f.StringVar(&o.clientCert, "client-certificate", "", "path, on the kube-apiserver machine, of a client certificate to use instead of the token")
	f.StringVar(&o.clientKey, "client-key", "", "path, on the kube-apiserver machine, of the private key of --client-certificate")
	durationVar(f, &o.cacheTTL, "cache-ttl", 10*time.Second, "how long kube-apiserver may cache a response; kube-apiserver itself would take 2m")
	f.StringVar(&o.output, "output-file", "", "file to write, with mode 0600 (- or default: standard output)")
	heading(f, "Output flags", "output-file")
	return cmd
}

func (o *webhookOptions) check(*cobra.Command, []string) error {
	var m mistakes
	m.url("--url", o.url)
	m.together("client-certificate", o.clientCert, "client-key", o.clientKey)
	m.when(o.clientCert != "" && o.tokenFile != "", "--token-file: excludes --client-certificate, and both are given")
	for flag, path := range map[string]string{"token-file": o.tokenFile, "client-certificate": o.clientCert, "client-key": o.clientKey} {
		m.when(path != "" && !filepath.IsAbs(path), "--%s: %q given, want an absolute path on the kube-apiserver machine", flag, path)
	}
	m.when(o.cacheTTL < 0 || o.cacheTTL > time.Hour, "--cache-ttl: %s given, want 0 to 1h", o.cacheTTL)
	return m.err()
}

func webhookConfig(o webhookOptions, stdout, stderr io.Writer) error {
	dir := datadir.Dir(o.dataDir)
	if o.caFile == "" {
		o.caFile = dir.Path(datadir.Bundle)
		if err := trustedpath.Check(o.caFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--data-dir: %w", err)
		}
	}
	cluster, err := reviewer(o.url, reviewPath, o.caFile, pkiDir)
	if err != nil {
		return err
	}
	user := &clientcmdapi.AuthInfo{ClientCertificate: o.clientCert, ClientKey: o.clientKey, TokenFile: o.tokenFile}
	if o.clientCert == "" && o.tokenFile == "" {
		if user.Token, err = dir.ReadWebhookBearer(); err != nil {
			return fmt.Errorf("%w; 'kubejoin serve' creates it in its --data-dir", err)
		}
	}
	content, err := clientcmd.Write(oneCluster("kubejoin", cluster, "kube-apiserver", user))
	if err != nil {
		return err
	}
	if err := emit(o.output, content, stdout); err != nil {
		return err
	}
	_, err = io.WriteString(stderr, o.advice())
	return err
}

// advice tells the operator what to do with the file.
func (o webhookOptions) advice() string {
	file := "FILE"
	if o.output != "" {
		file = o.output
		if abs, err := filepath.Abs(file); err == nil {
			file = abs
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `Set these flags of kube-apiserver on each control plane machine:
  --authentication-token-webhook-config-file=%s
  --authentication-token-webhook-version=v1
  --authentication-token-webhook-cache-ttl=%s
and remove --enable-bootstrap-token-auth. kube-apiserver caches responses: it accepts a
deleted or expired token for at most %s. If a token was tried before it was created,
kube-apiserver refuses it for %s.
Switch off bootstrap-signer-controller (bootstrapsigner) in kube-controller-manager.
`, safetext.Quote(file), o.cacheTTL, o.cacheTTL+successCache, o.cacheTTL)
	if o.clientCert != "" {
		b.WriteString("Start kubejoin serve with --webhook-client-ca-file and --webhook-client-name to accept the certificate.\n")
	}
	return b.String()
}

// pkiDir is the folder of CAs that kubeadm mounts in kube-apiserver.
const pkiDir = kubeadmDir + "/pki"

// reviewer returns how kube-apiserver reaches kubejoin. A CA file below pki is referenced by path, so that kube-apiserver
// sees each change in a CA rotation. The content of other CA files is embedded: kube-apiserver may not have these files.
func reviewer(url, path, caFile, pki string) (*clientcmdapi.Cluster, error) {
	cas, err := readCAs(caFile)
	if err != nil {
		return nil, err
	}
	c := &clientcmdapi.Cluster{Server: strings.TrimSuffix(url, "/") + path}
	if name, err := filepath.Rel(pki, caFile); err == nil && filepath.IsLocal(name) {
		c.CertificateAuthority = filepath.Clean(caFile)
	} else {
		c.CertificateAuthorityData = bundle(cas)
	}
	return c, nil
}
