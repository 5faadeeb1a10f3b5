package main

import "github.com/spf13/cobra"

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
