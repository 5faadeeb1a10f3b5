// Command mutate switches off one guard at a time, and reports each guard whose loss no test notices: 'make mutate'.
//
// It compiles each test once, from sources in which each guard can be switched off: cond becomes ((cond) && mutant(7)). The
// environment variable KUBEJOIN_MUTANT=7 then switches off guard 7. The compiler gets the sources with -overlay, so the
// work tree does not change. For each guard, only tests that reach it run, so each test must also pass if it runs alone.
package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	explainedFile = "test/mutate/explained.txt"
	// guarded are the packages whose guards are switched off, and whose tests run.
	guarded = "./tokens/... ./clusterinfo/mint/... ./signer/... ./server/... ./internal/web/httplimit/... ./internal/web/..."
)

//go:embed mutant.go.txt
var mutantSource string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("mutate", flag.ExitOnError)
	only := flags.String("only", guarded, "packages whose guards to switch off")
	tests := flags.String("tests", guarded, "packages whose tests to run")
	pattern := flags.String("run", ".", "tests to run, as for 'go test'")
	workers := flags.Int("workers", 2, "guards to switch off at the same time")
	limit := flags.Duration("limit", 3*time.Minute, "longest run of one package's tests with a guard off")
	verbose := flags.Bool("v", false, "print the test that noticed each guard, too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	guards, err := instrument(ctx, dir, strings.Fields(*only))
	if err != nil {
		return err
	}
	explained, err := os.ReadFile(explainedFile)
	if err != nil {
		return err
	}
	stale, err := explain(guards, string(explained))
	if err != nil {
		return err
	}
	binaries, err := compile(ctx, dir, guards, strings.Fields(*tests))
	if err != nil {
		return err
	}
	err = each(ctx, *workers, binaries, func(b *binary, ctx context.Context) error { return b.reach(ctx, *pattern) })
	if err != nil {
		return err
	}
	slices.SortFunc(binaries, func(a, b *binary) int { return cmp.Compare(a.took, b.took) })
	err = each(ctx, *workers, guards, func(g *guard, ctx context.Context) error {
		if err := g.test(ctx, binaries, *limit); err != nil || g.reason != "" || g.killer != "" && !*verbose {
			return err
		}
		fmt.Println(g)
		return nil
	})
	if err != nil {
		return err
	}
	return report(guards, stale)
}

// each calls f for all items, at most n at the same time.
func each[T any](ctx context.Context, n int, items []T, f func(T, context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(n)
	for _, item := range items {
		group.Go(func() error { return f(item, ctx) })
	}
	return group.Wait()
}

// listed has the fields of a package that 'go list' prints.
type listed struct {
	Dir, ImportPath, Name  string
	GoFiles, Imports, Deps []string
}

func list(ctx context.Context, args ...string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=Dir,ImportPath,Name,GoFiles,Imports,Deps"}, args...)...)
	cmd.Stderr = os.Stderr
	printed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []listed
	for d := json.NewDecoder(bytes.NewReader(printed)); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// instrument finds the guards of packages, and writes overlay.json with sources in which they can be switched off.
func instrument(ctx context.Context, dir string, patterns []string) ([]*guard, error) {
	packages, err := list(ctx, patterns...)
	if err != nil {
		return nil, err
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	var guards []*guard
	overlay := map[string]string{}
	replace := func(path, source string) error {
		overlay[path] = filepath.Join(dir, strconv.Itoa(len(overlay))+".go")
		return os.WriteFile(overlay[path], []byte(source), 0o600)
	}
	for _, p := range packages {
		if slices.Contains(p.Imports, "testing") { // a package for tests only
			continue
		}
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			file, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			source, found, err := guardsOf(path, len(guards)+1)
			if err != nil {
				return nil, err
			}
			for _, g := range found {
				g.file, g.pkg = filepath.ToSlash(file), p.ImportPath
			}
			guards = append(guards, found...)
			if err := replace(path, source); err != nil {
				return nil, err
			}
		}
		if err := replace(filepath.Join(p.Dir, "kubejoin_mutant.go"), "package "+p.Name+"\n\n"+mutantSource); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return nil, err
	}
	return guards, os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o600)
}

// A binary is the compiled tests of one package.
type binary struct {
	pkg, dir, path string
	took           time.Duration
	reached        map[int][]string // the tests that reach each guard; ".*" means all tests
	slow           map[string]bool  // the tests that take more than a second
	failing        []string         // the tests that fail with every guard on
}

// compile compiles the tests of all packages that use a package with guards.
func compile(ctx context.Context, dir string, guards []*guard, patterns []string) ([]*binary, error) {
	packages, err := list(ctx, append([]string{"-test"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	have := map[string]bool{}
	for _, g := range guards {
		have[g.pkg] = true
	}
	var binaries []*binary
	for _, p := range packages {
		pkg, isTest := strings.CutSuffix(p.ImportPath, ".test")
		if !isTest || !slices.ContainsFunc(p.Deps, func(dep string) bool { return have[strings.Fields(dep)[0]] }) {
			continue
		}
		b := &binary{pkg: pkg, dir: p.Dir, path: filepath.Join(dir, strconv.Itoa(len(binaries)), path.Base(pkg)+".test")}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", filepath.Join(dir, "overlay.json"), "-o", b.path, pkg)
		if printed, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go test -c %s: %w\n%s", pkg, err, printed)
		}
		binaries = append(binaries, b)
	}
	return binaries, nil
}

// run runs tests, and returns what they print.
func (b *binary) run(ctx context.Context, limit time.Duration, variable string, args ...string) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "m")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	limited, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(limited, b.path, append(args, "-test.v", "-test.timeout="+limit.String())...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = b.dir, append(os.Environ(), "TMPDIR="+tmp, variable), 5*time.Second
	printed, err := cmd.CombinedOutput()
	return printed, cmp.Or(ctx.Err(), err)
}

var (
	finished = regexp.MustCompile(`(?m)^--- (PASS|FAIL): (\S+) \((\S+)\)$`)
	failed   = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
)

// reach runs tests with every guard on, and records which test reaches which guard.
func (b *binary) reach(ctx context.Context, pattern string) error {
	file, start := b.path+".reached", time.Now()
	printed, failure := b.run(ctx, 15*time.Minute, "KUBEJOIN_MUTANT_REACHED="+file, "-test.run="+pattern)
	b.took, b.reached, b.slow = time.Since(start), map[int][]string{}, map[string]bool{}
	for _, f := range finished.FindAllSubmatch(printed, -1) {
		d, err := time.ParseDuration(string(f[3]))
		if err != nil {
			return err
		}
		b.slow[string(f[2])] = d > time.Second
		if string(f[1]) == "FAIL" {
			b.failing = append(b.failing, string(f[2]))
		}
	}
	if failure != nil && len(b.failing) == 0 || ctx.Err() != nil {
		return fmt.Errorf("%s fails with every guard on: %w\n%s", b.pkg, failure, printed)
	}
	reached, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(reached)) {
		var n int
		var test string
		if _, err := fmt.Sscan(line, &n, &test); err != nil {
			return err
		}
		b.reached[n] = append(b.reached[n], test)
	}
	fmt.Printf("%s: %.0f s, reaches %d guards", b.pkg, b.took.Seconds(), len(b.reached))
	if len(b.failing) > 0 {
		fmt.Printf(", left out because they fail with every guard on: %s", b.failing)
	}
	fmt.Println()
	return nil
}

// test switches off a guard, and runs the tests that reach it until one fails. Tests of the guard's own package run first,
// and in each package the quick tests first, because one of them is enough for most guards.
func (g *guard) test(ctx context.Context, binaries []*binary, limit time.Duration) error {
	if g.reason != "" {
		return nil
	}
	own := slices.IndexFunc(binaries, func(b *binary) bool { return b.pkg == g.pkg })
	order := slices.Clone(binaries)
	if own >= 0 {
		order = slices.Insert(slices.Delete(order, own, own+1), 0, binaries[own])
	}
	for _, b := range order {
		reached := b.reached[g.number]
		quick := slices.DeleteFunc(slices.Clone(reached), func(test string) bool {
			slow, known := b.slow[test]
			return slow || !known
		})
		if len(quick) == len(reached) {
			quick = nil
		}
		for _, tests := range [][]string{quick, reached} {
			if len(tests) == 0 {
				continue
			}
			g.reached = true
			printed, err := b.run(ctx, min(limit, 3*b.took+20*time.Second), fmt.Sprintf("KUBEJOIN_MUTANT=%d", g.number), "-test.failfast",
				"-test.run=^("+strings.Join(tests, "|")+")$", "-test.skip=^("+strings.Join(b.failing, "|")+")$")
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				g.killer = fmt.Sprintf("%s: %v", b.pkg, err)
				if f := failed.FindSubmatch(printed); f != nil {
					g.killer = fmt.Sprintf("%s: %s", b.pkg, f[1])
				}
				return nil
			}
		}
	}
	return nil
}

// report prints the stale lines of the explanations, and how many guards no test has noticed. It returns an error if there
// are any.
func report(guards []*guard, stale []string) error {
	explained, survivors := 0, 0
	for _, g := range guards {
		if g.reason != "" {
			explained++
		} else if g.killer == "" {
			survivors++
		}
	}
	fmt.Printf("%d guards: %d noticed by a test, %d explained, %d survived\n", len(guards), len(guards)-explained-survivors, explained, survivors)
	for _, line := range stale {
		fmt.Printf("%s: there is no guard %s\n", explainedFile, line)
	}
	switch {
	case survivors > 0:
		return fmt.Errorf("no test notices the loss of %d guards: test them, or put the reason why nobody can into %s", survivors, explainedFile)
	case len(stale) > 0:
		return fmt.Errorf("%s: %d lines name no guard: remove or mend them", explainedFile, len(stale))
	}
	return nil
}

// explain reads the reasons of guards from text: one or more lines with guards, and then an indented line with their
// reason. explain returns the lines of instrumented packages that match no guard.
func explain(guards []*guard, text string) (stale []string, err error) {
	byKey, folders := map[string]*guard{}, map[string]bool{}
	for _, g := range guards {
		byKey[g.key()], folders[path.Dir(g.file)] = g, true
	}
	var about []*guard
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		if line[0] == '\t' || line[0] == ' ' {
			for _, g := range about {
				g.reason = trimmed
			}
			about = nil
			continue
		}
		file, _, _ := strings.Cut(trimmed, ":")
		if g := byKey[trimmed]; g != nil {
			about = append(about, g)
		} else if folders[path.Dir(file)] {
			stale = append(stale, trimmed)
		}
	}
	if len(about) > 0 {
		return nil, fmt.Errorf("%s: no reason for %s", explainedFile, about[0].key())
	}
	return stale, nil
}
