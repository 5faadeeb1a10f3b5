// Command kubejoin is the cluster side of kubeadm join: it mints bootstrap tokens, signs
// cluster-info with them, approves and signs the certificates of joining nodes, and returns
// the join command over HTTPS. Run kubejoin --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/internal/foreign"
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
		lines[i] = foreign.Printable(foreign.Redact(line))
	}
	return strings.Join(lines, "\n")
}
