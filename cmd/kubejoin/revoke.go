package main

import (
	"cmp"
	"context"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func revokeCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
		asked api.Revoke
	}
	cmd := &cobra.Command{
		Use:   "revoke [NODE]",
		Short: "Lock out a node, a certificate, or all nodes of a token",
		Long: `Lock out a node, one certificate, or all nodes of a token. NODE revokes every certificate
of a node, from any issuer, except those that kubejoin issues afterwards. So the machine
can join again with a token. The command names the token that admitted it, if that still
works, or up to five tokens that may be it: delete it, because a thief has it, too. To revoke
a node that has come back, run the command again.

Revoked certificates cannot renew and cannot use kubejoin. kube-apiserver refuses them
only if you set that up: see 'kubejoin authorization-config --help' and
` + docsURL + `revocation.md` + remoteHelp,
		Example: `  kubejoin revoke worker-7 --reason "stolen from the rack"
  kubejoin revoke --token qwertz
  kubejoin revoke list
  kubejoin revoke undo worker-7`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := revokeArguments(&o.asked, args); err != nil {
				return err
			}
			o.waits.what = "until every replica knows the revocation"
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := r.Revoke(ctx, o.asked)
				if err != nil {
					return err
				}
				warn(cmd, list.Warnings...)
				return o.revoked(cmd.OutOrStdout(), list)
			})
		},
		ValidArgsFunction: o.offer(1, listNodes),
	}
	f := cmd.Flags()
	f.StringVar(&o.asked.Serial, "serial", "", "revoke one certificate that kubejoin has issued, by its serial number")
	f.StringVar(&o.asked.Fingerprint, "fingerprint", "", "revoke one certificate by its SHA-256, as 'openssl x509 -noout -fingerprint -sha256' prints it")
	parsedVar(f, &o.asked.TokenID, "token", "", "end the token with this ID, and revoke the nodes that joined with it", tokenID)
	f.StringVar(&o.asked.Reason, "reason", "", "why, at most 256 bytes; locked-out machines see it")
	f.BoolVar(&o.asked.DryRun, "dry-run", false, "print what would be revoked, but revoke nothing")
	o.offerFlag(cmd, "token", listTokenIDs)
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	cmd.AddCommand(revokeListCommand(), revokeUndoCommand())
	return cmd
}

// revokeArguments sets the field of the request to which the arguments belong.
func revokeArguments(asked *api.Revoke, args []string) error {
	if len(args) > 1 {
		return usagef("NODE: %d given, want one node name", len(args))
	}
	if len(args) == 1 {
		if err := tokens.CheckNodeName(args[0]); err != nil {
			return usagef("NODE: %w", err)
		}
		asked.Node = args[0]
	}
	asked.Serial = strings.TrimPrefix(asked.Serial, "serial=") // openssl prints this prefix
	given := slices.DeleteFunc([]string{asked.Node, asked.Serial, asked.Fingerprint, asked.TokenID}, func(s string) bool { return s == "" })
	if len(given) != 1 {
		return usagef("%d of NODE, --serial, --fingerprint and --token given, want one", len(given))
	}
	return nil
}

func revokeListCommand() *cobra.Command {
	var o remoteOutput
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List revoked nodes and certificates",
		Long:    `List revoked nodes and certificates, without those that have expired.` + remoteHelp,
		Example: `  kubejoin revoke list`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := r.ListRevocations(ctx)
				if err != nil {
					return err
				}
				return o.revocations(cmd.OutOrStdout(), list)
			})
		},
	}
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	return cmd
}

func revokeUndoCommand() *cobra.Command {
	var o struct {
		remoteOptions
		dryRun bool
	}
	cmd := &cobra.Command{
		Use:   "undo NODE|sha256:HEX…",
		Short: "Remove revocations, so that the certificates are valid again",
		Long: `Remove revocations, so that the certificates are valid again. Give node names, and
fingerprints as 'kubejoin revoke list' prints them. To let a machine come back with a new
certificate, you need not undo its revocation: create a token for it.` + remoteHelp,
		Example: `  kubejoin revoke undo worker-7`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			var m mistakes
			m.when(len(args) == 0, "NODE: none given, want node names or fingerprints")
			for _, arg := range args {
				_, err := revocation.ParseKey(arg)
				m.in("NODE", err)
			}
			if len(m) > 0 {
				return m.err()
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				return each(cmd, args, func(arg string) (string, error) {
					undone, err := r.UndoRevocation(ctx, arg, api.UndoRevocation{DryRun: o.dryRun})
					if err != nil {
						return "", err
					}
					return "revocation of " + revokedName(undone) + " " + did(o.dryRun, "removed"), nil
				})
			})
		},
		ValidArgsFunction: o.offer(many, listRevoked),
	}
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would be removed, but remove nothing")
	o.register(cmd)
	return cmd
}

// revokedName returns the node name or the fingerprint of a revocation.
func revokedName(r api.Revocation) string { return cmp.Or(r.Node, r.Fingerprint) }

// revoked prints the new revocations.
func (o *output) revoked(w io.Writer, revoked api.RevocationList) error {
	return list(o, w, revoked, revoked.Items, revokedName, nil, func(r api.Revocation) []string {
		what := "node "
		if r.Node == "" {
			what = "certificate "
		}
		return []string{what + revokedName(r) + " " + did(r.DryRun, "revoked")}
	})
}

// revocations prints a list of revocations.
func (o *output) revocations(w io.Writer, revoked api.RevocationList) error {
	now := time.Now()
	return list(o, w, revoked, revoked.Items, revokedName,
		[]string{"REVOKED", "AGE", "ENDS", "BY", "ALLOWED SINCE", "REASON"}, func(r api.Revocation) []string {
			return []string{revokedName(r), age(r.Since, now), stamp(r.Until, "<never>"), orNone(r.By), strconv.Itoa(r.Allowed), orNone(cmp.Or(r.Problem, r.Reason))}
		})
}
