// Command bench compares kubejoin with kube-controller-manager: 'make bench'. It runs them in turn on one
// control plane with the same work, and prints the times and resources as a Markdown table.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// sizes are the amounts of work.
type sizes struct {
	rounds  int
	csrs    int
	tokens  []int
	clients int // clients that request join commands at the same time
	entries int // entries of the issuance record in etcd
	stock   int // CSRs per burst for kube-controller-manager with its default limits
	signs   int // certificates of each kind to request over HTTPS
	slow    int // CSRs per burst with a slow API server

	// For the subject memory: number of waiting requests, numbers of Nodes to measure in turn, and the pause before a
	// measurement.
	waiting int
	nodes   []int
	settle  time.Duration
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	program := flags.String("kubejoin", "bin/kubejoin", "the kubejoin to measure")
	rounds := flags.Int("rounds", 0, "how often each is measured; the table has the medians; 0 is 5 for csr alone, and otherwise 3")
	csrs := flags.Int("csrs", 2000, "certificate requests of a burst")
	list := flags.String("tokens", "500,5000,12000", "tokens of each burst")
	entries := flags.Int("entries", 1_000_000, "entries of the issuance record in etcd")
	only := flags.String("only", "", "subjects to measure: "+strings.Join(subjects, ", ")+"; empty is all but memory")
	against := flags.String("against", "kubejoin,kcm,stock", "whom to measure")
	quick := flags.Bool("quick", false, "one round of small bursts, to see that it works")
	into := flags.String("into", "", "files, separated by commas, to write the table into, between the lines '"+figuresBegin+"' and '"+figuresEnd+"'; only the main rows after the line '"+headlinesBegin+"'")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rounds == 0 {
		*rounds = 3
		if *only == "csr" {
			*rounds = 5
		}
	}
	s := sizes{
		rounds: *rounds, csrs: *csrs, clients: 32, entries: *entries, stock: 200, signs: 20_000, slow: 500,
		waiting: 20_000, nodes: []int{20_000, 100_000}, settle: 30 * time.Second,
	}
	if *quick {
		s = sizes{
			rounds: 1, csrs: 200, clients: 32, entries: 10_000, stock: 50, signs: 1000, slow: 50,
			waiting: 500, nodes: []int{500, 2000}, settle: 3 * time.Second,
		}
		*list = "200"
	}
	for text := range strings.SplitSeq(*list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("invalid -tokens %q: want numbers from 1, separated by commas", *list)
		}
		s.tokens = append(s.tokens, n)
	}
	for subject := range strings.SplitSeq(*only, ",") {
		if *only != "" && !slices.Contains(subjects, subject) {
			return fmt.Errorf("invalid -only %q: want a list of %s", *only, strings.Join(subjects, ","))
		}
	}
	if s.rounds < 1 || s.csrs < 1 || s.entries < 1 {
		return errors.New("invalid -rounds, -csrs or -entries: want at least 1")
	}
	binary, err := filepath.Abs(*program)
	if err != nil {
		return err
	}
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("kubejoin is missing; build it with 'make build': %w", err)
	}
	b := &bench{sizes: s, kubejoin: binary, only: *only, against: *against, progress: stderr, report: &report{}}
	began := time.Now()
	if err := b.run(ctx); err != nil {
		return err
	}
	var table bytes.Buffer
	b.report.print(&table, b.rounds, time.Since(began))
	if _, err := stdout.Write(table.Bytes()); err != nil || *into == "" {
		return err
	}
	for file := range strings.SplitSeq(*into, ",") {
		if err := b.report.replaceFigures(file, table.Bytes(), b.rounds); err != nil {
			return err
		}
	}
	return nil
}

var subjects = []string{"csr", "tokens", "join", "start", "certificate", "store", "record", "memory"}

// A bench is one run.
type bench struct {
	sizes
	kubejoin string
	only     string
	against  string
	progress io.Writer
	report   *report

	cluster  *cluster.Cluster
	identity string // kubeconfig of kubejoin's service account
	info     *clusterInfo
	load     []client
	creation time.Duration // time to create the tokens of the last burst
}

// wants reports whether to measure a subject. Memory needs about 11 GB for the API server, so it runs only if the flag
// names it.
func (b *bench) wants(subject string) bool {
	return b.only == "" && subject != "memory" || strings.Contains(","+b.only+",", ","+subject+",")
}

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.progress, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

func (b *bench) run(ctx context.Context) error {
	b.defineRows()
	for _, one := range []struct {
		subject string
		measure func(context.Context) error
	}{
		{"certificate", inDir(b.signCertificates)}, {"store", inDir(b.measureStores)}, {"record", inDir(b.measureRecord)}, {"memory", b.measureMemory},
	} {
		if b.wants(one.subject) {
			if err := one.measure(ctx); err != nil {
				return err
			}
		}
	}
	if !slices.ContainsFunc([]string{"csr", "tokens", "join", "start"}, b.wants) {
		return nil
	}
	return b.onCluster(ctx, b.runRounds)
}

// inDir runs a measurement with a temporary folder.
func inDir(measure func(ctx context.Context, dir string) error) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		dir, err := os.MkdirTemp("", "kubejoin-bench-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		return measure(ctx, dir)
	}
}

// onCluster starts a control plane that has the rights of kubejoin, calls do, and stops it.
func (b *bench) onCluster(ctx context.Context, do func(context.Context) error) error {
	c, err := cluster.Start(ctx, cluster.Options{Progress: b.progress})
	if err != nil {
		return err
	}
	b.cluster = c
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop() // stop the watches first
		if err := c.Close(); err != nil {
			b.say("closing the control plane: %v", err)
		}
	}()
	if err := b.deploy(ctx); err != nil {
		return err
	}
	if err := b.connect(ctx); err != nil {
		return err
	}
	return do(ctx)
}

func (b *bench) runRounds(ctx context.Context) error {
	for round := range b.rounds {
		order := []contender{ours, theirs}
		if round%2 == 1 { // alternate, because the second run has an etcd with more history
			order = []contender{theirs, ours}
		}
		order = append(order, stock)
		for _, who := range order {
			if !strings.Contains(","+b.against+",", ","+who.flag()+",") {
				continue
			}
			b.say("round %d of %d: %s", round+1, b.rounds, who)
			if err := b.measure(ctx, who, round); err != nil {
				return fmt.Errorf("%s, round %d: %w", who, round+1, err)
			}
			if !b.wants("csr") || who == stock {
				continue
			}
			if err := b.slowBursts(ctx, who); err != nil {
				return fmt.Errorf("%s, slow API server, round %d: %w", who, round+1, err)
			}
		}
	}
	return nil
}

// deploy applies kubejoin's RBAC and the admission policy that limits kubejoin, as users do.
func (b *bench) deploy(ctx context.Context) (err error) {
	b.identity, err = b.cluster.InstallRights(ctx)
	return err
}

// measure runs all work of a round with one contender, which it starts as a new process.
func (b *bench) measure(ctx context.Context, who contender, round int) (err error) {
	p, err := b.start(ctx, who)
	if err != nil {
		return err
	}
	defer p.end(&err)
	if b.wants("csr") {
		for _, load := range csrLoads(b.csrs) {
			if load.limit > 0 && who != ours { // the others do not enforce limits
				continue
			}
			if err := b.csrBurst(ctx, who, p, load); err != nil {
				return err
			}
		}
	}
	if b.wants("tokens") {
		for _, n := range b.tokens {
			if err := b.tokenBurst(ctx, who, p, n); err != nil {
				return err
			}
			if n <= 500 || who != stock { // stock would take minutes, because it deletes only 20 tokens a second
				if err := b.expire(ctx, who, p, n); err != nil {
					return err
				}
			}
		}
	}
	if b.wants("join") && who != stock {
		return b.joinCommands(ctx, who, p)
	}
	return nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
