// Command suite runs the tests of kubejoin in stages: 'make test' and 'make e2e'.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/test/cluster"
)

const usage = `suite runs the tests of kubejoin, from the root of the repository:

  suite test              what needs Go, make and git alone
  suite e2e [flags]       what needs Kubernetes, root and other programs
  suite commits           check the messages of the commits that the main branch does not have
  suite missing-packages  print the Debian packages that 'suite e2e' lacks

Flags of e2e:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("suite", flag.ExitOnError)
	core := flags.Bool("core", false, "run one test for each promise instead of all tests")
	only := flags.String("only", "", "run one stage, or the tests of one folder below test/")
	pattern := flags.String("run", "", "with -only: run the tests that match this regular expression")
	flags.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flags.PrintDefaults()
	}
	if len(args) == 0 {
		flags.Usage()
		os.Exit(2)
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() > 0 || args[0] != "e2e" && flags.NFlag() > 0 {
		return fmt.Errorf("unexpected arguments %q", args[1:])
	}
	root, err := cluster.Repository()
	if err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	switch args[0] {
	case "test":
		stages, err := fastStages(ctx)
		if err != nil {
			return err
		}
		return runStages(ctx, "test", stages)
	case "e2e":
		if *pattern != "" && *only == "" {
			return errors.New("RUN needs ONLY: want for example make e2e ONLY=join RUN=TestTwoNodesJoinAtOnce")
		}
		stages, err := e2eStages(ctx, *core)
		if err != nil {
			return err
		}
		if *only != "" {
			if stages, err = selectStages(stages, *only, *pattern); err != nil {
				return err
			}
		}
		printMissing(os.Stdout, missing())
		if err := printSpace(os.Stdout, os.TempDir()); err != nil {
			return err
		}
		return runStages(ctx, "e2e", stages)
	case "commits":
		return checkCommits(ctx, os.Stdout)
	case "missing-packages":
		fmt.Println(strings.Join(packagesOf(missing()), " "))
		return nil
	}
	return fmt.Errorf("unknown command %q: want test, e2e, commits or missing-packages", args[0])
}
