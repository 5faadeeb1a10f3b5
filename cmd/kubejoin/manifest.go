package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/manifest"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ownUser is the user of kubejoin in deploy/manifests.
const ownUser = "system:serviceaccount:kubejoin-system:kubejoin"

// imageName is the image of kubejoin without a tag.
const imageName = "ghcr.io/kubejoin/kubejoin"

func manifestCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "manifest",
		Short: "Print manifests that run kubejoin",
	}, staticPodCommand())
}

type staticPodOptions struct {
	image, kubeconfig, pkiDir, format string
	mounts                            []string
}

func staticPodCommand() *cobra.Command {
	var o staticPodOptions
	cmd := &cobra.Command{
		Use:   "static-pod [flags] [-- SERVE-FLAGS]",
		Short: "Print a static pod for /etc/kubernetes/manifests",
		Long: `Print a static pod that runs 'kubejoin serve' on a control plane. The kubelet starts it
without a scheduler, a pod network or a Deployment.

A static pod has no service account. It uses a kubeconfig whose user is that service account:
the user has the rights that the Helm chart or these manifests grant, and no others:
` + deployURL + `manifests

Create the kubeconfig and the pod on each control plane:

  (umask 077; kubeadm kubeconfig user --client-name ` + ownUser + ` \
    > /etc/kubernetes/kubejoin.conf)
  kubejoin manifest static-pod > kubejoin.yaml && cp kubejoin.yaml /etc/kubernetes/manifests/

The certificate in the kubeconfig is valid for a year. Run both commands again before it
expires. The manifest then names the new expiry, so that the kubelet restarts the pod.

Flags after -- are those of 'kubejoin serve'. The files that they name must be in --pki-dir or
in a --mount. The command contacts no cluster.`,
		Example: `  # on a control plane
  kubejoin manifest static-pod > kubejoin.yaml && cp kubejoin.yaml /etc/kubernetes/manifests/

  # with flags of kubejoin serve, and files for them
  kubejoin manifest static-pod --mount /etc/kubejoin -- --advertise join.example.com:9443 \
    --signer-config /etc/kubejoin/signers.yaml

  # without Helm: namespace, rights and policy, once for the cluster
  cat deploy/manifests/{namespace,rbac,admission,roles}.yaml | kubectl apply -f -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return usagef("flags of 'kubejoin serve' come after --, and other arguments are not allowed")
			}
			pod, err := o.pod(args)
			if err != nil {
				return err
			}
			notice := ""
			pod.Expires, notice, err = kubeconfigExpiry(o.kubeconfig)
			if err != nil {
				return fmt.Errorf("--kubeconfig: %w", err)
			}
			if notice != "" {
				warn(cmd, notice)
			}
			_, err = (&output{format: o.format}).object(cmd.OutOrStdout(), pod.Pod())
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.image, "image", imageName+":"+buildVersion().Version, "image of kubejoin, with a tag or a digest")
	f.StringVar(&o.kubeconfig, "kubeconfig", "/etc/kubernetes/kubejoin.conf", "kubeconfig of kubejoin on the machine")
	f.StringVar(&o.pkiDir, "pki-dir", "/etc/kubernetes/pki", "folder on the machine with ca.crt and ca.key of the cluster, which the pod can read")
	listVar(f, &o.mounts, "mount", nil, "another folder on the machine that the pod can read at the same path (repeatable)")
	choiceVar(f, &o.format, "output", "yaml", "output format: %s", "yaml", "json")
	heading(f, "Output flags", "output")
	return cmd
}

// pod checks the flags of this command, and the flags of 'kubejoin serve' in more like serve itself.
func (o *staticPodOptions) pod(more []string) (manifest.StaticPod, error) {
	var m mistakes
	folders := append([]string{o.pkiDir}, o.mounts...)
	for flag, paths := range map[string][]string{"kubeconfig": {o.kubeconfig}, "pki-dir": {o.pkiDir}, "mount": o.mounts} {
		for _, path := range paths {
			m.when(path != filepath.Clean(path) || !filepath.IsAbs(path), "--%s: %q given, want an absolute path without . and ..", flag, path)
		}
	}
	args := []string{
		"serve", "--kubeconfig=" + o.kubeconfig, "--listen=:9443", "--shutdown-delay-duration=5s",
		"--cluster-signing-cert-file=" + filepath.Join(o.pkiDir, "ca.crt"),
	}
	if !slices.ContainsFunc(more, func(arg string) bool { return strings.HasPrefix(arg, "--cluster-signing-key-url") }) {
		args = append(args, "--cluster-signing-key-file="+filepath.Join(o.pkiDir, "ca.key"))
	}
	args = append(args, more...)
	var s serveOptions
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	flags.Usage = func() {}
	s.register(flags)
	s.given = flags.Changed
	if err := flags.Parse(args[1:]); err != nil {
		return manifest.StaticPod{}, &usageError{command: "kubejoin serve", err: flagError(flags, err)}
	}
	m.when(flags.NArg() > 0, "%d arguments after --, which are no flags", flags.NArg())
	_, err := s.options()
	m.when(err != nil, "%w", err)
	m.when(s.cluster.Kubeconfig != o.kubeconfig, "--kubeconfig: give it before --")
	m.when(s.tokenStore == storeFile || s.tokenStore == storeEtcd, "--token-store: %s needs a folder that kubejoin can write; run kubejoin with systemd instead", s.tokenStore)
	m.when(s.IssuanceRecord != "" && s.IssuanceRecord != "-", "--issuance-record: %s cannot be written, because the pod's files are read only; want - for the log of the pod", s.IssuanceRecord)
	socket, local := strings.CutPrefix(s.CA.Remote.URL, "unix://")
	if !local {
		socket = ""
	}
	for flag, file := range map[string]string{
		"cluster-signing-key-url":   socket,
		"cluster-signing-cert-file": s.CA.CertFile, "cluster-signing-key-file": s.CA.KeyFile,
		"cluster-signing-key-passphrase-file": s.CA.PassphraseFile, "signer-config": s.SignerConfig, "token-limits": s.cluster.TokenLimits,
		"tls-cert-file": s.TLS.CertFile, "tls-private-key-file": s.TLS.KeyFile,
		"token-auth-file": s.Callers.TokenFile, "client-ca-file": s.Callers.ClientCAFile,
		"webhook-client-ca-file": s.Webhook.ClientCAFile, "cluster-signing-key-ca-file": s.CA.Remote.CAFile,
		"cluster-signing-key-client-cert-file": s.CA.Remote.CertFile, "cluster-signing-key-client-key-file": s.CA.Remote.KeyFile,
	} {
		mounted := slices.ContainsFunc(folders, func(folder string) bool { return strings.HasPrefix(filepath.Clean(file), folder+"/") })
		m.when(file != "" && !mounted, "--%s: %s is in no folder that is mounted; add --mount %s", flag, file, safetext.Quote(filepath.Dir(file)))
	}
	host, port, _ := net.SplitHostPort(s.Listen) // options has checked the address
	number, err := strconv.ParseInt(port, 10, 32)
	m.when(err != nil || number < 1 || number > 65535, "--listen: port %q given, want 1 to 65535", port)
	slices.SortFunc(m, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return manifest.StaticPod{
		Image: o.image, Args: args, Kubeconfig: o.kubeconfig, Folders: folders, Host: host, Port: int32(number), Version: buildVersion().Version,
	}, m.err()
}

// kubeconfigExpiry returns when the client certificate in a kubeconfig expires. It also returns a notice if the pod would
// not work with the kubeconfig or would have too many rights. Both are empty for a kubeconfig without a certificate.
func kubeconfigExpiry(file string) (expires, notice string, err error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Sprintf("there is no %s on this machine yet; create it: (umask 077; kubeadm kubeconfig user --client-name %s > %s)", file, ownUser, safetext.Quote(file)), nil
	}
	if err != nil {
		return "", "", err
	}
	config, err := credentials.ParseKubeconfig(content)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", file, err)
	}
	data := config.User.ClientCertificateData
	if len(data) == 0 {
		return "", "", nil
	}
	certs, err := pemfile.Certificates(data)
	if err != nil {
		return "", "", fmt.Errorf("%s: client-certificate-data: %w", file, err)
	}
	cert := certs[0]
	if cert.Subject.CommonName != ownUser || len(cert.Subject.Organization) > 0 {
		notice = fmt.Sprintf("%s belongs to %s, want %s without groups, which has the least rights", file, cert.Subject, ownUser)
	}
	return cert.NotAfter.UTC().Format(time.RFC3339), notice, nil
}
