package main

import (
	"crypto/rand"
	"encoding/csv"
	"fmt"
	"strings"
	"unicode"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

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
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, _ []string) error {
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
	choiceVar(f, &o.format, "output", "text", "output format: %s, which is for static tokens", "text", "csv")
	f.StringVar(&o.user, "user", "kubelet-bootstrap", "with -o csv: user name of the token")
	f.StringVar(&o.uid, "uid", "", "with -o csv: UID of that user")
	listVar(f, &o.groups, "groups", []string{tokens.BootstrappersGroup}, "with -o csv: groups of that user")
	heading(f, "Output flags")
	return cmd
}

func (o *tokenGenerateOptions) check(cmd *cobra.Command, _ []string) error {
	var m mistakes
	if o.format != "csv" {
		m.excludes(cmd.Flags().Changed, "needs -o csv, since only static tokens have it", "user", "uid", "groups")
	}
	m.when(o.user == "", "--user: none given, want a name such as kubelet-bootstrap")
	for flag, values := range map[string][]string{"user": {o.user}, "uid": {o.uid}, "groups": o.groups} {
		for _, value := range values {
			m.when(strings.ContainsFunc(value, unicode.IsControl) || flag == "groups" && strings.TrimSpace(value) != value,
				"--%s: %q given, want a value without control characters, and groups without surrounding spaces", flag, value)
		}
	}
	return m.err()
}
