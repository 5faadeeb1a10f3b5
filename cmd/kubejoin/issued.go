package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	certificates "k8s.io/api/certificates/v1"
)

// issuedHelp ends the help of each issued command.
const issuedHelp = `

The record needs a kubejoin server with a file store: standalone, or --token-store=file.
Otherwise read the file of 'kubejoin serve --issuance-record FILE', which has the same
fields, one JSON object a line:
  jq 'select(.tokenID == "qwertz")' FILE` + serverHelp

// readRecord ends errors without a kubejoin server.
const readRecord = "; or read the file of 'kubejoin serve --issuance-record FILE' with jq"

func issuedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issued",
		Short: "List issued certificates and refused requests",
		Long: `List issued certificates, and requests that were refused or failed, from the issuance
record. kubejoin keeps certificates until 90 days after they expire. It keeps refusals
and failures for 30 days, at most the last 100,000.` + issuedHelp,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(issuedListCommand(), issuedShowCommand())
	return cmd
}

// issuedListOptions are the flags of issued list.
type issuedListOptions struct {
	remoteOptions
	output
	asked api.ListIssued
	token string
	limit int
}

func issuedListCommand() *cobra.Command {
	var o issuedListOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List issued certificates, and refused and failed requests",
		Long: `List issued certificates, and refused and failed requests, the newest first. With
--ends-within, list valid certificates, the first to expire first. If several filters are
given, an entry must match all.` + issuedHelp,
		Example: `  # which certificates did token qwertz get?
  kubejoin issued list --token qwertz --outcome issued

  # which certificates expire within 30 days?
  kubejoin issued list --ends-within 30d

  # why is worker-7 refused?
  kubejoin issued list --node worker-7 --outcome refused --since 24h`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.checkAll(); err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error { return o.list(ctx, cmd, r) })
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.token, "token", "", "ID of the bootstrap token that requested the certificate")
	f.StringVar(&o.asked.Node, "node", "", "name of the node that the certificate is for, or that requested it")
	f.StringVar(&o.asked.Requester, "requester", "", "user name of the requester")
	f.StringVar(&o.asked.Signer, "signer", "", "signer name, for example "+certificates.KubeletServingSignerName)
	f.StringVar(&o.asked.Outcome, "outcome", "", "outcome: issued, refused or failed")
	f.StringVar(&o.asked.CA, "ca", "", "pin of the CA that signed the certificate: sha256:HEX")
	f.StringVar(&o.asked.NotCA, "not-ca", "", "certificates that another CA signed than the one with this pin, or that an earlier kubejoin recorded without a CA")
	f.StringVar(&o.asked.EndsWithin, "ends-within", "", "valid certificates that expire within this duration, for example 720h or 30d")
	f.StringVar(&o.asked.Since, "since", "", "entries recorded since then: a duration ago, for example 24h or 7d, or a time, for example 2026-11-20T00:00:00Z")
	f.IntVar(&o.limit, "limit", issuance.DefaultLimit, "maximum number of entries (0: all)")
	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails only for an unknown flag
	}
	complete("outcome", issuance.Issued, issuance.Refused, issuance.Failed)
	complete("signer", certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName)
	heading(f, "Filter flags")
	o.offerFlag(cmd, "token", listTokenIDs)
	o.offerFlag(cmd, "node", listNodes)
	o.output.register(cmd, "text")
	o.serverOnly, o.instead = true, readRecord
	o.remoteOptions.register(cmd)
	return cmd
}

func (o *issuedListOptions) checkAll() error {
	if o.token != "" {
		id, err := tokenID(o.token)
		if err != nil {
			return &usageError{err: fmt.Errorf("--token: %w", err)}
		}
		o.asked.TokenID = id
	}
	if o.limit < 0 {
		return &usageError{err: fmt.Errorf("--limit: %d given, want 0 or more", o.limit)}
	}
	return o.check()
}

func (o *issuedListOptions) list(ctx context.Context, cmd *cobra.Command, r *remote) error {
	list := api.IssuanceEntryList{APIVersion: api.GroupVersion, Kind: api.KindIssuanceEntryList, Items: []api.IssuanceEntry{}}
	for {
		asked := o.asked
		asked.Limit, asked.Continue = issuance.MaxLimit, list.Continue
		if o.limit > 0 {
			asked.Limit = min(asked.Limit, o.limit-len(list.Items))
		}
		page, err := r.server.ListIssued(ctx, asked)
		if err != nil {
			return err
		}
		list.Items, list.Continue = append(list.Items, page.Items...), page.Continue
		if list.Continue == "" {
			break
		}
		if len(list.Items) == o.limit {
			warn(cmd, fmt.Sprintf("only the first %d entries are listed; --limit 0 lists all", o.limit))
			list.Continue = ""
			break
		}
	}
	return o.entries(cmd.OutOrStdout(), list)
}

// entries prints a list of entries.
func (o *output) entries(w io.Writer, list api.IssuanceEntryList) error {
	if done, err := o.object(w, list); done || len(list.Items) == 0 {
		return err
	}
	if o.format == "name" {
		for _, e := range list.Items {
			if e.Serial == "" {
				continue
			}
			if _, err := fmt.Fprintln(w, e.Serial); err != nil {
				return err
			}
		}
		return nil
	}
	rows := [][]string{{"TIME", "OUTCOME", "SIGNER", "REQUESTER", "SUBJECT", "TOKEN", "ENDS", "SERIAL/REASON"}}
	for _, e := range list.Items {
		ends, last := "", e.Serial
		if !e.NotAfter.IsZero() {
			ends = e.NotAfter.UTC().Format(time.RFC3339)
		}
		if last == "" {
			last = e.Reason
		}
		if last == "" {
			last = e.Message // set if issuing failed
		}
		rows = append(rows, []string{
			e.Time.UTC().Format(time.RFC3339), e.Outcome, e.Signer, orNone(e.Requester), orNone(e.Subject), orNone(e.TokenID), orNone(ends), orNone(last),
		})
	}
	return table(w, rows)
}

func issuedShowCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
	}
	cmd := &cobra.Command{
		Use:   "show SERIAL",
		Short: "Show the record of one certificate",
		Long: `Show the record of one certificate. SERIAL is its serial number, from 'kubejoin issued
list' or 'openssl x509 -noout -serial'. -o pem prints the certificate.` + issuedHelp,
		Example: `  kubejoin issued show 3f2a9c…

  kubejoin issued show 3f2a9c… -o pem | openssl x509 -noout -text`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			serial, err := serialNumber(args)
			if err == nil {
				err = o.check()
			}
			if err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				e, err := r.server.GetIssued(ctx, serial)
				if err != nil {
					return err
				}
				return o.entry(cmd.OutOrStdout(), e)
			})
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().SortFlags = false
	o.output.register(cmd, "text", "pem")
	o.serverOnly, o.instead = true, readRecord
	o.remoteOptions.register(cmd)
	return cmd
}

func serialNumber(args []string) (string, error) {
	if len(args) != 1 {
		return "", &usageError{err: fmt.Errorf("SERIAL: %d given, want one serial number", len(args))}
	}
	serial, err := issuance.ParseSerial(strings.TrimPrefix(args[0], "serial=")) // openssl prints this prefix
	if err != nil {
		return "", &usageError{err: errors.New("SERIAL: want a serial number in hexadecimal digits")}
	}
	return serial, nil
}

// entry prints one entry.
func (o *output) entry(w io.Writer, e api.IssuanceEntry) error {
	if done, err := o.object(w, e); done {
		return err
	}
	switch o.format {
	case "name":
		_, err := fmt.Fprintln(w, e.Serial)
		return err
	case "pem":
		_, err := io.WriteString(w, e.Certificate)
		return err
	}
	lines := tabwriter.NewWriter(w, 0, 4, 3, ' ', 0)
	for _, field := range []struct {
		name   string
		values []string
	}{
		{"Serial", []string{e.Serial}},
		{"Fingerprint", []string{e.Fingerprint}},
		{"Outcome", []string{e.Outcome}},
		{"Recorded", []string{e.Time.UTC().Format(time.RFC3339)}},
		{"Signer", []string{e.Signer}},
		{"Subject", []string{e.Subject}},
		{"DNS names", e.DNSNames},
		{"IP addresses", e.IPAddresses},
		{"Email addresses", e.EmailAddresses},
		{"URIs", e.URIs},
		{"Usages", []string{strings.Join(e.Usages, ", ")}},
		{"Not before", []string{e.NotBefore.UTC().Format(time.RFC3339)}},
		{"Not after", []string{e.NotAfter.UTC().Format(time.RFC3339)}},
		{"CA", []string{e.CA}},
		{"Public key", []string{e.SPKI}},
		{"Node", []string{e.Node}},
		{"Requester", []string{e.Requester}},
		{"From", []string{e.From}},
		{"Token", []string{e.TokenID}},
		{"Request", []string{strings.TrimSpace(e.Request + " " + e.RequestUID)}},
		{"Approver", []string{e.Approver}},
		{"Rule", []string{e.Rule}},
		{"Evidence", e.Evidence},
		{"Reason", []string{e.Reason}},
		{"Message", []string{e.Message}},
	} {
		name := field.name + ":"
		for _, value := range field.values {
			if value == "" {
				continue
			}
			if _, err := fmt.Fprintf(lines, "%s\t%s\n", name, safetext.Printable(value)); err != nil {
				return err
			}
			name = "" // only on the first line
		}
	}
	return lines.Flush()
}

func revokeCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
		asked api.Revoke
		token string
	}
	cmd := &cobra.Command{
		Use:   "revoke [NODE]",
		Short: "Lock out a node, a certificate, or all nodes of a token",
		Long: `Lock out a node, one certificate, or all nodes of a token. NODE revokes every certificate
of a node, whoever issued it, except those that kubejoin issues afterwards. So the machine
can join again with a new token. To revoke a node that has come back, run the command
again.

Revoked certificates cannot renew and cannot use kubejoin. kube-apiserver refuses them
only if you set that up: see 'kubejoin authorization-config' and docs/revocation.md.` + remoteHelp,
		Example: `  kubejoin revoke worker-7 --reason "stolen from the rack"
  kubejoin revoke --token qwertz
  kubejoin revoke list
  kubejoin revoke undo worker-7`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(); err != nil {
				return usageOf(cmd, err)
			}
			if err := revokeArguments(&o.asked, args, o.token); err != nil {
				return usageOf(cmd, err)
			}
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
	f.SortFlags = false
	f.StringVar(&o.asked.Serial, "serial", "", "revoke one certificate that kubejoin has issued, by its serial number")
	f.StringVar(&o.asked.Fingerprint, "fingerprint", "", "revoke one certificate by its SHA-256, as 'openssl x509 -noout -fingerprint -sha256' prints it")
	f.StringVar(&o.token, "token", "", "end the token with this ID, and revoke the nodes that joined with it")
	f.StringVar(&o.asked.Reason, "reason", "", "why, at most 256 bytes; locked-out machines see it")
	f.BoolVar(&o.asked.DryRun, "dry-run", false, "print what would be revoked, but revoke nothing")
	o.offerFlag(cmd, "token", listTokenIDs)
	o.output.register(cmd, "text")
	o.remoteOptions.register(cmd)
	cmd.AddCommand(revokeListCommand(), revokeUndoCommand())
	return cmd
}

// revokeArguments sets what to revoke.
func revokeArguments(asked *api.Revoke, args []string, token string) error {
	if len(args) > 1 {
		return &usageError{err: fmt.Errorf("NODE: %d given, want one node name", len(args))}
	}
	if len(args) == 1 {
		if err := tokens.CheckNodeName(args[0]); err != nil {
			return &usageError{err: fmt.Errorf("NODE: %w", err)}
		}
		asked.Node = args[0]
	}
	if token != "" {
		id, err := tokenID(token)
		if err != nil {
			return &usageError{err: fmt.Errorf("--token: %w", err)}
		}
		asked.TokenID = id
	}
	asked.Serial = strings.TrimPrefix(asked.Serial, "serial=") // openssl prints this prefix
	given := 0
	for _, s := range []string{asked.Node, asked.Serial, asked.Fingerprint, asked.TokenID} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		return &usageError{err: fmt.Errorf("%d of NODE, --serial, --fingerprint and --token given, want one", given)}
	}
	return nil
}

func revokeListCommand() *cobra.Command {
	var o struct {
		remoteOptions
		output
	}
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List revoked nodes and certificates",
		Long:    `List revoked nodes and certificates, without those that have expired.` + remoteHelp,
		Example: `  kubejoin revoke list`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := r.ListRevocations(ctx)
				if err != nil {
					return err
				}
				return o.revocations(cmd.OutOrStdout(), list)
			})
		},
	}
	cmd.Flags().SortFlags = false
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
			var errs []error
			if len(args) == 0 {
				errs = append(errs, errors.New("NODE: none given, want node names or fingerprints"))
			}
			for _, arg := range args {
				if _, err := revocation.ParseKey(arg); err != nil {
					errs = append(errs, fmt.Errorf("NODE: %w", err))
				}
			}
			if len(errs) > 0 {
				return usageOf(cmd, &usageError{err: errors.Join(errs...)})
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				var errs []error
				for _, arg := range args {
					undone, err := r.UndoRevocation(ctx, arg, api.UndoRevocation{DryRun: o.dryRun})
					if err != nil {
						errs = append(errs, err)
						continue
					}
					done := "removed"
					if o.dryRun {
						done = "would be removed (dry run)"
					}
					if _, err := fmt.Fprintf(cmd.OutOrStdout(), "revocation of %s %s\n", revokedName(undone), done); err != nil {
						return err
					}
				}
				return each(cmd, len(args), errs)
			})
		},
		ValidArgsFunction: o.offer(many, listRevoked),
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "print what would be removed, but remove nothing")
	o.register(cmd)
	return cmd
}

// revokedName returns the node name or the fingerprint of a revocation.
func revokedName(r api.Revocation) string { return cmp.Or(r.Node, r.Fingerprint) }

// revoked prints what was revoked.
func (o *output) revoked(w io.Writer, list api.RevocationList) error {
	if done, err := o.object(w, list); done {
		return err
	}
	for _, r := range list.Items {
		line := revokedName(r)
		if o.format != "name" {
			what := "node " + line
			if r.Node == "" {
				what = "certificate " + line
			}
			line = what + " revoked"
			if r.DryRun {
				line = what + " would be revoked (dry run)"
			}
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

// revocations prints a list of revocations.
func (o *output) revocations(w io.Writer, list api.RevocationList) error {
	if o.format == "name" {
		return o.revoked(w, list)
	}
	if done, err := o.object(w, list); done || len(list.Items) == 0 {
		return err
	}
	rows := [][]string{{"REVOKED", "AGE", "ENDS", "BY", "ALLOWED SINCE", "REASON"}}
	now := time.Now()
	for _, r := range list.Items {
		ends := "<never>"
		if !r.Until.IsZero() {
			ends = r.Until.UTC().Format(time.RFC3339)
		}
		rows = append(rows, []string{revokedName(r), age(r.Since, now), ends, orNone(r.By), strconv.Itoa(r.Allowed), orNone(cmp.Or(r.Problem, r.Reason))})
	}
	return table(w, rows)
}
