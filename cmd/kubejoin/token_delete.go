package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/mint"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
)

func tokenDeleteCommand() *cobra.Command {
	var o struct {
		remoteOptions
		allExpired, dryRun bool
	}
	cmd := &cobra.Command{
		Use:   "delete ID|TOKEN… | --all-expired",
		Short: "Delete bootstrap tokens",
		Long: `Delete bootstrap tokens, given by ID or as whole tokens, and print a line for each. The
exit code is not 0 if one of them cannot be deleted. Nodes that have joined stay joined.

--all-expired deletes the expired tokens. A running kubejoin or
kube-controller-manager also deletes them by itself.` + remoteHelp,
		Example: `  kubejoin token delete abcdef
  kubejoin token delete --all-expired --dry-run`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var ids []string
			var err error
			switch {
			case !o.allExpired:
				ids, err = tokenIDs(args)
			case len(args) > 0:
				err = usagef("--all-expired: excludes IDs, and both are given")
			}
			if err != nil {
				return err
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				if o.allExpired {
					if ids, err = expiredTokens(ctx, r); err != nil {
						return err
					}
				}
				return deleteTokens(ctx, cmd, r, ids, api.DeleteToken{OnlyExpired: o.allExpired, DryRun: o.dryRun})
			})
		},
		ValidArgsFunction: o.offer(many, listTokenIDs),
	}
	cmd.Flags().BoolVar(&o.allExpired, "all-expired", false, "delete all tokens that have expired")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would be deleted, but delete nothing")
	o.register(cmd)
	return cmd
}

func expiredTokens(ctx context.Context, r *remote) ([]string, error) {
	list, err := r.ListTokens(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	now := time.Now()
	for _, t := range list.Items {
		if !t.Expires.IsZero() && !now.Before(t.Expires) {
			ids = append(ids, t.ID)
		}
	}
	return ids, nil
}

func deleteTokens(ctx context.Context, cmd *cobra.Command, r *remote, ids []string, asked api.DeleteToken) error {
	return each(cmd, ids, func(id string) (string, error) {
		_, err := r.DeleteToken(ctx, id, asked)
		if reason := reasonOf(err); asked.OnlyExpired && (reason == mint.NoToken || reason == api.ProblemNotExpired) {
			return "", nil // deleted or renewed since it was listed
		}
		return fmt.Sprintf("bootstrap token %q %s", id, did(asked.DryRun, "deleted")), err
	})
}
