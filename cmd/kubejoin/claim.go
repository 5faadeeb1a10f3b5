package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func claimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "claim",
		Short: "See which node names are taken, and make them free again",
		Long: `See which node names are taken, and make them free again. A node that joins with a
limited token claims its name: no other token takes it. A claim ends by itself when
its Node is deleted, or when the Node never came and its token is gone.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(claimListCommand(), claimReleaseCommand())
	return cmd
}

func claimListCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
	}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the node names that are taken with limited tokens",
		Long:    `List the node names that are taken with limited tokens.` + remoteHelp,
		Example: `  kubejoin claim list`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if err := r.mayListClaims(ctx); err != nil {
					return err
				}
				list, err := r.ListClaims(ctx)
				if err != nil {
					return err
				}
				return o.claims(cmd, list)
			})
		},
	}
	cmd.Flags().SortFlags = false
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	return cmd
}

// claims prints a list of claims.
func (o *output) claims(cmd *cobra.Command, list api.ClaimList) error {
	w := cmd.OutOrStdout()
	if done, err := o.object(w, list); done || len(list.Items) == 0 {
		return err
	}
	if o.format == "name" {
		for _, c := range list.Items {
			if _, err := fmt.Fprintln(w, c.Node); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"NODE", "TOKEN", "AGE", "KEYS", "REGISTERED"}}
	now := time.Now()
	for _, c := range list.Items {
		registered := "no"
		if c.NodeUID != "" {
			registered = "yes"
		}
		rows = append(rows, []string{c.Node, c.Token, age(c.Created, now), strconv.Itoa(c.Keys), registered})
	}
	return table(w, rows)
}

func claimReleaseCommand() *cobra.Command {
	var o struct {
		remoteOptions
		dryRun bool
	}
	cmd := &cobra.Command{
		Use:   "release NODE…",
		Short: "Make node names free again, and their places on tokens",
		Long: `Make node names free again: another machine may take them, and the tokens that they
were taken with have a place more. A certificate that a machine of that name has got
stays valid; release the name of a machine that is not to join. It is renewed for no
longer than its token said, and without a cluster not at all, until the name is taken
anew.

Each is reported. The exit code is 1 if one could not be released.` + remoteHelp,
		Example: `  kubejoin claim release worker-7`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			if len(args) == 0 {
				errs = append(errs, errors.New("NODE: none given, want one node name or several"))
			}
			for _, name := range args {
				if err := tokens.CheckNodeName(name); err != nil {
					errs = append(errs, fmt.Errorf("NODE: %w", err))
				}
			}
			if len(errs) > 0 {
				return usageOf(cmd, &usageError{err: errors.Join(errs...)})
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if err := r.mayListClaims(ctx); err != nil {
					return err
				}
				return releaseClaims(ctx, cmd, r, args, o.dryRun)
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "say what would be released")
	o.register(cmd)
	return cmd
}

func releaseClaims(ctx context.Context, cmd *cobra.Command, r *remote, nodes []string, dryRun bool) error {
	var errs []error
	for _, node := range nodes {
		c, err := r.ReleaseClaim(ctx, node, api.ReleaseClaim{DryRun: dryRun})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		warn(cmd, c.Warnings...)
		done := "released"
		if dryRun {
			done = "would be released (dry run)"
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "claim of token %s on node name %q %s\n", c.Token, node, done); err != nil {
			return err
		}
	}
	return each(cmd, len(nodes), errs)
}
