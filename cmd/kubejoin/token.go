package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
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

// tokens prints several tokens as list, which is of a list's kind or one token alone.
func (o *output) tokens(w io.Writer, list any, items []api.Token) error {
	if done, err := o.object(w, list); done {
		return err
	}
	switch o.format {
	case "name":
		for _, t := range items {
			if _, err := fmt.Fprintln(w, t.ID); err != nil {
				return err
			}
		}
		return nil
	case "csv":
		return tokenCSV(w, items)
	}
	return tokenTable(w, items, o.format == "wide", time.Now())
}

// tokenCSV prints lines for kube-apiserver's --token-auth-file. They give each token the same user as kube-apiserver's
// bootstrap token authenticator does.
func tokenCSV(w io.Writer, items []api.Token) error {
	lines := csv.NewWriter(w)
	for _, t := range items {
		if t.Token == "" || !slices.Contains(t.Usages, api.UsageAuthentication) {
			continue
		}
		groups := append([]string{tokens.BootstrappersGroup}, t.Groups...)
		if err := lines.Write([]string{t.Token.Reveal(), tokens.BootstrapUserPrefix + t.ID, "", strings.Join(groups, ",")}); err != nil {
			return err
		}
	}
	lines.Flush()
	return lines.Error()
}

// tokenTable prints kubeadm's columns and, if it is to be wide, more.
func tokenTable(w io.Writer, items []api.Token, wide bool, now time.Time) error {
	if len(items) == 0 {
		return nil // not even a heading, as kubeadm
	}
	columns := []string{"TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"}
	if wide {
		columns = append(columns, "STATUS", "NODES", "JOINED", "LIMITS", "AGE", "PROBLEM")
	}
	rows := [][]string{columns}
	for _, t := range items {
		name, ttl, expires := t.ID, "<forever>", "<never>"
		if t.Token != "" {
			name = t.Token.Reveal()
		}
		if !t.Expires.IsZero() {
			ttl, expires = duration.ShortHumanDuration(t.Expires.Sub(now)), t.Expires.UTC().Format(time.RFC3339)
		}
		row := []string{name, ttl, expires, orNone(t.Usages...), orNone(t.Description), orNone(t.Groups...)}
		if wide {
			row = append(row, t.Status, places(t), orNone(t.Nodes...), orNone(limits(t)...), age(t.Created, now), orNone(t.Problem))
		}
		rows = append(rows, row)
	}
	return table(w, rows)
}

// places is how many nodes have joined of how many may.
func places(t api.Token) string {
	most := "<any>"
	switch {
	case t.ReplacesNode != nil:
		most = "1"
	case t.MaxNodes > 0:
		most = strconv.Itoa(t.MaxNodes)
	case len(t.Nodes) == 0: // they are not counted
		return most
	}
	return strconv.Itoa(len(t.Nodes)) + "/" + most
}

// limits are what a token is good for, but for the number of nodes.
func limits(t api.Token) []string {
	var list []string
	if len(t.NodeNames) > 0 {
		list = append(list, "names="+strings.Join(t.NodeNames, "|"))
	}
	if t.ReplacesNode != nil {
		list = append(list, "replaces="+t.ReplacesNode.Name)
	}
	if t.CertificateDuration != "" {
		list = append(list, "certificates="+t.CertificateDuration)
	}
	if t.Role != "" {
		list = append(list, "role="+t.Role)
	}
	return list
}
