// Command demo joins a real node to a real cluster through kubejoin, on this machine alone, and
// leaves it running: 'make demo'. With -build it only makes the programs that this takes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/kubejoin/kubejoin/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if ctx.Err() != nil { // Ctrl-C on the way
			fmt.Println("\nstopped")
			return
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	build := flags.Bool("build", false, "make the programs of test/kube and stop")
	program := flags.String("kubejoin", "bin/kubejoin", "the kubejoin to show")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *build {
		_, err := cluster.Build(ctx, out)
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("a node that joins needs root, for mount namespaces: sudo env \"PATH=$PATH\" make demo")
	}
	kubejoin, err := filepath.Abs(*program)
	if err != nil {
		return err
	}
	if _, err := os.Stat(kubejoin); err != nil {
		return fmt.Errorf("no kubejoin to show, run 'make build' first: %w", err)
	}
	return demo(ctx, kubejoin, out)
}
