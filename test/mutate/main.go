// Command mutate switches guards off, one at a time, and reports those that no test misses: 'make mutate'.
//
// It builds each test once, from sources in which every guard asks for its number: cond becomes
// (cond) && mutant(7). The environment variable KUBEJOIN_MUTANT then switches a guard off. The sources go in
// with -overlay, so the work tree does not change.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutate", flag.ExitOnError)
	only := flags.String("only", "./tokens/... ./signer/... ./server/...", "packages whose guards to switch off")
	tests := flags.String("tests", "./tokens/... ./signer/... ./server/...", "packages whose tests to run")
	workers := flags.Int("workers", 2, "mutants to test at the same time")
	limit := flags.Duration("limit", 3*time.Minute, "time limit of each mutant in each package")
	list := flags.Bool("list", false, "list the guards and run nothing")
	verbose := flags.Bool("v", false, "print the test that kills each mutant")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	m := &mutation{dir: dir, limit: *limit, out: out, verbose: *verbose}
	if err := m.instrument(ctx, strings.Fields(*only)); err != nil {
		return err
	}
	explained, err := readExplained("test/mutate/explained.txt")
	if err != nil {
		return err
	}
	if err := m.explain(explained); err != nil {
		return err
	}
	if *list {
		for _, g := range m.guards {
			fmt.Fprintln(out, g)
		}
		return nil
	}
	binaries, err := m.build(ctx, strings.Fields(*tests))
	if err != nil {
		return err
	}
	if err := each(*workers, binaries, func(b *binary) error { return m.reach(ctx, b) }); err != nil {
		return err
	}
	slices.SortFunc(binaries, func(a, b *binary) int { return cmp.Compare(a.took, b.took) })
	if err := each(*workers, m.guards, func(g *guard) error { return m.test(ctx, g, binaries) }); err != nil {
		return err
	}
	return m.report()
}

// each calls f for all items, n at the same time, and returns the errors.
func each[T any](n int, items []T, f func(T) error) error {
	next := make(chan T)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for item := range next {
				errs[i] = errors.Join(errs[i], f(item))
			}
		})
	}
	for _, item := range items {
		next <- item
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// A mutation is one run of the program.
type mutation struct {
	dir     string
	limit   time.Duration
	verbose bool
	overlay map[string]string
	guards  []*guard

	mu  sync.Mutex
	out io.Writer
}

// pkg is what 'go list' prints of a package.
type pkg struct {
	Dir, ImportPath, Name, ForTest string
	GoFiles, Imports, Deps         []string
}

func list(ctx context.Context, args ...string) ([]pkg, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=Dir,ImportPath,Name,ForTest,GoFiles,Imports,Deps"}, args...)...)
	cmd.Stderr = os.Stderr
	listed, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(listed)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// instrument finds the guards of packages and writes the sources that can switch them off.
func (m *mutation) instrument(ctx context.Context, patterns []string) error {
	packages, err := list(ctx, patterns...)
	if err != nil {
		return err
	}
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	m.overlay = map[string]string{}
	for _, p := range packages {
		if slices.Contains(p.Imports, "testing") { // a package for tests
			continue
		}
		before := len(m.guards)
		for _, name := range p.GoFiles {
			path := filepath.Join(p.Dir, name)
			file, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			source, guards, err := guardsOf(path, len(m.guards)+1)
			if err != nil {
				return err
			}
			for _, g := range guards {
				g.file, g.pkg = filepath.ToSlash(file), p.ImportPath
			}
			m.guards = append(m.guards, guards...)
			if err := m.replace(path, source); err != nil {
				return err
			}
		}
		if len(m.guards) > before {
			if err := m.replace(filepath.Join(p.Dir, "kubejoin_mutant.go"), []byte("package "+p.Name+mutantSource)); err != nil {
				return err
			}
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": m.overlay})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.dir, "overlay.json"), overlay, 0o600)
}

func (m *mutation) replace(path string, source []byte) error {
	m.overlay[path] = filepath.Join(m.dir, fmt.Sprintf("%d.go", len(m.overlay)))
	return os.WriteFile(m.overlay[path], source, 0o600)
}

// mutantSource is what a package gets. In a run with KUBEJOIN_MUTANT_REACHED mutant writes its number and the
// test that has called it to that file, once for each test. A call from another goroutine than the
// test's counts for all tests that are running; after many of those, for every test (".*").
const mutantSource = `

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

var (
	kubejoinMutant, _ = strconv.Atoi(os.Getenv("KUBEJOIN_MUTANT"))
	kubejoinReached   = os.Getenv("KUBEJOIN_MUTANT_REACHED")
	kubejoinMutex     sync.Mutex
	kubejoinLines     = map[string]bool{}
	kubejoinDumps     = map[int]int{}
	kubejoinTest      = regexp.MustCompile("_test\\.((?:Test|Fuzz|Example)\\w*)|/[^/. ]*\\.((?:Test|Fuzz|Example)[A-Z0-9_]\\w*)")
)

func mutant(n int) bool {
	if kubejoinReached == "" {
		return n != kubejoinMutant
	}
	var callers [100]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	var tests []string
	for more := true; more && len(tests) == 0; {
		var frame runtime.Frame
		if frame, more = frames.Next(); strings.HasSuffix(frame.File, "_test.go") {
			tests = kubejoinTest.FindAllString(frame.Function, -1)
		}
	}
	kubejoinMutex.Lock()
	defer kubejoinMutex.Unlock()
	if len(tests) == 0 && kubejoinDumps[n] < 20 {
		kubejoinDumps[n]++
		stacks := make([]byte, 1<<20)
		tests = kubejoinTest.FindAllString(string(stacks[:runtime.Stack(stacks, true)]), -1)
	}
	tests = slices.DeleteFunc(tests, func(test string) bool { return strings.HasSuffix(test, ".TestMain") })
	if len(tests) == 0 {
		tests = []string{"..*"}
	}
	for _, test := range tests {
		_, name, _ := strings.Cut(test, ".")
		line := fmt.Sprintf("%d %s\n", n, name)
		if kubejoinLines[line] {
			continue
		}
		kubejoinLines[line] = true
		if f, err := os.OpenFile(kubejoinReached, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600); err == nil {
			_, _ = f.WriteString(line)
			_ = f.Close()
		}
	}
	return true
}
`

// A binary is the compiled tests of one package.
type binary struct {
	pkg, dir, path string
	took           time.Duration
	reached        map[int][]string         // the tests that reach a guard; ".*" is all
	tests          map[string]time.Duration // how long each takes
	skip           []string                 // tests that fail anyway
}

// build compiles the tests of all packages that use a package with guards.
func (m *mutation) build(ctx context.Context, patterns []string) ([]*binary, error) {
	packages, err := list(ctx, append([]string{"-test"}, patterns...)...)
	if err != nil {
		return nil, err
	}
	var binaries []*binary
	for _, p := range packages {
		tested, isTest := strings.CutSuffix(p.ImportPath, ".test")
		if !isTest || !slices.ContainsFunc(p.Deps, func(dep string) bool {
			path, _, _ := strings.Cut(dep, " ")
			return slices.ContainsFunc(m.guards, func(g *guard) bool { return g.pkg == path })
		}) {
			continue
		}
		b := &binary{pkg: tested, dir: p.Dir, path: filepath.Join(m.dir, strconv.Itoa(len(binaries)), path.Base(tested)+".test")}
		cmd := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", filepath.Join(m.dir, "overlay.json"), "-o", b.path, tested)
		if text, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("go test -c %s: %w\n%s", tested, err, text)
		}
		if _, err := os.Stat(b.path); err == nil { // there are tests
			binaries = append(binaries, b)
		}
	}
	return binaries, nil
}

// run runs the tests of a binary, and returns what they print and their error.
func (m *mutation) run(ctx context.Context, b *binary, limit time.Duration, variable string, args ...string) ([]byte, error) {
	tmp, err := os.MkdirTemp("", "m")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	ctx, cancel := context.WithTimeout(ctx, limit+30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.path, append(args, "-test.v", "-test.timeout="+limit.String())...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = b.dir, append(os.Environ(), "TMPDIR="+tmp, variable), 5*time.Second
	return cmd.CombinedOutput()
}

// reach runs all tests of a binary with every guard on, and notes which tests reach which guard.
func (m *mutation) reach(ctx context.Context, b *binary) error {
	file := b.path + ".reached"
	start := time.Now()
	printed, err := m.run(ctx, b, 10*time.Minute, "KUBEJOIN_MUTANT_REACHED="+file)
	for _, f := range failed.FindAllSubmatch(printed, -1) {
		b.skip = append(b.skip, string(f[1]))
	}
	if err != nil && len(b.skip) == 0 || ctx.Err() != nil {
		return fmt.Errorf("%s fails with every guard on: %w\n%s", b.pkg, err, printed)
	} else if err != nil {
		m.print("%s: leaving out tests that fail with every guard on: %s\n", b.pkg, b.skip)
	}
	b.took, b.reached, b.tests = time.Since(start), map[int][]string{}, map[string]time.Duration{}
	for _, f := range passed.FindAllSubmatch(printed, -1) {
		if b.tests[string(f[1])], err = time.ParseDuration(string(f[2])); err != nil {
			return err
		}
	}
	content, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(content)) {
		number, test, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		b.reached[n] = append(b.reached[n], test)
	}
	m.print("%s: %.0f s, reaches %d guards\n", b.pkg, b.took.Seconds(), len(b.reached))
	return nil
}

var passed = regexp.MustCompile(`(?m)^--- PASS: (\S+) \((\S+)\)$`)
var failed = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
var cause = regexp.MustCompile(`(?m)^(--- FAIL: \S+|panic: .*|fatal error: .*)`)

// test switches one guard off, and runs the tests that reach it until one fails: those of its own package
// first.
func (m *mutation) test(ctx context.Context, g *guard, binaries []*binary) error {
	if g.reason != "" || ctx.Err() != nil {
		return ctx.Err()
	}
	binaries = slices.Clone(binaries)
	slices.SortStableFunc(binaries, func(a, b *binary) int {
		return cmp.Compare(slices.Index([]string{g.pkg}, b.pkg), slices.Index([]string{g.pkg}, a.pkg))
	})
	for _, b := range binaries {
		tests := b.reached[g.number]
		if len(tests) == 0 {
			continue
		}
		g.reached = true
		// The quick tests come first. One of them is enough for most guards.
		slow := func(test string) bool { d, known := b.tests[test]; return !known || d > time.Second }
		for _, tests := range [][]string{slices.DeleteFunc(slices.Clone(tests), slow), tests} {
			if len(tests) == 0 {
				continue
			}
			args := []string{"-test.failfast", "-test.run=^(" + strings.Join(tests, "|") + ")$", "-test.skip=^(" + strings.Join(b.skip, "|") + ")$"}
			printed, err := m.run(ctx, b, min(m.limit, 3*b.took+20*time.Second), fmt.Sprintf("KUBEJOIN_MUTANT=%d", g.number), args...)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				g.killed = true
				if m.verbose {
					m.print("killed %s\n\tby %s %s\n", g, b.pkg, cause.Find(printed))
				}
				return nil
			}
		}
	}
	m.print("%s\n", g)
	return nil
}

func (m *mutation) print(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(m.out, format, args...)
}

// report prints the survivors, which are an error.
func (m *mutation) report() error {
	counts := map[string]int{}
	survivors := 0
	m.print("\n")
	for _, g := range m.guards {
		counts[g.state()]++
		if !g.killed && g.reason == "" {
			survivors++
			m.print("%s\n", g)
		}
	}
	m.print("%d guards:", len(m.guards))
	for _, state := range slices.Sorted(maps.Keys(counts)) {
		m.print(" %d %s;", counts[state], state)
	}
	m.print("\n")
	if survivors > 0 {
		return fmt.Errorf("%d guards can be switched off and no test fails: write a test, or explain in test/mutate/explained.txt", survivors)
	}
	return nil
}

// readExplained reads the guards that nobody can test: a line for the guard, then an indented one with the reason.
func readExplained(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	explained, key := map[string]string{}, ""
	for s := bufio.NewScanner(f); ; {
		if !s.Scan() {
			return explained, s.Err()
		}
		switch line := s.Text(); {
		case line == "" || line[0] == '#':
		case strings.TrimLeft(line, " \t") == line:
			key = line
			if _, twice := explained[key]; twice {
				return nil, fmt.Errorf("%s: %s is there twice", path, key)
			}
			explained[key] = ""
		default:
			explained[key] = strings.TrimSpace(explained[key] + " " + strings.TrimSpace(line))
		}
	}
}

// explain gives guards their reasons. An explanation of no guard is an error if its file was looked at.
func (m *mutation) explain(explained map[string]string) error {
	files := map[string]bool{}
	for _, g := range m.guards {
		files[filepath.Dir(g.file)] = true
		if reason, found := explained[g.key()]; found {
			if reason == "" {
				return fmt.Errorf("explained.txt: no reason for %s", g.key())
			}
			g.reason = reason
			delete(explained, g.key())
		}
	}
	for key := range explained {
		if file, _, _ := strings.Cut(key, ":"); files[filepath.Dir(file)] {
			return fmt.Errorf("explained.txt: there is no such guard: %s", key)
		}
	}
	return nil
}
