package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/logging"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/internal/signerd"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/spf13/cobra"
)

func signerCommand() *cobra.Command {
	var o struct {
		signerd.Options
		logFormat string
		verbosity int
	}
	cmd := &cobra.Command{
		Use:   "signer",
		Short: "Hold the CA key apart from 'kubejoin serve', and sign what a policy allows",
		Long: `Hold the key of the cluster CA, and sign what a policy allows. 'kubejoin serve
--cluster-signing-key-url' then has no key: a thief of that process gets no certificate
that the policy does not allow.

Over HTTPS, requesters present a client certificate of --client-ca-file, and the policy
lists its common name. Over a Unix socket, the policy lists the user ID. Use a CA for
--client-ca-file that signs nothing else.

The process records each certificate in --issuance-record before the certificate leaves,
and signs nothing while it cannot write. It re-reads all files when they change.

The program kubejoin-pkcs11 is this command for a key in a hardware security module:
` + docsURL + `signer.md#keep-the-key-on-a-pkcs11-token`,
		Example: `  # on the host that keeps the key
  kubejoin signer default-policy > policy.yaml
  kubejoin signer check-policy policy.yaml
  kubejoin signer --listen :9444 --policy policy.yaml --issuance-record record.jsonl \
    --cluster-signing-cert-file ca.crt --cluster-signing-key-file ca.key \
    --tls-cert-file signer.crt --tls-private-key-file signer.key --client-ca-file clients.crt

  # on the same host as 'kubejoin serve', as another user
  kubejoin signer --listen unix:///run/kubejoin-signer/sock --policy policy.yaml \
    --issuance-record record.jsonl \
    --cluster-signing-cert-file ca.crt --cluster-signing-key-file ca.key`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Check(); err != nil {
				return &usageError{err: err}
			}
			if o.verbosity < 0 || o.verbosity > logging.MaxVerbosity {
				return usagef("--verbosity: %d given, want 0 to %d", o.verbosity, logging.MaxVerbosity)
			}
			log, err := logging.New(cmd.ErrOrStderr(), o.logFormat, o.verbosity)
			if err != nil {
				return err
			}
			return signerd.Run(cmd.Context(), o.Options, log)
		},
	}
	f := cmd.Flags()
	for _, flag := range o.Flags() {
		f.StringVar(flag.Value, flag.Name, "", flag.Help)
	}
	choiceVar(f, &o.logFormat, "log-format", "text", "log format: %s", "text", "json")
	f.IntVarP(&o.verbosity, "verbosity", "v", 0, "log level: 0 for operators, 1 for debugging")
	_ = cmd.MarkFlagFilename("policy", "yaml", "yml")
	cmd.AddCommand(checkPolicyCommand(), defaultPolicyCommand())
	return cmd
}

func defaultPolicyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "default-policy",
		Short:   "Print a policy that allows what nodes get",
		Example: "  kubejoin signer default-policy > policy.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := io.WriteString(cmd.OutOrStdout(), config.DefaultPolicy)
			return err
		},
	}
}

func checkPolicyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check-policy FILE",
		Short: "Check a policy and print what each requester may have signed",
		Long: `Check a policy and print what each requester may have signed. The command prints all errors
with file, line and field, and warns about ranges and names that could be too wide. The exit
code is 0 if the file is valid, 1 if not.`,
		Example: "  kubejoin signer check-policy policy.yaml",
		Args:    oneArg("FILE", "one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := config.LoadPolicy(args[0], clusterCA)
			if err != nil {
				return err
			}
			var b strings.Builder
			for _, q := range p.Requesters {
				fmt.Fprintf(&b, "%s: %g a second, %d at once\n", sanitize(q.Name), q.QPS, q.Burst)
				for _, name := range slices.Sorted(maps.Keys(q.Signers)) {
					fmt.Fprintf(&b, "  %s, up to %s\n", name, safetext.Duration(q.Signers[name].Profile().Max.Round(time.Second)))
				}
			}
			warn(cmd, p.Warnings()...)
			_, err = io.WriteString(cmd.OutOrStdout(), b.String())
			return err
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
	}
}
