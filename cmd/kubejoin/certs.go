package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func certsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Check, renew and upload the certificates of control planes",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(certsCheckCommand(), certsRenewCommand(), certsUploadCommand(), certsListCommand(), certsDeleteCommand())
	return cmd
}

// certsOptions select a cluster, and format the upload in it.
type certsOptions struct {
	remoteOptions
	output
}

func (o *certsOptions) register(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	o.given = cmd.Flags().Changed
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to work on")
	heading(cmd.Flags(), "Connection flags", "kubeconfig")
}

// registerPKIDir adds --pki-dir.
func registerPKIDir(f *pflag.FlagSet, dir *string, when string) {
	f.StringVar(dir, "pki-dir", kubeadmcerts.DefaultDir, when+"folder of this control plane with the certificates and keys to upload")
}

// uploader returns an Uploader for the cluster.
func (o *certsOptions) uploader() (*kubeadmcerts.Uploader, error) {
	rules, found := o.findKubeconfig()
	if !found {
		return nil, errors.New("no kubeconfig found: want --kubeconfig FILE")
	}
	client, err := clusterClient(rules)
	return &kubeadmcerts.Uploader{Client: client, CreateRole: true}, err
}

// A certsUpload is an upload as commands print it.
type certsUpload struct {
	Secret string `json:"secret"`
	// CertificateKey is set by certs upload.
	CertificateKey api.Secret `json:"certificateKey,omitempty"`
	TokenID        string     `json:"tokenID,omitempty"`
	Created        time.Time  `json:"created,omitzero"`
	Expires        time.Time  `json:"expires,omitzero"`
	Files          []string   `json:"files,omitempty"`
	// ReplacedKeys is true if the keys of earlier uploads stopped working.
	ReplacedKeys bool `json:"replacedKeys,omitempty"`
}

// certsSecret is the name of an upload.
const certsSecret = "kube-system/" + kubeadmcerts.SecretName

// replacedKeys warns that an upload replaced another one.
const replacedKeys = "this upload replaced another one: join commands with an earlier certificate key no longer work"

func certsUploadCommand() *cobra.Command {
	var o certsOptions
	var dir string
	cmd := &cobra.Command{
		Use:   "upload",
		Short: "Upload the certificates that control planes share, and print the certificate key",
		Long: `Upload the certificates and keys that all control planes share, encrypted, and print the
certificate key for 'kubeadm join --control-plane --certificate-key'. The result is that
of 'kubeadm init phase upload-certs --upload-certs': the Secret ` + certsSecret + `,
which is deleted after 2 hours.

If kubejoin uploaded the same files before, the command prints the same key and extends
the upload to 2 hours from now. A key lasts at most 4 hours. The command replaces any other
upload, and warns that its key stops working. For a new key, run 'kubejoin certs delete'
first.

Anyone with the key and a bootstrap token can become cluster-admin. Run the command on a
control plane. 'kubejoin token create --print-join-command --control-plane' does the same
and prints a whole join command.` + clusterHelp,
		Example: `  kubejoin certs upload`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageOf(cmd, err)
			}
			u, err := o.uploader()
			if err != nil {
				return err
			}
			u.Dir = dir
			ctx, cancel := context.WithTimeout(cmd.Context(), certsTimeout)
			defer cancel()
			up, err := u.Upload(ctx)
			if err != nil {
				return err
			}
			if up.Replaced {
				warn(cmd, replacedKeys)
			}
			done, err := o.object(cmd.OutOrStdout(), certsUpload{
				Secret: certsSecret, CertificateKey: api.Secret(up.Key.Reveal()), TokenID: up.TokenID, Expires: up.Expires, ReplacedKeys: up.Replaced,
			})
			if done || err != nil {
				return err
			}
			text := up.Key.Reveal()
			if o.format == "name" {
				text = certsSecret
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	o.output.register(cmd, "text")
	registerPKIDir(cmd.Flags(), &dir, "")
	o.register(cmd)
	return cmd
}

// certsTimeout limits how long an API server may take.
const certsTimeout = 30 * time.Second

func certsListCommand() *cobra.Command {
	var o certsOptions
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "Show the upload of certificates, without its contents",
		Long:    `Show the Secret ` + certsSecret + `: when it expires, its owner token and the files in it.` + clusterHelp,
		Example: `  kubejoin certs list`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageOf(cmd, err)
			}
			u, err := o.uploader()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), certsTimeout)
			defer cancel()
			info, err := u.Get(ctx)
			var list struct {
				Items []certsUpload `json:"items"`
			}
			list.Items = []certsUpload{}
			switch {
			case err == nil:
				list.Items = append(list.Items, certsUpload{Secret: certsSecret, TokenID: info.TokenID, Created: info.Created, Expires: info.Expires, Files: info.Files})
			case !errors.Is(err, kubeadmcerts.ErrNotFound):
				return err
			}
			w := cmd.OutOrStdout()
			if done, err := o.object(w, list); done || len(list.Items) == 0 {
				return err
			}
			if o.format == "name" {
				_, err := fmt.Fprintln(w, certsSecret)
				return err
			}
			ttl, expires := "<unknown>", "<unknown>" // the owner token is gone: the Secret is about to be deleted
			if !info.Expires.IsZero() {
				ttl, expires = duration.ShortHumanDuration(time.Until(info.Expires)), info.Expires.Format(time.RFC3339)
			}
			return table(w, [][]string{
				{"SECRET", "TTL", "EXPIRES", "TOKEN", "FILES"},
				{certsSecret, ttl, expires, orNone(info.TokenID), strings.Join(info.Files, ",")},
			})
		},
	}
	o.output.register(cmd, "text")
	o.register(cmd)
	return cmd
}

func certsDeleteCommand() *cobra.Command {
	var o certsOptions
	cmd := &cobra.Command{
		Use:   "delete",
		Short: "Delete the upload of certificates",
		Long: `Delete the Secret ` + certsSecret + ` and its owner token before they expire. The
certificate key stops working. Control planes that have joined are not affected.` + clusterHelp,
		Example: `  kubejoin certs delete`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := o.uploader()
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), certsTimeout)
			defer cancel()
			if _, err := u.Delete(ctx); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", certsSecret)
			return err
		},
	}
	o.register(cmd)
	return cmd
}

// kubeadmDir is the folder of kubeadm.
const kubeadmDir = "/etc/kubernetes"

func certsCheckCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "check [DIR]",
		Short: "Print when the certificates of a control plane end, and what is wrong with them",
		Long: `Print when the certificates of a control plane end, and what is wrong with them, like
'kubeadm certs check-expiration'. It also works on a host without CA keys and before a
cluster exists, and compares each certificate with its key and its CA. In kubeconfigs it
makes the checks of 'kubejoin kubeconfig check --offline'. DIR is ` + kubeadmDir + ` by
default. The command changes nothing.

The exit code is 0 if all certificates can be used, and 1 if not. It is 2 if there are no
certificates.`,
		Example: `  kubejoin certs check

  kubejoin certs check -o jsonpath='{.certificates[?(@.problem)].name}'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := kubeadmDirOf(args)
			if err := errors.Join(err, o.check()); err != nil {
				return usageOf(cmd, err)
			}
			list, err := credentials.Host{Dir: dir}.Check(cmd.Context())
			if err != nil {
				cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
				return exitUnchecked
			}
			done, err := o.object(cmd.OutOrStdout(), struct {
				Certificates []credentials.CertificateStatus `json:"certificates"`
			}{list})
			if !done {
				err = table(cmd.OutOrStdout(), statusRows(list, o.format == "name", time.Now()))
			}
			if err != nil {
				return err
			}
			for _, status := range list {
				if status.Problem != "" {
					return exitFindings
				}
			}
			return nil
		},
	}
	cmd.Flags().SortFlags = false
	o.register(cmd, "text")
	return cmd
}

func statusRows(list []credentials.CertificateStatus, names bool, now time.Time) [][]string {
	rows := [][]string{{"CERTIFICATE", "EXPIRES", "RESIDUAL TIME", "CERTIFICATE AUTHORITY", "CA KEY ON HOST", "PROBLEM", "NOTE"}}
	if names {
		rows = nil
	}
	for _, status := range list {
		if names {
			rows = append(rows, []string{status.Name})
			continue
		}
		row := []string{status.Name, "<none>", "<none>", orNone(status.CA), "", orNone(status.Problem), orNone(status.Note)}
		if status.NotAfter != nil {
			row[1], row[2] = status.NotAfter.UTC().Format("Jan 02, 2006 15:04 MST"), duration.ShortHumanDuration(status.NotAfter.Sub(now))
		}
		switch {
		case status.KeyOnHost:
			row[4] = "yes"
		case status.CA == "":
			row[4] = "no"
		}
		rows = append(rows, row)
	}
	return rows
}

func certsRenewCommand() *cobra.Command {
	var o renewOptions
	cmd := &cobra.Command{
		Use:   "renew [DIR]",
		Short: "Renew the certificates of a control plane that has no CA keys",
		Long: `Renew the certificates of a control plane that has no CA keys. The same signers as for
'kubejoin sign --kubeadm-dir' issue certificates for the same keys, users, DNS names and
addresses, and with the subjects that kubeadm uses today. DIR is ` + kubeadmDir + ` by
default. Without --name, the command renews all certificates but kubelet.conf, which the
kubelet renews, and those whose CA is not there. It prints which ones it left out, and
everything else that changes.

The certificates get new certSANs, serverCertSANs and peerCertSANs in kubeadm-config, if
admin.conf in DIR can read it. With etcd.external there, the command leaves out the
certificates of etcd.

It replaces nothing unless all other certificates were issued, replaces each file
atomically, and copies the old files to DIR/` + pki.Backups + `/renewal. A kubejoin server signs, or
this machine with the CA keys in --pki-dir.

The exit code is 0 if the command renewed everything whose CA is there. It is 1 if it
renewed nothing.

Like 'kubeadm certs renew', it restarts nothing. It names the static pods that have not read
their new files, and 'kubejoin host apply' restarts them.`,
		Example: `  kubejoin certs renew --url https://ca.example.com:9443 --ca-file kubejoin-ca.crt \
    --bearer-file operator.token

  # only some, with CA keys in a folder of this machine
  kubejoin certs renew --name apiserver --name etcd-server --pki-dir /media/ca/pki

  # a new name of the load balancer
  kubejoin certs renew --name apiserver --add-san lb.example.com --pki-dir /media/ca/pki`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir, err := kubeadmDirOf(args)
			if err := errors.Join(err, o.output.check(), o.checkNames(), o.pki.check()); err != nil {
				return usageOf(cmd, &usageError{err: err})
			}
			return usageOf(cmd, o.hint(explain(o.renew(cmd, dir))))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	listVar(f, &o.names, "name", nil, "certificate to renew, as 'kubejoin certs check' prints it (repeatable; default: all)")
	listVar(f, &o.addSANs, "add-san", nil, "DNS name, wildcard or IP address to add to pki/apiserver.crt (repeatable)")
	o.pki.register(f, "")
	durationVar(f, &o.wait, "wait", time.Minute, "how long to retry while the server cannot issue a certificate yet")
	o.output.register(cmd, "text")
	o.serverOnly = true
	o.remoteOptions.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("name", cobra.FixedCompletions(credentials.Renewable(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

type renewOptions struct {
	remoteOptions
	output
	pki            caKeys
	names, addSANs []string
	wait           time.Duration
}

// apiserver is the certificate that --add-san changes.
const apiserver = "apiserver"

func (o *renewOptions) checkNames() error {
	if len(o.addSANs) > 0 && !o.renews(apiserver) {
		return errors.New("--add-san: changes apiserver, and --name leaves it out; add --name apiserver")
	}
	for _, name := range o.addSANs {
		if err := credentials.CheckName(name); err != nil {
			return fmt.Errorf("--add-san: %w", err)
		}
	}
	return nil
}

// renews reports whether the command renews one of the certificates.
func (o *renewOptions) renews(names ...string) bool {
	return len(o.names) == 0 || slices.ContainsFunc(names, func(name string) bool { return slices.Contains(o.names, name) })
}

func (o *renewOptions) renew(cmd *cobra.Command, dir string) error {
	host := pki.Host{Dir: dir, NoRestart: true}
	done, err := host.Renew(cmd.Context(), pki.Renewal{Now: true, Names: o.names, Signer: func(context.Context) (pki.Signing, error) {
		s, err := o.signing(cmd, dir, o.pki, o.wait, o.names)
		if len(o.addSANs) > 0 {
			s.Add = maps.Clone(s.Add)
			s.Add[apiserver] = slices.Concat(s.Add[apiserver], o.addSANs)
		}
		return s, err
	}})
	for _, note := range done.SetAside {
		warn(cmd, "left out "+note.Name+": "+note.Text)
	}
	for _, note := range done.Changes {
		cmd.PrintErrln("kubejoin:", sanitize(note.Name+": "+note.Text))
	}
	for _, name := range done.Names {
		cmd.PrintErrln("kubejoin: renewed", name)
	}
	if done.Backup != "" {
		cmd.PrintErrln("kubejoin: the old files are in", done.Backup)
	}
	for _, line := range done.Unfit {
		warn(cmd, line)
	}
	if err != nil {
		return err
	}
	if len(o.addSANs) > 0 && !slices.Contains(done.Names, apiserver) {
		return errors.New("--add-san: apiserver was not renewed")
	}
	if o.format == "name" {
		_, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(done.Names, "\n"))
		return err
	}
	_, err = o.object(cmd.OutOrStdout(), done)
	return err
}

// signing returns who signs certificates of kubeadm in a folder, and the names that kubeadm-config adds. given are the certificates
// that the caller named; none is all.
func (o *remoteOptions) signing(cmd *cobra.Command, dir string, keys caKeys, wait time.Duration, given []string) (pki.Signing, error) {
	host, sign, stop, err := o.kubeadmSigner(cmd, dir, keys, wait)
	if err != nil {
		return pki.Signing{}, err
	}
	s := pki.Signing{Sign: sign, Stop: stop, Add: map[string][]string{}}
	if len(given) == 0 || slices.ContainsFunc(append(credentials.OfEtcd(), apiserver), func(name string) bool { return slices.Contains(given, name) }) {
		if s.Add, err = namesOfKubeadm(cmd.Context(), &host, given); err != nil {
			warn(cmd, "could not read kubeadm-config with admin.conf ("+err.Error()+"); certificates get no new names from it, "+
				"want 'kubejoin certs renew --add-san' for apiserver; with external etcd, select the other certificates with --name")
		}
	}
	s.Missing = host.NoCA
	return s, nil
}

// namesOfKubeadm returns the names to add to certificates that kubeadm-config has. With an external etcd, the host has no CA for its
// certificates, except for those that are given.
func namesOfKubeadm(ctx context.Context, host *credentials.Host, given []string) (map[string][]string, error) {
	stored, err := readKubeadmConfig(ctx, *host)
	add := map[string][]string{apiserver: stored.APIServer.CertSANs}
	if local := stored.Etcd.Local; local != nil {
		add["etcd-server"], add["etcd-peer"] = local.ServerCertSANs, local.PeerCertSANs
	}
	if stored.Etcd.External == nil {
		return add, err
	}
	if host.NoCA == nil {
		host.NoCA = map[string]string{}
	}
	for _, name := range credentials.OfEtcd() {
		if !slices.Contains(given, name) {
			host.NoCA[name] = "kubeadm-config has etcd.external"
		}
	}
	return add, err
}

// readKubeadmConfig reads kubeadm's ClusterConfiguration with admin.conf of a control plane.
func readKubeadmConfig(ctx context.Context, host credentials.Host) (kubeadmcerts.Configuration, error) {
	config, err := host.AdminConfig(nil)
	if err != nil {
		return kubeadmcerts.Configuration{}, err
	}
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return kubeadmcerts.Configuration{}, err
	}
	const timeout = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return kubeadmcerts.ReadConfiguration(ctx, client)
}

// caKeys are CAs of kubeadm for commands that can sign on this machine.
type caKeys struct {
	dir            string // empty: a server signs
	passphraseFile string // empty: the keys are not encrypted
}

func (k *caKeys) register(f *pflag.FlagSet, when string) {
	f.StringVar(&k.dir, "pki-dir", "", when+"folder with the CA certificates and keys of kubeadm, to sign on this machine without a server")
	f.StringVar(&k.passphraseFile, "pki-passphrase-file", "", when+"file with the passphrase of all CA keys in --pki-dir, in one line (default: they are not encrypted)")
}

func (k *caKeys) check() error {
	if k.passphraseFile != "" && k.dir == "" {
		return errors.New("--pki-passphrase-file: needs --pki-dir, the folder with the keys that it decrypts")
	}
	return nil
}

// kubeadmDirOf returns the folder of kubeadm that the arguments name.
func kubeadmDirOf(args []string) (string, error) {
	switch {
	case len(args) == 0:
		return kubeadmDir, nil
	case len(args) > 1 || args[0] == "":
		return "", &usageError{err: fmt.Errorf("DIR: %d given, want one, or none for %s", len(args), kubeadmDir)}
	case slices.Contains(credentials.Renewable(), args[0]) && !exists(args[0]):
		return "", &usageError{err: fmt.Errorf("DIR: %q given, which is a certificate; want a folder, and --name %[1]s to renew only this certificate", args[0])}
	}
	return args[0], nil
}
