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
		Short: "Create, list, renew and delete bootstrap tokens",
		Long: `Create, list, renew and delete bootstrap tokens. A machine joins a cluster with one in
'kubeadm join'. The commands and flags are those of 'kubeadm token'. In addition, a
token can have limits, for example one machine with a certain node name.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenGetCommand(), tokenRenewCommand(), tokenDeleteCommand(), tokenGenerateCommand())
	return cmd
}

// tokens prints items. JSON, YAML and jsonpath show list, which is a list object or a single token.
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

// tokenTable prints kubeadm's columns, and more if wide.
func tokenTable(w io.Writer, items []api.Token, wide bool, now time.Time) error {
	if len(items) == 0 {
		return nil // kubeadm prints no heading either
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

// places returns the number of joined nodes and the node limit of a token, as "1/3".
func places(t api.Token) string {
	most := "<any>"
	switch {
	case t.ReplacesNode != nil:
		most = "1"
	case t.MaxNodes > 0:
		most = strconv.Itoa(t.MaxNodes)
	case len(t.Nodes) == 0: // kubejoin does not count the nodes of an unlimited token
		return most
	}
	return strconv.Itoa(len(t.Nodes)) + "/" + most
}

// limits returns the limits of a token except its node limit.
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
