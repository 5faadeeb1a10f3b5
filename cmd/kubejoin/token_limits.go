package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/server/operations"
	"github.com/kubejoin/kubejoin/signer/config"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
)

func tokenLimitsCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "token-limits",
		Short: "Check a file for 'kubejoin serve --token-limits'",
		Long: `Check a file for 'kubejoin serve --token-limits'. Its rules limit bootstrap tokens, also those
that other programs write as Secrets. All rules that match a token apply together, and of
each limit the strictest value holds. A rule without match applies to every token.

  apiVersion: kubejoin.io/v1alpha1
  kind: TokenLimits
  rules:
  - name: scaler
    match:                            # each that is given must match
      description: "scaler *"         # a pattern: * matches any characters
      groups: [system:bootstrappers:kubeadm:default-node-token]   # the token has all of them
      labels: {app: scaler}           # of the Secret
    maxNodes: 1                       # at least one of these five
    nodeNames: ["auto-*"]
    certificateDuration: 24h
    rejoin: deny
    role: worker                      # takes role control-plane away

kubejoin serve re-reads the file when it changes. If a new version is invalid, it keeps the
last valid one and reports the error in the log, in an Event, in /readyz and in the metric
kubejoin_files_in_use. Rules that a running kubejoin applies are not on the Secrets: to see
them, run 'kubejoin token get ID' with --url or --curlrc.`,
	}, tokenLimitsCheckCommand())
}

func tokenLimitsCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check FILE|-",
		Short: "Check rules for tokens and print what each does",
		Long: `Check rules for tokens. The command prints what each rule matches and limits, or all errors
with file, line and field. - reads standard input. The command changes nothing and contacts no
cluster. The exit code is 0 if the file is valid, 1 if not.`,
		Example: `  kubejoin token-limits check limits.yaml`,
		Args:    oneArg("FILE", "one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			rules, err := openTokenLimits(cmd.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			rows := [][]string{{"RULE", "MATCHES", "LIMITS"}}
			for _, r := range rules {
				rows = append(rows, ruleRow(r))
			}
			return table(cmd.OutOrStdout(), rows)
		},
		ValidArgsFunction: cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
	}
}

// openTokenLimits reads a file, or standard input.
func openTokenLimits(stdin io.Reader, file string) ([]tokens.LimitRule, error) {
	if file != "-" {
		return config.LoadTokenLimits(file)
	}
	content, err := io.ReadAll(io.LimitReader(stdin, config.MaxSize+1))
	rules, parseErr := config.ParseTokenLimits("standard input", content)
	return rules, errors.Join(err, parseErr)
}

func ruleRow(r tokens.LimitRule) []string {
	var matches, does []string
	if r.Description != "" {
		matches = append(matches, fmt.Sprintf("description=%q", r.Description))
	}
	for _, group := range r.Groups {
		matches = append(matches, "group="+group)
	}
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		matches = append(matches, "label "+key+"="+r.Labels[key])
	}
	if len(matches) == 0 {
		matches = []string{"every token"}
	}
	if n := r.Limits.MaxNodes; n > 0 {
		does = append(does, fmt.Sprintf("nodes=%d", n))
	}
	does = append(does, limits(operations.View{}.Token(tokens.Record{Limits: r.Limits}))...)
	if r.Worker {
		does = append(does, "role=worker")
	}
	return []string{r.Name, strings.Join(matches, ", "), strings.Join(does, ", ")}
}
