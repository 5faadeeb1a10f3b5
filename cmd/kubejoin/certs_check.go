package main

import (
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
)

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
			certs, err := credentials.Host{Dir: dirOf(args)}.Check(cmd.Context())
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
