package main

import (
	"context"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func tokenRenewCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
		ttl             time.Duration
		expires         string
		shorten, dryRun bool
	}
	cmd := &cobra.Command{
		Use:   "renew ID",
		Short: "Change when a bootstrap token expires",
		Long: `Change when a bootstrap token expires: --ttl from now, or at --expires. An earlier end
than the current one needs --shorten. A spent token cannot be renewed, since no further
machine could join with it.` + remoteHelp,
		Example: `  kubejoin token renew abcdef --ttl 48h`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := tokenIDs(args)
			switch {
			case err != nil:
			case len(ids) > 1:
				err = usagef("ID: %d given, want one", len(ids))
			case o.given("ttl") && o.expires != "":
				err = usagef("--expires: excludes --ttl, and both are given")
			default:
				var m mistakes
				m.in("--ttl", checkTTL(o.ttl))
				err = m.err()
			}
			if err != nil {
				return err
			}
			asked := api.RenewToken{Expires: o.expires, Shorten: o.shorten, DryRun: o.dryRun}
			if o.expires == "" {
				asked.TTL = o.ttl.String()
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				t, err := r.RenewToken(ctx, ids[0], asked)
				if err != nil {
					return err
				}
				warn(cmd, t.Warnings...)
				t.Warnings = nil
				if o.format != "text" {
					return o.tokens(cmd.OutOrStdout(), t, []api.Token{t})
				}
				end, dry := "never expires", ""
				if !t.Expires.IsZero() {
					end = "expires at " + t.Expires.UTC().Format(time.RFC3339)
				}
				if t.DryRun {
					dry = " (dry run)"
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "bootstrap token %q renewed%s: %s\n", t.ID, dry, end)
				return err
			})
		},
		ValidArgsFunction: o.offer(1, listTokenIDs),
	}
	f := cmd.Flags()
	durationVar(f, &o.ttl, "ttl", tokens.DefaultTTL, "new lifetime from now, for example 90s, 30m, 3h or 1d (0: never expires)")
	f.StringVar(&o.expires, "expires", "", "time when the token expires, instead of --ttl, for example 2030-01-31T12:00:00Z")
	f.BoolVar(&o.shorten, "shorten", false, "allow an earlier end than the current one")
	f.BoolVar(&o.dryRun, "dry-run", false, "check the request, but change nothing")
	o.output.register(cmd, "text", "wide")
	o.remoteOptions.register(cmd)
	return cmd
}
