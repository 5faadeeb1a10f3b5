// Command kubejoin is the cluster side of kubeadm join: it mints bootstrap tokens, signs
// cluster-info with them, approves and signs the certificates of joining nodes, and returns
// the join command over HTTPS. Run kubejoin --help.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// An exitCode is the exit code of a command that has already printed why it failed.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func main() {
	// klog is global, so its logger is set here and not where a client is created. Commands return what it would
	// log as errors; serve sets its own logger.
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		var code exitCode
		if errors.As(err, &code) {
			os.Exit(int(code))
		}
		fmt.Fprintln(os.Stderr, "kubejoin:", sanitize(err.Error()))
		var usage *usageError
		if errors.As(err, &usage) {
			fmt.Fprintf(os.Stderr, "hint: %s --help\n", usage.command)
			os.Exit(exitUsage)
		}
		os.Exit(exitFailure)
	}
}

// sanitize makes untrusted text safe for a terminal and redacts the secrets of tokens. It keeps line breaks.
func sanitize(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = safetext.Printable(safetext.Redact(line))
	}
	return strings.Join(lines, "\n")
}

// usageError is an invalid command line. It makes kubejoin print a hint and exit with code 2.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// run runs the command in args. main adds signals and the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return root.ExecuteContext(ctx)
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
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{command: cmd.CommandPath(), err: flagError(err)}
	})
	root.SetUsageFunc(usage)
	group := func(id string, commands ...*cobra.Command) {
		root.AddGroup(&cobra.Group{ID: id, Title: id + ":"})
		for _, c := range commands {
			c.GroupID = id
		}
		root.AddCommand(commands...)
	}
	const run = "Run kubejoin"
	group("Let machines join", strict(tokenCommand(), claimCommand(), kubeconfigCommand(), certsCommand())...)
	group("Find out why", strict(explainCommand(), doctorCommand(), issuedCommand())...)
	group("Get and revoke certificates", strict(signCommand(), rejoinCommand(), revokeCommand(), caCommand(), hostCommand())...)
	group(run, strict(signerCommand(), signerConfigCommand(), webhookConfigCommand(), authorizationConfigCommand(), manifestCommand(), storeCommand())...)
	serve := serveCommand() // not strict: some flags are kube-controller-manager's and may be empty
	serve.GroupID = run
	root.AddCommand(serve)
	group("Other commands", strict(versionCommand())...)
	root.SetHelpCommandGroupID("Other commands")
	root.SetCompletionCommandGroupID("Other commands")
	strictBuiltins(root)
	return root
}

// maxWord is the longest unknown command that an error repeats. The secret of a token is longer.
const maxWord = 15

// noArgs refuses positional arguments. An argument may be a token, so the error repeats only a short word, or one that
// is close to the name of a command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		var names []string
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				names = append(names, c.Name())
			}
		}
		cmd.SuggestionsMinimumDistance = 2
		word, nearest := "", cmd.SuggestionsFor(args[0])
		if len(nearest) > 0 || len(args[0]) <= maxWord {
			word = fmt.Sprintf(" %q", args[0])
		}
		if len(nearest) > 0 {
			names = nearest
		}
		return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("unknown command%s for %q; want %s", word, cmd.CommandPath(), oneOf(names))}
	}
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("%q takes only flags, no arguments: %d given", cmd.CommandPath(), len(args))}
}

// oneOf lists names, of which one is expected.
func oneOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return "one of " + strings.Join(names, ", ")
}

// strictBuiltins makes cobra's commands completion and help refuse unknown arguments. By default they print help and
// exit with code 0.
func strictBuiltins(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args = noArgs
			cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range cmd.Commands() {
				shell.Args = noArgs
			}
		case "help":
			cmd.Args = cobra.ArbitraryArgs
			cmd.Run = nil
			cmd.RunE = func(_ *cobra.Command, args []string) error { return help(root, args) }
		}
	}
}

// help prints the help of the command that args name.
func help(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	switch {
	case err != nil:
		return &usageError{command: root.CommandPath(), err: err}
	case len(rest) == 0:
		return cmd.Help()
	case cmd.HasSubCommands():
		return noArgs(cmd, rest)
	}
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("%q has no subcommands: %d more arguments given", cmd.CommandPath(), len(rest))}
}

// release is set by the Makefile from git: -ldflags "-X main.release=v1.2.3 -X main.commit=…".
var release, commit string

func buildVersion() api.Version {
	v := api.Version{Version: release, Commit: commit, GoVersion: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if v.Version == "" {
		v.Version = "devel"
		if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
			v.Version = info.Main.Version // go install …@version
		}
	}
	return v
}

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of kubejoin",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildVersion()
			switch output {
			case "text":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "kubejoin %s (%s, %s)\n", v.Version, v.GoVersion, v.Platform)
				return err
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("--output: %q given, want text or json", output)}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	heading(cmd.Flags(), "Output flags", "output")
	return cmd
}
