package main

import (
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make bootstrap tokens",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "generate",
		Short: "Print a new bootstrap token and store it nowhere",
		Long: `Print a new random bootstrap token of the form abcdef.0123456789abcdef. Nothing
is stored and no cluster is asked: the token works once something has made it
known, such as a manifest or kubeadm's InitConfiguration.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), tokens.Generate().Reveal())
			return err
		},
	})
	return cmd
}
