package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func claimCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "claim",
		Short: "List the node names that tokens hold, and release them",
		Long: `List the node names that tokens hold, and release them. When a node joins with a limited
token, the token claims the node name, and no other token can use it. kubejoin removes a
claim when its Node is deleted, or when its token is gone and no Node was registered. But a
machine with a key of its own keeps its name until you delete the machine: see
'kubejoin machine --help'.`,
	}, claimListCommand(), claimReleaseCommand())
}

func claimListCommand() *cobra.Command {
	var o remoteOutput
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the node names that limited tokens hold",
		Long:    `List the node names that limited tokens, or machines with keys of their own, hold.` + remoteHelp,
		Example: `  kubejoin claim list`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := r.ListClaims(ctx)
				if err != nil {
					return err
				}
				return o.claims(cmd, list)
			})
		},
	}
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	return cmd
}

// claims prints a list of claims.
func (o *output) claims(cmd *cobra.Command, claims api.ClaimList) error {
	now := time.Now()
	return list(o, cmd.OutOrStdout(), claims, claims.Items, func(c api.Claim) string { return c.Node },
		[]string{"NODE", "TOKEN", "AGE", "KEYS", "REGISTERED", "REJOINS", "REVOKED", "MACHINE"}, func(c api.Claim) []string {
			return []string{c.Node, orNone(c.Token), age(c.Created, now), strconv.Itoa(c.Keys), yesNo(c.NodeUID != ""), strconv.Itoa(len(c.Rejoins)), yesNo(c.Revoked), yesNo(c.Machine != "")}
		})
}

func claimReleaseCommand() *cobra.Command {
	var o struct {
		remoteOptions
		dryRun bool
	}
	cmd := &cobra.Command{
		Use:   "release NODE…",
		Short: "Release node names, so that other machines can use them",
		Long: `Release node names. Then another machine can take the name, and the token that held the name
can let one more machine join. This also works for a name that a token counts without a claim,
for example because the Node was deleted.

The certificates of the old machine stay valid, so release only the name of a machine that is
gone. The old machine cannot rejoin. Until another token claims the name, the old machine can
renew its certificate, for at most the lifetime that its token allowed. A standalone kubejoin
refuses such renewals.

The command refuses the name of a revoked node while the token that admitted it still works.
It prints a line for each name. The exit code is not 0 if it could not release one of them.` + remoteHelp,
		Example: `  kubejoin claim release worker-7`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var m mistakes
			m.when(len(args) == 0, "NODE: none given, want one node name or several")
			for _, name := range args {
				m.in("NODE", tokens.CheckNodeName(name))
			}
			if len(m) > 0 {
				return m.err()
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				return releaseClaims(ctx, cmd, r, args, o.dryRun)
			})
		},
		ValidArgsFunction: o.offer(many, listClaimed),
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would be released, but release nothing")
	o.register(cmd)
	return cmd
}

func releaseClaims(ctx context.Context, cmd *cobra.Command, r *remote, nodes []string, dryRun bool) error {
	return each(cmd, nodes, func(node string) (string, error) {
		c, err := r.ReleaseClaim(ctx, node, api.ReleaseClaim{DryRun: dryRun})
		if err != nil {
			return "", err
		}
		warn(cmd, c.Warnings...)
		what := "claim of token " + c.Token + " on"
		if c.Token == "" {
			what = "identity of"
		}
		return fmt.Sprintf("%s node name %q %s", what, node, did(dryRun, "released")), nil
	})
}
