package main

import (
	"fmt"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make bootstrap tokens, and look after them",
		Long: `Make bootstrap tokens, which let machines join a cluster with 'kubeadm join', and
look after them. The commands and their flags are those of 'kubeadm token'; beyond
them a token can say what it is good for, such as one machine of a certain name.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenGetCommand(), tokenRenewCommand(), tokenDeleteCommand(), tokenGenerateCommand())
	return cmd
}

func tokenGenerateCommand() *cobra.Command {
	return &cobra.Command{
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
	}
}
