package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/spf13/cobra"
)

// caPrepareOptions are the flags of ca prepare.
type caPrepareOptions struct {
	caOptions
	asked             api.PrepareCA
	certFile, keyFile string
	lifetime          time.Duration
	outputFile        string
	keyOutput         *os.File // nil: standard output
}

func caPrepareCommand() *cobra.Command {
	var o caPrepareOptions
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Make or import the new CA; nothing trusts it yet",
		Long: `Begin the rotation of a CA: make the new CA, or import the one in --new-ca-cert-file and
--new-ca-key-file. Nothing trusts it yet, and the old CA goes on signing.

The old CA certifies the new one, so that hosts believe the rotation without a pin. With a
kubeconfig, the command reads the key of the old CA in --pki-dir: run it on a control plane,
or give --no-cross-sign.

On a cluster, the command stores the new key encrypted, and writes its certificate key to
--output-file, only this once. 'kubejoin ca apply' on control planes needs it. Anyone with it
and access to Secrets in kube-system can become cluster-admin. Standalone, kubejoin keeps
the new key in --data-dir, and there is no certificate key.

Next is 'kubejoin ca trust'.` + remoteHelp,
		Example: `  kubejoin ca prepare --output-file rotation.key

  # an intermediate CA of your own; the first certificate is the one that signs
  kubejoin ca prepare --new-ca-cert-file new-ca.crt --new-ca-key-file new-ca.key \
    --output-file rotation.key`,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.readFiles(); err != nil {
				return err
			}
			if err := o.create(); err != nil {
				return err
			}
			defer o.drop()
			o.waits = caLooks
			return o.run(cmd, func(ctx context.Context, r *remote) error { return o.prepare(ctx, cmd, r) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.certFile, "new-ca-cert-file", "", "certificates of your own CA in PEM, the one that signs first (default: kubejoin makes a CA)")
	f.StringVar(&o.keyFile, "new-ca-key-file", "", "private key of the first certificate in --new-ca-cert-file (default: give it to 'kubejoin ca apply' as --ca-key-file)")
	durationVar(f, &o.lifetime, "lifetime", 0, "lifetime of a CA that kubejoin makes, for example 3650d (default: 10 years)")
	f.BoolVar(&o.asked.NoCrossSign, "no-cross-sign", false, "do not let the old CA certify the new one; hosts then need its pin")
	f.StringVar(&o.pkiDir, "pki-dir", kubeadmcerts.DefaultDir, "with a kubeconfig: folder with the certificate and key of the old CA")
	f.BoolVar(&o.asked.DryRun, "dry-run", false, "check everything, but store nothing")
	f.StringVar(&o.outputFile, "output-file", "", "new file for the certificate key, with mode 0600 (- or default: standard output)")
	heading(f, "Output flags", "output-file")
	o.register(cmd)
	return cmd
}

func (o *caPrepareOptions) check(*cobra.Command, []string) error {
	var m mistakes
	m.when(o.keyFile != "" && o.certFile == "", "--new-ca-key-file: needs --new-ca-cert-file, which is missing")
	m.when(o.given("lifetime") && o.certFile != "", "--lifetime: is for a CA that kubejoin makes, and --new-ca-cert-file gives one")
	if o.given("lifetime") {
		o.asked.Lifetime = o.lifetime.String()
	}
	return m.first()
}

// readFiles reads the CA that the operator gives in files.
func (o *caPrepareOptions) readFiles() error {
	for _, f := range []struct {
		flag, name string
		bits       fs.FileMode
		into       *string
	}{{"new-ca-cert-file", o.certFile, 0, &o.asked.NewCA}, {"new-ca-key-file", o.keyFile, pemfile.Secret, (*string)(&o.asked.NewKey)}} {
		if f.name == "" {
			continue
		}
		content, err := pemfile.ReadPrivate(f.name, f.bits)
		if err != nil {
			return fmt.Errorf("--%s: %w", f.flag, err)
		}
		if *f.into = string(content); *f.into == "" {
			return fmt.Errorf("--%s: %s is empty", f.flag, f.name)
		}
	}
	return nil
}

// create creates the output file before the request, so that no rotation begins if kubejoin cannot store its certificate
// key. It never overwrites a file, which may have the key of an earlier rotation.
func (o *caPrepareOptions) create() (err error) {
	if isStdout(o.outputFile) {
		return nil
	}
	o.keyOutput, err = os.OpenFile(o.outputFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("--output-file: %s exists: want a new file, because this one may have the key of a rotation", o.outputFile)
	case err != nil:
		return fmt.Errorf("--output-file: %w", err)
	}
	return nil
}

// keep writes the certificate key to the output file.
func (o *caPrepareOptions) keep(key api.Secret) error {
	_, err := fmt.Fprintln(o.keyOutput, key.Reveal())
	if err = cmp.Or(err, o.keyOutput.Sync(), o.keyOutput.Close()); err != nil {
		return fmt.Errorf("--output-file: %w; the certificate key is on standard output instead", err)
	}
	o.keyOutput = nil
	return nil
}

// drop removes the output file unless keep has written it.
func (o *caPrepareOptions) drop() {
	if o.keyOutput != nil {
		_ = errors.Join(o.keyOutput.Close(), os.Remove(o.outputFile)) // on failure an empty file remains
	}
}

func (o *caPrepareOptions) prepare(ctx context.Context, cmd *cobra.Command, r *remote) error {
	made, err := r.PrepareCA(ctx, o.ca, o.asked)
	if !o.asked.DryRun && r.maybeApplied(err) {
		ca := rotation.CA(o.ca)
		return fmt.Errorf("%w; if %s shows stage prepare, the certificate key is lost: run %s, and prepare again", err, ca.Command("status"), ca.Command("abort"))
	}
	if err != nil {
		return err
	}
	key, where := made.CertificateKey, "on standard output"
	if o.keyOutput != nil && key != "" {
		if err = o.keep(key); err == nil {
			made.CertificateKey, where = "", "in "+o.outputFile
		}
	}
	if printed, printErr := o.object(cmd.OutOrStdout(), made); printed {
		return errors.Join(err, printErr)
	}
	warn(cmd, made.Warnings...)
	w := cmd.ErrOrStderr()
	err = errors.Join(err, writeStep(w, made), table(w, caTable(made)))
	switch {
	case key != "":
		cmd.PrintErrf("keep the certificate key %s: it is shown only once, and 'kubejoin ca apply' on control planes needs it\n", where)
	case o.keyOutput != nil && !o.asked.DryRun:
		cmd.PrintErrf("there is no certificate key to keep in %s\n", o.outputFile)
	}
	if made.CertificateKey != "" {
		_, printErr := fmt.Fprintln(cmd.OutOrStdout(), made.CertificateKey.Reveal())
		err = errors.Join(err, printErr)
	}
	return err
}
