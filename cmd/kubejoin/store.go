package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/internal/storecopy"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	"github.com/spf13/cobra"
)

const storeHelp = `

A store is file:PATH, where PATH is kubejoin.db or the folder of --data-dir, or
etcd:URL,URL with the flags of etcd.`

func storeCommand() *cobra.Command {
	return noun(&cobra.Command{
		Use:   "store",
		Short: "Copy and check stores of tokens: a file, or etcd",
		Long: `Copy and check stores of tokens, claims, revocations and the issuance record: a file, or
etcd. Stores in Kubernetes are not meant: see 'kubejoin doctor'.`,
		Example: `  kubejoin store check file:kubejoin-data`,
	}, storeCopyCommand(), storeCheckCommand())
}

func storeCopyCommand() *cobra.Command {
	var o struct {
		output
		from, to string
		etcd     etcdstore.Config
		options  storecopy.Options
	}
	cmd := &cobra.Command{
		Use:   "copy --from STORE --to STORE",
		Short: "Copy a store to another one",
		Long: `Copy tokens, claims, revocations and the issuance record from one store to another, read all
of it back, and compare. The destination must be a new file, or an unused prefix in etcd.
Nobody can use it before the copy is complete.

A file can be copied only while no kubejoin uses it. Stop the kubejoins on etcd, too: the copy
fails if one of them writes meanwhile.

Refusals and failures older than 30 days are left out. A record in etcd has no
certificates, only their fingerprints.

The exit code is 0 if the copy is complete, 1 if it is not, and 2 for invalid flags. After
an error, delete the incomplete copy before you repeat the command.` + storeHelp,
		Example: `  # what would be copied
  kubejoin store copy --dry-run --from file:kubejoin-data --to file:new.db

  # from a file to etcd, while kubejoin is stopped
  kubejoin store copy --from file:kubejoin-data --to etcd:https://10.0.0.1:2379 \
    --etcd-cafile ca.crt --etcd-certfile kubejoin.crt --etcd-keyfile kubejoin.key

  # and back
  kubejoin store copy --from etcd:https://10.0.0.1:2379 --to file:new.db \
    --etcd-cafile ca.crt --etcd-certfile kubejoin.crt --etcd-keyfile kubejoin.key`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			ctx := cmd.Context()
			destination, did := storecopy.Destination, "copied and compared"
			if o.options.DryRun {
				destination, did = storecopy.DryDestination, "would copy"
			}
			defer waiting{what: "for the stores"}.begin(cmd)()
			from, err := storecopy.Open(ctx, o.from, o.etcd, storecopy.ReadOnly)
			if err != nil {
				return storeError(cmd, "from", err)
			}
			defer func() { err = errors.Join(err, from.Close()) }()
			to, err := storecopy.Open(ctx, o.to, o.etcd, destination)
			if err != nil {
				return storeError(cmd, "to", err)
			}
			defer func() { err = errors.Join(err, to.Close()) }()
			o.options.Progress = copied(cmd)
			counts, err := storecopy.Copy(ctx, from, to, o.options)
			if err != nil && counts != (storecopy.Counts{}) {
				return fmt.Errorf("%s %s, then failed: %w", did, rowsOf(counts), err)
			} else if err != nil {
				return err
			}
			return o.text(cmd.OutOrStdout(), struct {
				APIVersion string `json:"apiVersion"`
				Kind       string `json:"kind"`
				DryRun     bool   `json:"dryRun,omitempty"`
				storecopy.Counts
			}{api.GroupVersion, "StoreCopy", o.options.DryRun, counts}, did+" "+rowsOf(counts)+"\n")
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "", "source: file:PATH or etcd:URLS")
	f.StringVar(&o.to, "to", "", "destination: file:PATH or etcd:URLS")
	f.BoolVar(&o.options.DryRun, "dry-run", false, "check both stores and count what would be copied; write nothing")
	registerEtcdFiles(f, &o.etcd, "")
	heading(f, "etcd flags", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "etcd-prefix")
	o.registerFormats(cmd, "text", "json", "yaml")
	return cmd
}

func rowsOf(c storecopy.Counts) string {
	return fmt.Sprintf("%d tokens, %d claims, %d revocations and %d entries of the issuance record", c.Tokens, c.Claims, c.Revocations, c.IssuanceEntries)
}

// copied returns a function that prints how many rows were copied, every few seconds, to standard error.
func copied(cmd *cobra.Command) func(storecopy.Counts, int) {
	last := time.Now()
	return func(c storecopy.Counts, compared int) {
		if time.Since(last) < longWait {
			return
		}
		last = time.Now()
		if compared > 0 {
			progress(cmd, "copied %s; compared %d of %d entries", rowsOf(c), compared, c.IssuanceEntries)
		} else {
			progress(cmd, "copied %s", rowsOf(c))
		}
	}
}

// storeError adds the name of the flag to an error of opening a store.
func storeError(cmd *cobra.Command, flag string, err error) error {
	named := fmt.Errorf("--%s: %w", flag, err)
	if errors.Is(err, storecopy.ErrSpec) || errors.As(err, new(*tokens.FieldError)) {
		return &usageError{err: named}
	}
	return named
}

func storeCheckCommand() *cobra.Command {
	var o struct {
		output
		etcd etcdstore.Config
	}
	cmd := &cobra.Command{
		Use:   "check STORE",
		Short: "Check the invariants of a store",
		Long: `Check a store: whether kubejoin can read each row, the indexes agree with the rows, no token
counts more nodes than its limit, and each claim is counted. The command changes nothing.

A store in etcd may be in use. A file must not be in use: stop kubejoin first. The command
reads only a file whose schema this version of kubejoin knows, and says which one it found.

The exit code is 0 without findings, 1 with findings, and 2 if the store could not be checked.` + storeHelp,
		Example: `  kubejoin store check file:kubejoin-data

  kubejoin store check etcd:https://10.0.0.1:2379 \
    --etcd-cafile ca.crt --etcd-certfile kubejoin.crt --etcd-keyfile kubejoin.key`,
		Args: oneArg("STORE", "one"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			defer waiting{what: "for the store"}.begin(cmd)()
			counts, found, err := checkStore(cmd.Context(), args[0], o.etcd)
			if errors.Is(err, storecopy.ErrSpec) {
				return usagef("STORE: %w", err)
			} else if err != nil {
				cmd.PrintErrln("kubejoin:", sanitize(err.Error()))
				return exitUnchecked
			}
			return o.findings(cmd, counts, found)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	registerEtcdFiles(f, &o.etcd, "")
	heading(f, "etcd flags", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "etcd-prefix")
	o.registerFormats(cmd, "text", "json", "yaml")
	return cmd
}

func checkStore(ctx context.Context, spec string, config etcdstore.Config) (counts storecopy.Counts, found []storecopy.Violation, err error) {
	s, err := storecopy.Open(ctx, spec, config, storecopy.ReadOnly)
	if err != nil {
		return counts, nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Check(ctx)
}

// findings prints the defects that 'kubejoin store check' found, and returns the exit code as an error.
func (o *output) findings(cmd *cobra.Command, counts storecopy.Counts, found []storecopy.Violation) error {
	text := ""
	for _, f := range found {
		text += fmt.Sprintf("%s: %s\n  %s\n", f.ID, f.Message, f.Advice)
	}
	if len(found) == 0 {
		text = fmt.Sprintf("checked %s: no findings\n", rowsOf(counts))
	}
	err := o.text(cmd.OutOrStdout(), struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		storecopy.Counts
		Findings []storecopy.Violation `json:"findings"`
	}{api.GroupVersion, "StoreCheck", counts, append([]storecopy.Violation{}, found...)}, text)
	return cmp.Or(err, exitOf(len(found), 0))
}
