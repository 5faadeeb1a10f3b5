package main

import (
	"crypto/rand"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

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
	if t.Rejoin != "" {
		list = append(list, "rejoin="+t.Rejoin)
	}
	return list
}

// tokenGenerateOptions are the flags of token generate.
type tokenGenerateOptions struct {
	format    string
	user, uid string
	groups    []string
}

func tokenGenerateCommand() *cobra.Command {
	var o tokenGenerateOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print a random bootstrap token without storing it",
		Long: `Print a random bootstrap token of the form abcdef.0123456789abcdef. The command stores
nothing and contacts no cluster. The token works after you create it, for example with
'kubejoin token create', a manifest or kubeadm's InitConfiguration.

-o csv prints a static token instead: a line token,user,uid,"group1,group2" for the
--token-auth-file of kube-apiserver. A static token never expires. kube-apiserver reads
the file only when it starts, so restart it after you add or remove a line. Make the
kubelet's kubeconfig with 'kubejoin kubeconfig bootstrap --user'.`,
		Example: `  kubejoin token generate

  (umask 077; kubejoin token generate -o csv --user kubelet-bootstrap >> token.csv)`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(cmd.Flags().Changed); err != nil {
				return &usageError{command: cmd.CommandPath(), err: err}
			}
			if o.format == "text" {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), tokens.Generate().Reveal())
				return err
			}
			columns := []string{rand.Text(), o.user, o.uid}
			if len(o.groups) > 0 { // kube-apiserver reads an empty column as a group with an empty name
				columns = append(columns, strings.Join(o.groups, ","))
			}
			line := csv.NewWriter(cmd.OutOrStdout())
			if err := line.Write(columns); err != nil {
				return err
			}
			line.Flush()
			return line.Error()
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVarP(&o.format, "output", "o", "text", "output format: text, or csv for a static token")
	f.StringVar(&o.user, "user", "kubelet-bootstrap", "with -o csv: user name of the token")
	f.StringVar(&o.uid, "uid", "", "with -o csv: UID of that user")
	listVar(f, &o.groups, "groups", []string{tokens.BootstrappersGroup}, "with -o csv: groups of that user")
	heading(f, "Output flags")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "csv"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (o *tokenGenerateOptions) check(given func(flag string) bool) error {
	var errs []error
	if !slices.Contains([]string{"text", "csv"}, o.format) {
		errs = append(errs, fmt.Errorf("--output: %q given, want text or csv", o.format))
	}
	for _, flag := range []string{"user", "uid", "groups"} {
		if o.format != "csv" && given(flag) {
			errs = append(errs, fmt.Errorf("--%s: needs -o csv, since only static tokens have it", flag))
		}
	}
	if o.user == "" {
		errs = append(errs, errors.New("--user: none given, want a name such as kubelet-bootstrap"))
	}
	for flag, values := range map[string][]string{"user": {o.user}, "uid": {o.uid}, "groups": o.groups} {
		for _, value := range values {
			if strings.ContainsFunc(value, unicode.IsControl) || flag == "groups" && strings.TrimSpace(value) != value {
				errs = append(errs, fmt.Errorf("--%s: %q given, want a value without control characters, and groups without surrounding spaces", flag, value))
			}
		}
	}
	return errors.Join(errs...)
}
