package main

import (
	"context"

	"github.com/spf13/cobra"
)

func tokenListCommand() *cobra.Command {
	var o tokenListOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List bootstrap tokens, without their secrets",
		Long: `List bootstrap tokens, with the columns of kubeadm and the status: ready (each of its usages
works), expires soon (in less than ten minutes), spent, expired, unsigned, unknown (cluster-info
cannot be read) or invalid. JSON has active for the first two. -o wide adds some of the nodes
that have joined, and the limits. With a kubeconfig, the command does not know the rules of
'kubejoin serve --token-limits'.

--show-secrets shows whole tokens. It needs a kubeconfig: a kubejoin server returns the
secret of a token only when it creates the token.` + remoteHelp,
		Example: `  kubejoin token list -o wide

  # the IDs of tokens whose node limit is used up
  kubejoin token list -o jsonpath='{.items[?(@.status=="spent")].id}'`,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := r.ListTokens(ctx)
				if err != nil {
					return err
				}
				warn(cmd, list.Warnings...)
				list.Warnings = nil
				if err := o.reveal(ctx, r, list.Items); err != nil {
					return err
				}
				return o.tokens(cmd.OutOrStdout(), list, list.Items)
			})
		},
	}
	o.register(cmd)
	return cmd
}
