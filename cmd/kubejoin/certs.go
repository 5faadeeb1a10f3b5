package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/duration"
)

func certsCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "certs",
		Short: "Check, renew and upload the certificates of control planes",
	}, certsCheckCommand(), certsRenewCommand(), certsUploadCommand(), certsListCommand(), certsDeleteCommand())
}

// certsOptions select a cluster, and the output format of commands about its upload.
type certsOptions struct {
	remoteOptions
	output
}

func (o *certsOptions) register(cmd *cobra.Command) {
	o.given = cmd.Flags().Changed
	o.registerCluster(cmd.Flags())
	heading(cmd.Flags(), "Connection flags", "kubeconfig", "context")
}

// registerPKIDir adds --pki-dir.
func registerPKIDir(f *pflag.FlagSet, dir *string, when string) {
	f.StringVar(dir, "pki-dir", kubeadmcerts.DefaultDir, when+"folder of this control plane with the certificates and keys to upload")
}

// run calls do with an Uploader for the cluster.
func (o *certsOptions) run(cmd *cobra.Command, do func(context.Context, *kubeadmcerts.Uploader) error) error {
	rules, found := o.findKubeconfig()
	if !found {
		return errNoKubeconfig
	}
	client, err := clusterClient(rules, o.context)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), certsTimeout)
	defer cancel()
	defer waiting{"for the API server of " + cmp.Or(kubeconfigFiles(rules), "this pod"), certsTimeout}.begin(cmd)()
	return do(ctx, &kubeadmcerts.Uploader{Client: client, CreateRole: true})
}

// A certsUpload is an upload in the form that commands print.
type certsUpload struct {
	Secret string `json:"secret"`
	// CertificateKey is set only by 'kubejoin certs upload'.
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
upload, and warns that its key stops working. If 'kubejoin certs list' shows an upload that
nobody needs any more, 'kubejoin certs delete' makes the next key a new one.

Anyone with the key and a bootstrap token can become cluster-admin. Run the command on a
control plane. 'kubejoin token create --print-join-command --control-plane' does the same
and prints a whole join command.` + clusterHelp,
		Example: `  kubejoin certs upload`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, u *kubeadmcerts.Uploader) error {
				u.Dir = dir
				up, err := u.Upload(ctx)
				if err != nil {
					return err
				}
				if up.Replaced {
					warn(cmd, replacedKeys)
				}
				text := up.Key.Reveal()
				if o.format == "name" {
					text = certsSecret
				}
				return o.text(cmd.OutOrStdout(), certsUpload{
					Secret: certsSecret, CertificateKey: api.Secret(up.Key.Reveal()), TokenID: up.TokenID, Expires: up.Expires, ReplacedKeys: up.Replaced,
				}, text+"\n")
			})
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, u *kubeadmcerts.Uploader) error {
				info, err := u.Get(ctx)
				var uploads struct {
					Items []certsUpload `json:"items"`
				}
				uploads.Items = []certsUpload{}
				switch {
				case err == nil:
					uploads.Items = append(uploads.Items, certsUpload{Secret: certsSecret, TokenID: info.TokenID, Created: info.Created, Expires: info.Expires, Files: info.Files})
				case !errors.Is(err, kubeadmcerts.ErrNotFound):
					return err
				}
				return list(&o.output, cmd.OutOrStdout(), uploads, uploads.Items, func(u certsUpload) string { return u.Secret },
					[]string{"SECRET", "TTL", "EXPIRES", "TOKEN", "FILES"}, func(u certsUpload) []string {
						ttl := "<unknown>" // the owner token is gone: the Secret is about to be deleted
						if !u.Expires.IsZero() {
							ttl = duration.ShortHumanDuration(time.Until(u.Expires))
						}
						return []string{u.Secret, ttl, stamp(u.Expires, "<unknown>"), orNone(u.TokenID), strings.Join(u.Files, ",")}
					})
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, u *kubeadmcerts.Uploader) error {
				if _, err := u.Delete(ctx); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", certsSecret)
				return err
			})
		},
	}
	o.register(cmd)
	return cmd
}

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
		Args: dirArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			certs, err := credentials.KubeadmFiles{Dir: dirOf(args)}.Check(cmd.Context())
			if err != nil {
				cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
				return exitUnchecked
			}
			err = list(&o, cmd.OutOrStdout(), struct {
				Certificates []credentials.CertificateStatus `json:"certificates"`
			}{certs}, certs, func(c credentials.CertificateStatus) string { return c.Name },
				[]string{"CERTIFICATE", "EXPIRES", "RESIDUAL TIME", "CERTIFICATE AUTHORITY", "CA KEY ON HOST", "PROBLEM", "NOTE"}, statusRow)
			if err == nil && slices.ContainsFunc(certs, func(c credentials.CertificateStatus) bool { return c.Problem != "" }) {
				err = exitFindings
			}
			return err
		},
	}
	o.register(cmd, "text")
	return cmd
}

func statusRow(status credentials.CertificateStatus) []string {
	row := []string{status.Name, "<none>", "<none>", orNone(status.CA), "", orNone(status.Problem), orNone(status.Note)}
	if status.NotAfter != nil {
		row[1], row[2] = status.NotAfter.UTC().Format("Jan 02, 2006 15:04 MST"), duration.ShortHumanDuration(time.Until(*status.NotAfter))
	}
	if status.KeyOnHost || status.CA == "" {
		row[4] = yesNo(status.KeyOnHost)
	}
	return row
}
