package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
)

func tokenCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "token",
		Short: "Create, list, renew and delete bootstrap tokens",
		Long: `Create, list, renew and delete bootstrap tokens. A machine joins a cluster with one in
'kubeadm join'. The commands create, delete, generate and list have the names of those of
'kubeadm token'. In addition, a token can have limits, for example one machine with a certain
node name.`,
	}, tokenCreateCommand(), tokenListCommand(), tokenGetCommand(), tokenRenewCommand(), tokenDeleteCommand(), tokenGenerateCommand())
}

// maxDescription is the length of a description in a table, in bytes. A longer one would pad each row.
const maxDescription = 80

// tokens prints items. JSON, YAML and jsonpath show object, which is a list object or a single token.
func (o *output) tokens(w io.Writer, object any, items []api.Token) error {
	if o.format == "csv" {
		return tokenCSV(w, items)
	}
	now := time.Now()
	columns := []string{"TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS", "STATUS"} // the columns of kubeadm, and STATUS
	if o.format == "wide" {
		columns = append(columns, "NODES", "JOINED", "LIMITS", "AGE", "PROBLEM")
	}
	return list(o, w, object, items, func(t api.Token) string { return t.ID }, columns, func(t api.Token) []string {
		ttl := "<forever>"
		if !t.Expires.IsZero() {
			ttl = duration.ShortHumanDuration(t.Expires.Sub(now))
		}
		row := []string{cmp.Or(t.Token.Reveal(), t.ID), ttl, stamp(t.Expires, "<never>"), orNone(t.Usages...), orNone(safetext.Text(t.Description, maxDescription)), orNone(t.Groups...), shownStatus(t, now)}
		if o.format == "wide" {
			row = append(row, places(t), orNone(few(t.Nodes, ",")), orNone(limits(t)...), age(t.Created, now), orNone(t.Problem))
		}
		return row
	})
}

// few joins the first names for a cell of a table.
func few(names []string, separator string) string {
	return strings.ReplaceAll(safetext.Few(names), ", ", separator)
}

// The table shows the status "expires soon" for a token that expires within soon.
const soon = 10 * time.Minute

// shownStatus returns the status of a token as the table shows it.
func shownStatus(t api.Token, now time.Time) string {
	switch {
	case t.Status != api.StatusActive:
		return t.Status
	case len(t.Usages) == 0:
		return "no usages"
	case !t.Expires.IsZero() && t.Expires.Sub(now) < soon:
		return "expires soon"
	}
	return "ready"
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
		list = append(list, "names="+few(t.NodeNames, "|"))
	}
	if t.ReplacesNode != nil {
		list = append(list, "replaces="+t.ReplacesNode.Name)
	}
	if d, err := time.ParseDuration(t.CertificateDuration); err == nil {
		list = append(list, "certificates="+safetext.Duration(d))
	} else if t.CertificateDuration != "" { // in the form of another version
		list = append(list, "certificates="+t.CertificateDuration)
	}
	if t.Role != "" {
		list = append(list, "role="+t.Role)
	}
	if t.Rejoin != "" {
		list = append(list, "rejoin="+t.Rejoin)
	}
	for _, field := range slices.Sorted(maps.Keys(t.LimitedBy)) {
		list = append(list, field+" by rule "+t.LimitedBy[field])
	}
	if len(t.NodeLabels) > 0 {
		list = append(list, "labels="+few(t.NodeLabels, "|"))
	}
	if len(t.NodeTaints) > 0 {
		list = append(list, "taints="+few(t.NodeTaints, "|"))
	}
	if t.NodeReadyAfter != "" {
		list = append(list, "ready-after="+t.NodeReadyAfter)
	}
	return list
}

func tokenGetCommand() *cobra.Command {
	var o tokenListOptions
	cmd := &cobra.Command{
		Use:   "get ID…",
		Short: "Show the given bootstrap tokens, without their secrets",
		Long: `Show the bootstrap tokens with the given IDs, like 'kubejoin token list'. The exit code
is 1 if one of them does not exist.` + remoteHelp,
		Example: `  kubejoin token get abcdef -o yaml`,
		Args:    cobra.ArbitraryArgs,
		PreRunE: o.check,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := tokenIDs(args)
			if err != nil {
				return err
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error { return o.get(ctx, cmd, r, ids) })
		},
		ValidArgsFunction: o.offer(many, listTokenIDs),
	}
	o.register(cmd)
	return cmd
}

func (o *tokenListOptions) get(ctx context.Context, cmd *cobra.Command, r *remote, ids []string) error {
	found := api.TokenList{APIVersion: api.GroupVersion, Kind: api.KindTokenList}
	told := map[string]bool{}
	failed := each(cmd, ids, func(id string) (string, error) {
		t, err := r.GetToken(ctx, id)
		if err != nil {
			return "", err
		}
		for _, w := range t.Warnings {
			if !told[w] {
				warn(cmd, w)
			}
			told[w] = true
		}
		t.Warnings = nil
		found.Items = append(found.Items, t)
		return "", nil
	})
	if err := o.reveal(ctx, r, found.Items); err != nil {
		return err
	}
	var object any = found
	if len(ids) == 1 && len(found.Items) == 1 {
		object = found.Items[0]
	}
	if len(found.Items) > 0 {
		if err := o.tokens(cmd.OutOrStdout(), object, found.Items); err != nil {
			return err
		}
	}
	return failed
}

// tokenListOptions are the flags of token list and get.
type tokenListOptions struct {
	remoteOptions
	output
	showSecrets bool
}

func (o *tokenListOptions) register(cmd *cobra.Command) {
	o.output.register(cmd, "text", "wide", "csv")
	cmd.Flags().BoolVar(&o.showSecrets, "show-secrets", false, "show whole tokens, not only their IDs; needs a kubeconfig that may read token Secrets")
	heading(cmd.Flags(), "Output flags", "show-secrets")
	o.remoteOptions.register(cmd)
}

func (o *tokenListOptions) check(*cobra.Command, []string) error {
	var m mistakes
	m.when(o.format == "csv" && !o.showSecrets, "--output: csv contains whole tokens and needs --show-secrets")
	return m.err()
}

// reveal adds the secrets to tokens for --show-secrets. It reads them from the cluster, so it needs a kubeconfig.
func (o *tokenListOptions) reveal(ctx context.Context, r *remote, items []api.Token) error {
	if !o.showSecrets {
		return nil
	}
	if r.cluster == nil {
		return usagef("--show-secrets: needs a kubeconfig; a kubejoin server returns the secret of a token only when it creates the token")
	}
	records, err := r.cluster.Records(ctx)
	if err != nil {
		return err
	}
	secrets := map[string]string{}
	for _, record := range records {
		secrets[record.Token.ID()] = record.Token.Reveal()
	}
	for i := range items {
		items[i].Token = api.Secret(secrets[items[i].ID])
	}
	return nil
}

// tokenIDs returns the token IDs in args. It fails if args is empty.
func tokenIDs(args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, usagef("ID: none given, want one token ID or several")
	}
	ids := make([]string, len(args))
	for i, arg := range args {
		var err error
		if ids[i], err = tokenID(arg); err != nil {
			return nil, usagef("ID: %w", err)
		}
	}
	return ids, nil
}

// tokenID returns the token ID in an argument. Like kubeadm, it also accepts a whole token.
func tokenID(argument string) (string, error) {
	if strings.Contains(argument, ".") {
		t, err := tokens.Parse(argument)
		return t.ID(), err
	}
	return argument, tokens.CheckID(argument)
}

// checkTTL applies the server's limits to --ttl, so that the error names the flag.
func checkTTL(d time.Duration) error {
	if d != 0 && (d < time.Second || d > api.MaxTTL) {
		return fmt.Errorf("%s given, want 1s to %s, or 0 for a token that never expires", safetext.Duration(d), safetext.Duration(api.MaxTTL))
	}
	return nil
}
