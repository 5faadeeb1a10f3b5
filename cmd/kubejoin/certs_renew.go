package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/spf13/cobra"
)

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

The exit code is 0 if the command renewed everything whose CA is there. It is 3 if
the server refuses a certificate: then it renewed nothing. It is 1 for other errors.

Like 'kubeadm certs renew', it restarts nothing. It names the static pods that have not read
their new files, and 'kubejoin host apply' restarts them.`,
		Example: `  kubejoin certs renew --url https://ca.example.com:9443 --ca-file kubejoin-ca.crt \
    --bearer-file operator.token

  # only some, with CA keys in a folder of this machine
  kubejoin certs renew --name apiserver --name etcd-server --pki-dir /media/ca/pki

  # a new name of the load balancer
  kubejoin certs renew --name apiserver --add-san lb.example.com --pki-dir /media/ca/pki`,
		Args:    dirArgs,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.hint(explain(o.renew(cmd, dirOf(args))))
		},
	}
	f := cmd.Flags()
	listVar(f, &o.names, "name", nil, "certificate to renew, as 'kubejoin certs check' prints it (repeatable; default: all)")
	listVar(f, &o.addSANs, "add-san", nil, "DNS name, wildcard or IP address to add to pki/apiserver.crt (repeatable)")
	o.pki.register(f, "")
	durationVar(f, &o.wait, "wait", time.Minute, "how long to retry while the server cannot issue a certificate yet")
	o.output.register(cmd, "text")
	o.serverOnly = true
	o.remoteOptions.register(cmd)
	complete(cmd, "name", credentials.Renewable()...)
	return cmd
}

type renewOptions struct {
	remoteOptions
	output
	pki            caKeys
	names, addSANs []string
	wait           time.Duration
}

func (o *renewOptions) check(*cobra.Command, []string) error {
	var m mistakes
	m.when(len(o.addSANs) > 0 && !o.renews(apiserver), "--add-san: changes apiserver, and --name leaves it out; add --name apiserver")
	for _, name := range o.addSANs {
		m.in("--add-san", credentials.CheckName(name))
	}
	o.pki.check(&m)
	return m.err()
}

// renews reports whether the command renews at least one of these certificates.
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
