// Command kubejoin is the cluster side of kubeadm join: it mints bootstrap tokens, signs
// cluster-info with them, approves and signs the certificates of joining nodes, and returns
// the join command over HTTPS. Run kubejoin --help.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// Addresses that the help shows.
const (
	docsURL   = "https://github.com/kubejoin/kubejoin/blob/main/docs/"
	deployURL = "https://github.com/kubejoin/kubejoin/tree/main/deploy/"
)

// Exit codes.
const (
	exitFailure   = 1
	exitUsage     = 2
	exitInterrupt = 130
	exitTerminate = 143
)

// An exitCode is an error that sets the exit code. If it is not wrapped in another error, the command has already printed
// why it failed.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func main() {
	// klog is global, so its logger is set here and not where a client is created. Commands return what it would
	// log as errors; serve sets its own logger.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var signaled atomic.Int32 // not the cause of ctx: net/http would return it as the error of a request
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		code := exitInterrupt
		if <-signals == syscall.SIGTERM {
			code = exitTerminate
		}
		signal.Reset() // a second signal ends the program at once
		signaled.Store(int32(code))
		cancel()
	}()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		code := fail(os.Stderr, err)
		if n := signaled.Load(); n != 0 {
			fmt.Fprintln(os.Stderr, "kubejoin: interrupted; what the command has done before remains")
			code = int(n)
		}
		os.Exit(code)
	}
}

// fail prints why a command failed, and returns the exit code. Package codes defines the exit codes of refusals.
func fail(w io.Writer, err error) int {
	if _, printed := err.(exitCode); !printed {
		fmt.Fprintln(w, "kubejoin:", sanitize(err.Error()))
	}
	var code exitCode
	var usage *usageError
	switch {
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage):
		fmt.Fprintf(w, "hint: %s --help\n", usage.command)
		return exitUsage
	}
	return cmp.Or(codes.Exits[reasonOf(err)], exitFailure)
}

// run runs the command in args. main adds signals and the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	return usageOf(cmd, err)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubejoin",
		Short: "The cluster side of kubeadm join",
		Long: `kubejoin is the cluster side of kubeadm join. It creates bootstrap tokens, signs
cluster-info with them, approves and signs the certificates of joining nodes, and
serves join commands over HTTPS.

Start standalone, without a cluster:
  kubejoin serve

Start on a cluster, instead of the bootstrap and CSR controllers of kube-controller-manager:
  kubejoin serve --kubeconfig admin.conf \
    --cluster-signing-cert-file ca.crt --cluster-signing-key-file ca.key \
    --token-auth-file operators.csv

` + whereHelp,
		Version:       versionText(buildVersion()),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err: flagError(cmd.Flags(), err)}
	})
	root.SetUsageFunc(usage)
	root.Flags().Bool("version", false, "print the version of kubejoin") // cobra would add -v as its short form, but -v means --verbosity
	root.PersistentFlags().Bool("quiet", false, "print no lines about progress on standard error")
	heading(root.PersistentFlags(), "Help flags")
	group := func(id string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: id + ":"})
		for _, c := range commands {
			c.GroupID = id
		}
		root.AddCommand(commands...)
	}
	const run = "Run kubejoin"
	group("Let machines join", strict(tokenCommand(), machineCommand(), claimCommand(), kubeconfigCommand(), certsCommand())...)
	group("Find out why", strict(timelineCommand(), consoleCommand(), explainCommand(), doctorCommand(), issuedCommand())...)
	group("Get and revoke certificates", strict(signCommand(), rejoinCommand(), revokeCommand(), caCommand(), hostCommand())...)
	group(run, strict(signerCommand(), signerConfigCommand(), tokenLimitsCommand(), webhookConfigCommand(), authorizationConfigCommand(), manifestCommand(), storeCommand())...)
	serve := serveCommand() // not strict: some flags are kube-controller-manager's and may be empty
	serve.GroupID = run
	completeChoices(serve)
	root.AddCommand(serve)
	group("Other commands", strict(versionCommand())...)
	root.SetHelpCommandGroupID("Other commands")
	root.SetCompletionCommandGroupID("Other commands")
	strictBuiltins(root)
	return root
}
