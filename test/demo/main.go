// Command demo joins a real node to a real cluster through kubejoin, all on this machine, and keeps it running: 'make
// demo'. With -cluster it creates a whole cluster with containers, and removes it at the end: 'make demo-cluster'. With -ha
// it runs three kubejoins on three etcd members, without Kubernetes: 'make run-ha'. With -build it only builds the
// programs.
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
		if ctx.Err() != nil { // Ctrl-C
			fmt.Println("\nstopped")
			return
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ExitOnError)
	build := flags.Bool("build", false, "build the programs of test/kube, test/containers, test/etcdctl and test/specs, and exit")
	whole := flags.Bool("cluster", false, "make a whole cluster with kubeadm init, and remove it at the end")
	ha := flags.Bool("ha", false, "run three kubejoins on three etcd members, without Kubernetes and without root")
	program := flags.String("kubejoin", "bin/kubejoin", "path of the kubejoin binary")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *build {
		for _, build := range []func(context.Context, io.Writer) (string, error){cluster.Build, cluster.BuildContainers, cluster.BuildEtcdctl, cluster.BuildSpecs} {
			if _, err := build(ctx, out); err != nil {
				return err
			}
		}
		return nil
	}
	if os.Geteuid() != 0 && !*ha {
		return errors.New("the demo needs root for namespaces: run it with sudo env \"PATH=$PATH\"")
	}
	kubejoin, err := filepath.Abs(*program)
	if err != nil {
		return err
	}
	if _, err := os.Stat(kubejoin); err != nil {
		return fmt.Errorf("kubejoin binary not found, run 'make build' first: %w", err)
	}
	if *ha {
		return demoHA(ctx, kubejoin, out)
	}
	if *whole {
		return demoCluster(ctx, kubejoin, out)
	}
	return demo(ctx, kubejoin, out)
}
