package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/spf13/cobra"
	certificates "k8s.io/api/certificates/v1"
)

// issuedHelp ends the help of each issued command.
const issuedHelp = `

A kubejoin server has this record if it runs standalone, or with --token-store=file or
--token-store=etcd. If tokens are in the cluster, read the file of 'kubejoin serve
--issuance-record FILE' instead. It has the same fields, one JSON object a line:
  jq 'select(.tokenID == "qwertz")' FILE` + serverHelp

// readRecord ends the error of a command that has no kubejoin server.
const readRecord = "; or read the file of 'kubejoin serve --issuance-record FILE' with jq"

func issuedCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "issued",
		Short: "List issued certificates and refused requests",
		Long: `List issued certificates, and requests that were refused or failed, from the issuance
record. kubejoin keeps the record of a certificate until 90 days after it has expired. It
keeps refusals and failures for 30 days, at most the last 100,000.` + issuedHelp,
	}, issuedListCommand(), issuedShowCommand())
}

// issuedListOptions are the flags of issued list.
type issuedListOptions struct {
	remoteOptions
	output
	asked api.ListIssued
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
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd, func(ctx context.Context, r *remote) error { return o.list(ctx, cmd, r) })
		},
	}
	f := cmd.Flags()
	parsedVar(f, &o.asked.TokenID, "token", "", "ID of the bootstrap token that requested the certificate", tokenID)
	f.StringVar(&o.asked.Node, "node", "", "name of the node that the certificate is for, or that requested it")
	f.StringVar(&o.asked.Requester, "requester", "", "user name of the requester")
	f.StringVar(&o.asked.Signer, "signer", "", "signer name, for example "+certificates.KubeletServingSignerName)
	choiceVar(f, &o.asked.Outcome, "outcome", "", "outcome: %s", issuance.Issued, issuance.Refused, issuance.Failed)
	f.StringVar(&o.asked.CA, "ca", "", "pin of the CA that signed the certificate: sha256:HEX")
	f.StringVar(&o.asked.NotCA, "not-ca", "", "certificates that the CA with this pin has not signed, or whose CA an earlier kubejoin did not record")
	f.StringVar(&o.asked.EndsWithin, "ends-within", "", "valid certificates that expire within this duration, for example 720h or 30d")
	f.StringVar(&o.asked.Since, "since", "", "only entries after this time, for example 2026-11-20T00:00:00Z, or of the last 24h or 7d")
	f.IntVar(&o.limit, "limit", issuance.DefaultLimit, "maximum number of entries (0: all)")
	complete(cmd, "signer", certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeletServingSignerName, certificates.KubeAPIServerClientSignerName)
	heading(f, "Filter flags")
	o.offerFlag(cmd, "token", listTokenIDs)
	o.offerFlag(cmd, "node", listNodes)
	o.output.register(cmd, "text")
	o.serverOnly, o.instead = true, readRecord
	o.remoteOptions.register(cmd)
	return cmd
}

func (o *issuedListOptions) check(cmd *cobra.Command, _ []string) error {
	if o.limit < 0 {
		return usagef("--limit: %d given, want 0 or more", o.limit)
	}
	if lower := strings.ToLower(o.asked.Node); lower != o.asked.Node { // only a warning: a refused request may have such a name
		warn(cmd, "--node: names of nodes are in lower case: "+lower)
	}
	return nil
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
func (o *output) entries(w io.Writer, entries api.IssuanceEntryList) error {
	return list(o, w, entries, entries.Items, func(e api.IssuanceEntry) string { return e.Serial },
		[]string{"TIME", "OUTCOME", "SIGNER", "REQUESTER", "SUBJECT", "TOKEN", "ENDS", "SERIAL/REASON"}, func(e api.IssuanceEntry) []string {
			last := cmp.Or(e.Serial, e.Reason, e.Message) // a message if issuing failed
			return []string{stamp(e.Time, "<none>"), e.Outcome, e.Signer, orNone(e.Requester), orNone(e.Subject), orNone(e.TokenID), stamp(e.NotAfter, "<none>"), orNone(last)}
		})
}

func issuedShowCommand() *cobra.Command {
	var o remoteOutput
	cmd := &cobra.Command{
		Use:   "show SERIAL",
		Short: "Show the record of one certificate",
		Long: `Show the record of one certificate. SERIAL is its serial number, from 'kubejoin issued
list' or 'openssl x509 -noout -serial'. -o pem prints the certificate.` + issuedHelp,
		Example: `  kubejoin issued show 3f2a9c…

  kubejoin issued show 3f2a9c… -o pem | openssl x509 -noout -text`,
		Args: oneArg("SERIAL", "one serial number"),
		RunE: func(cmd *cobra.Command, args []string) error {
			serial, err := serialNumber(args[0])
			if err != nil {
				return err
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
	o.output.register(cmd, "text", "pem")
	o.serverOnly, o.instead = true, readRecord
	o.remoteOptions.register(cmd)
	return cmd
}

func serialNumber(arg string) (string, error) {
	serial, err := issuance.ParseSerial(strings.TrimPrefix(arg, "serial=")) // openssl prints this prefix
	if err != nil {
		return "", usagef("SERIAL: want a serial number in hexadecimal digits")
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
