package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/kubejoin/kubejoin/internal/kube/accessreview"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// kubeadmDir is the folder of kubeadm.
const kubeadmDir = "/etc/kubernetes"

// dirArgs accepts the folder of kubeadm, or nothing for kubeadmDir.
func dirArgs(_ *cobra.Command, args []string) error {
	var m mistakes
	dir := dirOf(args)
	m.when(len(args) > 1, "DIR: %d given, want one, or none for %s", len(args), kubeadmDir)
	m.when(dir == "", "DIR: is empty; leave it out for %s", kubeadmDir)
	m.when(slices.Contains(credentials.Renewable(), dir) && !exists(dir), "DIR: %q given, which is a certificate; want a folder, and --name %[1]s to renew only this certificate", dir)
	return m.first()
}

// dirOf returns the folder of kubeadm that the arguments name.
func dirOf(args []string) string { return append(args, kubeadmDir)[0] }

// caKeys are CAs of kubeadm for commands that can sign on this machine.
type caKeys struct {
	dir            string // empty: a server signs
	passphraseFile string // empty: the keys are not encrypted
}

func (k *caKeys) register(f *pflag.FlagSet, when string) {
	f.StringVar(&k.dir, "pki-dir", "", when+"folder with the CA certificates and keys of kubeadm, to sign on this machine without a server")
	f.StringVar(&k.passphraseFile, "pki-passphrase-file", "", when+"file with the passphrase of all CA keys in --pki-dir, in one line (default: they are not encrypted)")
}

func (k *caKeys) check(m *mistakes) {
	m.when(k.passphraseFile != "" && k.dir == "", "--pki-passphrase-file: needs --pki-dir, the folder with the keys that it decrypts")
}

// signing returns a function that signs kubeadm's certificates in dir, and the names in kubeadm-config. given are the
// certificates that the caller named; nil means all.
func (o *remoteOptions) signing(cmd *cobra.Command, dir string, keys caKeys, wait time.Duration, given []string) (pki.Signing, error) {
	files, sign, stop, err := o.kubeadmSigner(cmd, dir, keys, wait)
	if err != nil {
		return pki.Signing{}, err
	}
	s := pki.Signing{Sign: sign, Stop: stop, Add: map[string][]string{}}
	if len(given) == 0 || slices.ContainsFunc(append(credentials.OfEtcd(), apiserver), func(name string) bool { return slices.Contains(given, name) }) {
		done := waiting{"for the API server of " + filepath.Join(dir, "admin.conf"), kubeadmConfigTimeout}.begin(cmd)
		s.Add, err = namesOfKubeadm(cmd.Context(), &files, given)
		if done(); err != nil {
			warn(cmd, "could not read kubeadm-config with admin.conf ("+err.Error()+"); certificates get no new names from it, "+
				"want 'kubejoin certs renew --add-san' for apiserver; with external etcd, select the other certificates with --name")
		}
	}
	s.Missing = files.NoCA
	return s, nil
}

// kubeadmSigner returns the control plane in dir, and a function that signs its certificates with a server or the CA keys.
func (o *remoteOptions) kubeadmSigner(cmd *cobra.Command, dir string, keys caKeys, wait time.Duration) (files credentials.KubeadmFiles, sign credentials.SignFunc, stop func(), err error) {
	files = credentials.KubeadmFiles{Dir: dir}
	if keys.dir == "" {
		r, stop, err := o.connect(cmd.Context())
		if err != nil {
			return files, nil, nil, err
		}
		sign := func(ctx context.Context, asked credentials.SigningRequest) ([]byte, error) {
			defer waiting{"for a certificate", wait + serverWait}.begin(cmd)()
			return overHTTPS(cmd, r, wait)(ctx, asked)
		}
		return files, warnOfKubeletClient(cmd, files, orNoCA(sign)), stop, nil
	}
	for _, flag := range []string{"kubeconfig", "context", "url", "curlrc", "ca-file", "bearer-file", "client-certificate"} {
		if o.given(flag) {
			return files, nil, nil, usagef("--%s: excludes --pki-dir, which signs on this machine", flag)
		}
	}
	signers, missing, err := credentials.SignersOf(keys.dir, keys.passphraseFile)
	if err != nil {
		return files, nil, nil, fmt.Errorf("--pki-dir: %w", withoutFile(err))
	}
	files.NoCA = missing
	return files, warnOfKubeletClient(cmd, files, credentials.SignLocally(signers)), func() {}, nil
}

// withoutFile returns the messages of errors in a signer configuration, each once. It leaves out file and line: this
// configuration is part of kubejoin, so the user has no file to edit.
func withoutFile(err error) error {
	var mistakes config.Errors
	if !errors.As(err, &mistakes) {
		return err
	}
	var messages []string
	for _, m := range mistakes {
		if !slices.Contains(messages, m.Message) {
			messages = append(messages, m.Message)
		}
	}
	return errors.New(strings.Join(messages, "; "))
}

// orNoCA adds credentials.ErrNoCA to the error of a server that has no signer for a certificate.
func orNoCA(sign credentials.SignFunc) credentials.SignFunc {
	return func(ctx context.Context, r credentials.SigningRequest) ([]byte, error) {
		chain, err := sign(ctx, r)
		if p := (*api.Problem)(nil); errors.As(err, &p) && slices.ContainsFunc(p.Errors, func(e api.FieldProblem) bool { return e.Field == "signer" }) {
			err = fmt.Errorf("%w: %w", credentials.ErrNoCA, err)
		}
		return chain, err
	}
}

// warnOfKubeletClient warns before kubejoin writes a certificate of kube-apiserver for kubelets that RBAC gives no rights.
// It asks the cluster with admin.conf, because the kubejoin that signs is often outside the cluster.
func warnOfKubeletClient(cmd *cobra.Command, files credentials.KubeadmFiles, sign credentials.SignFunc) credentials.SignFunc {
	var admin []byte // the new certificate of admin.conf, which is signed first and written last
	return func(ctx context.Context, r credentials.SigningRequest) ([]byte, error) {
		chain, err := sign(ctx, r)
		switch {
		case err != nil:
		case r.Signer == credentials.AdminSigner:
			admin = chain
		case r.Signer == credentials.KubeletClientSigner:
			if text := kubeletClientWarning(ctx, files, admin); text != "" {
				warn(cmd, text)
			}
		}
		return chain, err
	}
}

func kubeletClientWarning(ctx context.Context, files credentials.KubeadmFiles, admin []byte) string {
	client, err := adminClient(files, admin)
	if err != nil {
		return accessreview.KubeletClientUnchecked(err)
	}
	return accessreview.KubeletClient(ctx, client)
}

// adminClient returns a client with admin.conf of a control plane, or with its new certificate in chain.
func adminClient(files credentials.KubeadmFiles, chain []byte) (kubernetes.Interface, error) {
	config, err := files.AdminConfig(chain)
	if err != nil {
		return nil, err
	}
	config.WarningHandler = rest.NoWarnings{}
	return kubernetes.NewForConfig(config)
}

// apiserver is the certificate that --add-san changes.
const apiserver = "apiserver"

// namesOfKubeadm returns the names in kubeadm-config to add to certificates. With an external etcd, it sets NoCA for the
// certificates of etcd that are not in given: this host has no CA for them.
func namesOfKubeadm(ctx context.Context, files *credentials.KubeadmFiles, given []string) (map[string][]string, error) {
	stored, err := readKubeadmConfig(ctx, *files)
	add := map[string][]string{apiserver: stored.APIServer.CertSANs}
	if local := stored.Etcd.Local; local != nil {
		add["etcd-server"], add["etcd-peer"] = local.ServerCertSANs, local.PeerCertSANs
	}
	if stored.Etcd.External == nil {
		return add, err
	}
	if files.NoCA == nil {
		files.NoCA = map[string]string{}
	}
	for _, name := range credentials.OfEtcd() {
		if !slices.Contains(given, name) {
			files.NoCA[name] = "kubeadm-config has etcd.external"
		}
	}
	return add, err
}

// kubeadmConfigTimeout limits readKubeadmConfig. If the read fails, certificates lack the names in kubeadm-config.
const kubeadmConfigTimeout = 5 * time.Second

// readKubeadmConfig reads kubeadm's ClusterConfiguration with admin.conf of a control plane.
func readKubeadmConfig(ctx context.Context, files credentials.KubeadmFiles) (kubeadmcerts.Configuration, error) {
	client, err := adminClient(files, nil)
	if err != nil {
		return kubeadmcerts.Configuration{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, kubeadmConfigTimeout)
	defer cancel()
	return kubeadmcerts.ReadConfiguration(ctx, client)
}
