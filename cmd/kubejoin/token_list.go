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
	cmd.Flags().BoolVar(&o.showSecrets, "show-secrets", false, "show whole tokens, not only their IDs; needs a kubeconfig that may read token Secrets")
	heading(cmd.Flags(), "Output flags", "show-secrets")
	o.remoteOptions.register(cmd)
}

func (o *tokenListOptions) checkAll() error {
	if err := o.check(); err != nil {
		return err
	}
	if o.format == "csv" && !o.showSecrets {
		return &usageError{err: errors.New("--output: csv contains whole tokens and needs --show-secrets")}
	}
	return nil
}

func tokenListCommand() *cobra.Command {
	var o tokenListOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List bootstrap tokens, without their secrets",
		Long: `List bootstrap tokens, with the columns of kubeadm. -o wide adds the status (active,
spent, expired, unsigned or invalid), the nodes that have joined, and the limits.

--show-secrets shows whole tokens. It needs a kubeconfig: a kubejoin server returns the
secret of a token only when it creates the token.` + remoteHelp,
		Example: `  kubejoin token list -o wide

  # the IDs of tokens whose node limit is used up
  kubejoin token list -o jsonpath='{.items[?(@.status=="spent")].id}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.checkAll(); err != nil {
				return usageOf(cmd, err)
			}
			return o.run(cmd, func(ctx context.Context, r *remote) error {
				list, err := r.ListTokens(ctx)
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
		Short: "Show the given bootstrap tokens, without their secrets",
		Long: `Show the bootstrap tokens with the given IDs, like 'kubejoin token list'. The exit code
is 1 if one of them does not exist.` + remoteHelp,
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
		ValidArgsFunction: o.offer(many, listTokenIDs),
	}
	o.register(cmd)
	return cmd
}

func (o *tokenListOptions) get(ctx context.Context, cmd *cobra.Command, r *remote, ids []string) error {
	list := api.TokenList{APIVersion: api.GroupVersion, Kind: api.KindTokenList}
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

// each combines the errors of n operations. With several operations it prints each error on a line and returns a count.
func each(cmd *cobra.Command, n int, errs []error) error {
	if n == 1 && len(errs) == 1 || len(errs) == 0 {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		cmd.PrintErrln("kubejoin:", sanitize(explain(err).Error()))
	}
	return fmt.Errorf("%d of %d failed", len(errs), n)
}

// tokenIDs returns the token IDs in args. It fails if there are none.
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

// reveal adds the secrets to tokens for --show-secrets. It reads them from the cluster, so it needs a kubeconfig.
func (o *tokenListOptions) reveal(ctx context.Context, r *remote, items []api.Token) error {
	if !o.showSecrets {
		return nil
	}
	if r.cluster == nil {
		return &usageError{err: errors.New("--show-secrets: needs a kubeconfig; a kubejoin server returns the secret of a token only when it creates the token")}
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
