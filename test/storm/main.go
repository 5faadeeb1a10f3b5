// Command storm lets thousands of simulated machines join a real control plane at once, while a leader of kubejoin dies
// and a network is partitioned: 'make storm'. It fails if a machine is lost, a name is taken twice, or a token admits
// more nodes than its limit.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // otherwise client-go logs each connection that the storm breaks
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "storm:", err)
		os.Exit(1)
	}
}

// manyMachines is the number of machines above which they send no heartbeats by default, because heartbeats keep one
// connection per machine open.
const manyMachines = 2000

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var o options
	flags := flag.NewFlagSet("storm", flag.ExitOnError)
	flags.StringVar(&o.kubejoin, "kubejoin", "bin/kubejoin", "kubejoin to run")
	flags.IntVar(&o.machines, "machines", 1000, "machines that join")
	flags.IntVar(&o.replicas, "replicas", 3, "replicas of kubejoin")
	flags.StringVar(&o.tokens, "tokens", "both", "each: a token for each machine; one: a token for up to 1000 machines; both: half of the machines each")
	flags.StringVar(&o.keys, "keys", "P-256", "kinds of keys, which machines use in turn: P-256, P-384, RSA-2048, RSA-4096")
	flags.DurationVar(&o.ramp, "ramp", 0, "time within which the machines power on")
	flags.IntVar(&o.atOnce, "at-once", 1000, "machines between power-on and Ready at one time; others power on later")
	flags.DurationVar(&o.heartbeat, "heartbeat", 10*time.Second, "pause between heartbeats of a Ready machine; 0: none (default above 2000 machines)")
	flags.DurationVar(&o.down, "down", 5*time.Second, "when a third is Ready: time between the SIGKILL of the leader and its restart; 0: no kill")
	flags.DurationVar(&o.partition, "partition", 10*time.Second, "when two thirds are Ready: time for which the leader does not reach the API server; 0: no partition")
	flags.DurationVar(&o.rejoin, "rejoin-window", 0, "--rejoin-window of kubejoin; 0: off")
	flags.IntVar(&o.revoked, "revoked", 0, "other machines that are revoked before")
	flags.DurationVar(&o.timeout, "timeout", 2*time.Hour, "time after which machines that are not Ready are lost")
	format := flags.String("o", "text", "output format: text or json")
	plot := flags.String("plot", "dist/storm.svg", "file for the plot of Ready machines over time; empty: none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *format != "text" && *format != "json" {
		return fmt.Errorf("invalid -o %q: want text or json", *format)
	}
	o.progress = stderr
	chosen := map[string]string{}
	flags.Visit(func(f *flag.Flag) { chosen[f.Name] = f.Value.String() })
	if o.machines > manyMachines && chosen["heartbeat"] == "" {
		o.heartbeat = 0
	}
	flags.VisitAll(func(f *flag.Flag) { chosen[f.Name] = f.Value.String() })
	r, err := storm(ctx, o)
	if err != nil {
		return err
	}
	r.Flags = chosen
	if *plot != "" {
		var svg bytes.Buffer
		r.plot(&svg)
		if err := errors.Join(os.MkdirAll(filepath.Dir(*plot), 0o755), os.WriteFile(*plot, svg.Bytes(), 0o644)); err != nil {
			return err
		}
	}
	if *format == "json" {
		lines := json.NewEncoder(stdout)
		lines.SetIndent("", "  ")
		if err := lines.Encode(r); err != nil {
			return err
		}
	} else {
		r.print(stdout)
	}
	if n := len(r.Problems); n > 0 {
		return fmt.Errorf("%d lost machines, double names and nodes over a limit, want none", n)
	}
	return nil
}
