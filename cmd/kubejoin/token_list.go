package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
)

// tokenListOptions are the flags of token list and get.
type tokenListOptions struct {
	remoteOptions
	output
	showSecrets bool
}

func (o *tokenListOptions) register(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	o.output.register(cmd, "text", "wide", "csv")
	cmd.Flags().BoolVar(&o.showSecrets, "show-secrets", false, "show whole tokens and not their IDs alone; with a kubeconfig that may read them")
	o.remoteOptions.register(cmd)
}

func (o *tokenListOptions) checkAll() error {
	if err := o.check(); err != nil {
		return err
	}
	if o.format == "csv" && !o.showSecrets {
		return &usageError{err: errors.New("--output: csv has whole tokens in it: give --show-secrets, too")}
	}
	return nil
}

func tokenListCommand() *cobra.Command {
	var o tokenListOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List bootstrap tokens, without their secrets",
		Long: `List bootstrap tokens in kubeadm's columns. -o wide adds whether each is of use
(active, spent, expired, unsigned or invalid), which nodes have joined with it and
how many may, and what it is limited to.

Secrets are shown with --show-secrets, and with a kubeconfig alone: a kubejoin
server tells a token once, when it is made.` + remoteHelp,
		Example: `  kubejoin token list -o wide

  # the IDs of those that nobody can join with any more
  kubejoin token list -o jsonpath='{.items[?(@.status=="spent")].id}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.checkAll(); err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := listTokens(ctx, r)
				if err != nil {
					return err
				}
				warn(cmd, list.Warnings...)
				list.Warnings = nil
				if err := o.reveal(ctx, r, list.Items); err != nil {
					return err
				}
				return o.tokens(cmd.OutOrStdout(), list, list.Items)
			})
		},
	}
	o.register(cmd)
	return cmd
}

func tokenGetCommand() *cobra.Command {
	var o tokenListOptions
	cmd := &cobra.Command{
		Use:   "get ID…",
		Short: "Show some bootstrap tokens, without their secrets",
		Long: `Show some bootstrap tokens as 'kubejoin token list' does. The exit code is 1 if one
of them is not there.` + remoteHelp,
		Example: `  kubejoin token get abcdef -o yaml`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := tokenIDs(args)
			if err == nil {
				err = o.checkAll()
			}
			if err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error { return o.get(ctx, cmd, r, ids) })
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.register(cmd)
	return cmd
}

func (o *tokenListOptions) get(ctx context.Context, cmd *cobra.Command, r *remote, ids []string) error {
	list := api.TokenList{APIVersion: api.Version, Kind: api.KindTokenList}
	var errs []error
	told := map[string]bool{}
	for _, id := range ids {
		t, err := r.GetToken(ctx, id)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, w := range t.Warnings {
			if !told[w] {
				warn(cmd, w)
			}
			told[w] = true
		}
		t.Warnings = nil
		list.Items = append(list.Items, t)
	}
	if err := o.reveal(ctx, r, list.Items); err != nil {
		return err
	}
	var object any = list
	if len(ids) == 1 && len(list.Items) == 1 {
		object = list.Items[0]
	}
	if len(list.Items) > 0 {
		if err := o.tokens(cmd.OutOrStdout(), object, list.Items); err != nil {
			return err
		}
	}
	return each(cmd, len(ids), errs)
}

// each reports what went wrong with some of n things, each on a line of its own if there were
// several.
func each(cmd *cobra.Command, n int, errs []error) error {
	if n == 1 && len(errs) == 1 || len(errs) == 0 {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		cmd.PrintErrln("kubejoin:", sanitize(explain(err).Error()))
	}
	return fmt.Errorf("%d of %d failed", len(errs), n)
}

// tokenIDs reads arguments, of which there is to be one at least.
func tokenIDs(args []string) ([]string, error) {
	if len(args) == 0 {
		return nil, &usageError{err: errors.New("ID: none given, want one token ID or several")}
	}
	ids := make([]string, len(args))
	for i, arg := range args {
		var err error
		if ids[i], err = tokenID(arg); err != nil {
			return nil, &usageError{err: fmt.Errorf("ID: %w", err)}
		}
	}
	return ids, nil
}

func listTokens(ctx context.Context, r *remote) (api.TokenList, error) {
	if r.cluster != nil {
		if err := r.cluster.mayList(ctx); err != nil {
			return api.TokenList{}, err
		}
	}
	return r.ListTokens(ctx)
}

// reveal puts secrets on tokens, from where a kubeconfig may read them.
func (o *tokenListOptions) reveal(ctx context.Context, r *remote, items []api.Token) error {
	if !o.showSecrets {
		return nil
	}
	if r.cluster == nil {
		return &usageError{err: errors.New("--show-secrets: goes with a kubeconfig alone; a kubejoin server tells a token once, when it is made")}
	}
	if err := r.cluster.mayList(ctx); err != nil {
		return err
	}
	records, err := r.cluster.store.List(ctx)
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
