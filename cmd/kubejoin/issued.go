package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/spf13/cobra"
	certificates "k8s.io/api/certificates/v1"
)

// issuedHelp is what the help of each of these commands ends with.
const issuedHelp = `

The record is kept where kubejoin has a file store: standalone, and on a cluster with
--token-store=file. Say which with --url, or with the --curlrc that 'kubejoin serve' has
written; KUBEJOIN_URL and KUBEJOIN_CURLRC stand in for these two. Elsewhere it is the
lines of JSON of 'kubejoin serve --issuance-record FILE', of the same fields:
  jq 'select(.tokenID == "qwertz")' FILE`

func issuedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "issued",
		Short: "See which certificates were issued, and what was refused",
		Long: `See which certificates were issued, to whom and why, and what was refused or has failed.
Certificates are kept in the record until 90 days after they have ended, refusals and
failures for 30 days, the last 100,000 of them.` + issuedHelp,
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
		Short: "List what was issued, refused or has failed",
		Long: `List what was issued, refused or has failed, the newest first; with --ends-within
certificates that are good now, the one that ends first at the top. Of several flags all
have to hold.` + issuedHelp,
		Example: `  # what did token qwertz issue?
  kubejoin issued list --token qwertz --outcome issued

  # which certificates end within 30 days?
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
	f.StringVar(&o.token, "token", "", "ID of the bootstrap token that was asked with")
	f.StringVar(&o.asked.Node, "node", "", "node that a certificate is for, or that asked for it")
	f.StringVar(&o.asked.Requester, "requester", "", "user that asked")
	f.StringVar(&o.asked.Signer, "signer", "", "signer name, such as "+certificates.KubeletServingSignerName)
	f.StringVar(&o.asked.Outcome, "outcome", "", "issued, refused or failed")
	f.StringVar(&o.asked.EndsWithin, "ends-within", "", "certificates that end within this time, such as 720h or 30d")
	f.StringVar(&o.asked.Since, "since", "", "recorded since then: how long ago, such as 24h or 7d, or a time such as 2026-11-20T00:00:00Z")
	f.IntVar(&o.limit, "limit", issuance.DefaultLimit, "most entries; 0 is all")
	complete := func(flag string, values ...string) {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // fails for a flag that there is not
	}
	complete("outcome", issuance.Issued, issuance.Refused, issuance.Failed)
	complete("signer", certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName)
	o.output.register(cmd, "text")
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

// requireServer says what a kubeconfig cannot give.
func requireServer(r *remote) error {
	if r.cluster != nil {
		return errors.New("the issuance record is not in the cluster: it is the lines of JSON of 'kubejoin serve --issuance-record FILE', for jq; a kubejoin server with a file store is asked with --url")
	}
	return nil
}

func (o *issuedListOptions) list(ctx context.Context, cmd *cobra.Command, r *remote) error {
	if err := requireServer(r); err != nil {
		return err
	}
	list := api.IssuanceEntryList{APIVersion: api.Version, Kind: api.KindIssuanceEntryList, Items: []api.IssuanceEntry{}}
	for {
		asked := o.asked
		asked.Limit, asked.Continue = issuance.MaxLimit, list.Continue
		if o.limit > 0 {
			asked.Limit = min(asked.Limit, o.limit-len(list.Items))
		}
		page, err := r.ListIssued(ctx, asked)
		if err != nil {
			return err
		}
		list.Items, list.Continue = append(list.Items, page.Items...), page.Continue
		if list.Continue == "" {
			break
		}
		if len(list.Items) == o.limit {
			warn(cmd, fmt.Sprintf("there are more than these %d; --limit 0 lists all", o.limit))
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
			last = e.Message // of a failure
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
		Short: "Show all that is recorded of a certificate",
		Long: `Show all that is recorded of a certificate, by its serial number as
'kubejoin issued list' or 'openssl x509 -noout -serial' has it. -o pem is the certificate.` + issuedHelp,
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
				if err := requireServer(r); err != nil {
					return err
				}
				e, err := r.GetIssued(ctx, serial)
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
	o.remoteOptions.register(cmd)
	return cmd
}

func serialNumber(args []string) (string, error) {
	if len(args) != 1 {
		return "", &usageError{err: fmt.Errorf("SERIAL: %d given, want one serial number", len(args))}
	}
	serial, err := issuance.ParseSerial(strings.TrimPrefix(args[0], "serial=")) // as openssl prints it
	if err != nil {
		return "", &usageError{err: errors.New("SERIAL: want a serial number of hexadecimal digits")}
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
			if _, err := fmt.Fprintf(lines, "%s\t%s\n", name, foreign.Printable(value)); err != nil {
				return err
			}
			name = "" // of the first line alone
		}
	}
	return lines.Flush()
}
