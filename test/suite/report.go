package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/need"
)

// An event is a line in the output of 'go test -json' (go doc test2json), or of its build (go help buildjson).
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64
}

// A report prints the results of tests, and keeps the logs of failed tests.
type report struct {
	logs  string // folder
	began time.Time
	done  chan struct{}

	mu      sync.Mutex
	out     io.Writer
	printed time.Time
	running map[string]time.Time // start of each running test, by name
	counts  struct{ passed, failed, skipped int }
	skipped map[string][]string // skipped tests, by reason
	reasons []string            // the reasons of each failed test
}

const (
	// quiet is the longest time without output.
	quiet = 20 * time.Second
	// slow is the duration from which on a test gets its own line, below the line of its package.
	slow = 10 * time.Second
	// firstLines and lastLines are the maximum number of lines to print from the start and the end of a failed test's log.
	firstLines, lastLines = 80, 40
	// reasons is the maximum number of messages of a failed test that the summary repeats, and reasonLines the maximum
	// number of lines of each.
	reasons, reasonLines = 4, 6
)

func newReport(out io.Writer, logs string) (*report, error) {
	if err := os.RemoveAll(logs); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	r := &report{logs: logs, began: time.Now(), done: make(chan struct{}), out: out, running: map[string]time.Time{}, skipped: map[string][]string{}}
	go r.heartbeat(time.Tick(quiet))
	return r, nil
}

// heartbeat prints which tests run if nothing else was printed since the last tick.
func (r *report) heartbeat(ticks <-chan time.Time) {
	for {
		select {
		case <-r.done:
			return
		case now := <-ticks:
			r.mu.Lock()
			idle := now.Sub(r.printed) >= quiet
			names := slices.SortedFunc(maps.Keys(r.running), func(a, b string) int { return r.running[a].Compare(r.running[b]) })
			r.mu.Unlock()
			if most := 4; len(names) > most {
				names = append(names[:most], fmt.Sprintf("and %d more", len(names)-most))
			}
			if idle && len(names) > 0 {
				r.printf("   %s: running %s\n", short(time.Since(r.began)), strings.Join(names, ", "))
			}
		}
	}
}

func (r *report) printf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.printed = time.Now()
	_, _ = fmt.Fprintf(r.out, format, args...)
}

// A result is the output and the results of a package so far.
type result struct {
	all    []string            // lines
	output map[string][]string // lines, by test name; "" for the package and its build
	failed []string
	slow   []string // lines of slow tests that passed
	count  int
}

// read reads the events of a step until they end. It fails if no test ran.
func (r *report) read(events io.Reader, s step) error {
	results := map[string]*result{}
	builds := map[string][]string{} // output of builds, by import path
	lines := bufio.NewReader(events)
	ran := 0
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var e event
		if err := json.Unmarshal(line, &e); err != nil {
			r.printf("%s", line) // output of the go command itself
			continue
		}
		if e.Package == "" {
			if e.Action == "build-output" {
				builds[e.ImportPath] = append(builds[e.ImportPath], e.Output)
			}
			continue
		}
		p := results[e.Package]
		if p == nil {
			p = &result{output: map[string][]string{}}
			results[e.Package] = p
		}
		if e.FailedBuild != "" {
			p.all = append(p.all, builds[e.FailedBuild]...)
			p.output[""] = append(p.output[""], builds[e.FailedBuild]...)
		}
		if e.Output != "" {
			p.all = append(p.all, e.Output)
		}
		if e.Test != "" {
			r.test(e, p)
			continue
		}
		switch e.Action {
		case "output":
			p.output[""] = append(p.output[""], e.Output)
		case "pass", "fail", "skip":
			ran += p.count
			if err := r.ended(e, p, s); err != nil {
				return err
			}
			delete(results, e.Package)
		}
	}
	if ran == 0 {
		return errors.New("no test ran")
	}
	return nil
}

// test handles an event of a test. The output of subtests belongs to the log of their test.
func (r *report) test(e event, p *result) {
	name, _, sub := strings.Cut(e.Test, "/")
	full := path.Base(e.Package) + "." + name
	if e.Action == "output" {
		if trimmed := strings.TrimSpace(e.Output); !strings.HasPrefix(trimmed, "=== ") && trimmed != "" {
			p.output[name] = append(p.output[name], e.Output)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Action == "skip" {
		r.counts.skipped++
		reason := reasonOf(p.output[name])
		r.skipped[reason] = append(r.skipped[reason], path.Base(e.Package)+"."+e.Test)
	}
	if sub {
		return
	}
	switch e.Action {
	case "run", "cont":
		r.running[full] = time.Now()
	case "pause":
		delete(r.running, full)
	case "pass", "fail", "skip":
		p.count++
		delete(r.running, full)
		if e.Action == "pass" {
			r.counts.passed++
			delete(p.output, name)
		} else if e.Action == "fail" {
			r.counts.failed++
			p.failed = append(p.failed, name)
		}
		if took := time.Duration(e.Elapsed * float64(time.Second)); took >= slow && e.Action == "pass" {
			p.slow = append(p.slow, fmt.Sprintf("   %s %s\n", full, short(took)))
		}
	}
}

// skipLine matches the message of a skipped test, or the command with which a script skips its rest.
var skipLine = regexp.MustCompile(`(?:\.go:\d+: |> .* skip ')(.+?)'?\n$`)

// reasonOf returns the last message in the output of a test.
func reasonOf(output []string) string {
	for _, line := range slices.Backward(output) {
		if m := skipLine.FindStringSubmatch(line); m != nil {
			return m[1]
		}
	}
	return "no reason given"
}

// testLine matches the first line of a message from a test file.
var testLine = regexp.MustCompile(`^ +\w+_test\.go:\d+: `)

// failureOf returns the last messages of a failed test. It leaves out the logs of programs that a helper wrote after them.
func failureOf(output []string) string {
	var messages [][]string
	of := false
	for _, line := range output {
		switch {
		case testLine.MatchString(line):
			messages, of = append(messages, []string{line}), true
		case helperLine.MatchString(line):
			of = false
		case of:
			last := len(messages) - 1
			messages[last] = append(messages[last], line)
		}
	}
	var reason strings.Builder
	for _, m := range messages[max(0, len(messages)-reasons):] {
		m = slices.Concat(m[:1], m[max(1, len(m)-reasonLines):])
		reason.WriteString(strings.Join(m, ""))
	}
	return reason.String()
}

// helperLine matches the first line of a message from a helper, or the end of the test.
var helperLine = regexp.MustCompile(`^ *(?:\w+\.go:\d+|--- \w+): `)

// ended prints the line of a package, and the logs of its failed tests.
func (r *report) ended(e event, p *result, s step) error {
	pkg := strings.TrimPrefix(e.Package, module+"/")
	took := fmt.Sprintf("%.1f s", e.Elapsed)
	if e.Action != "fail" {
		slow := strings.Join(p.slow, "")
		if strings.HasSuffix(strings.Join(p.output[""], ""), "\t(cached)\n") {
			took, slow = "cached", ""
		}
		if p.count > 0 {
			r.printf("ok   %-34s %8s  %d tests\n%s", pkg, took, p.count, slow)
		}
		return nil
	}
	// Lines of parallel tests may be assigned to the wrong test, so this log has the lines of all tests.
	whole := filepath.Join(r.logs, path.Base(e.Package)+".package.log")
	if err := os.WriteFile(whole, []byte(strings.Join(p.all, "")), 0o644); err != nil {
		return err
	}
	r.printf("FAIL %-34s %8s  %d tests; log: %s\n", pkg, took, p.count, whole)
	argument := e.Package
	if pkg != e.Package {
		argument = "./" + pkg
	}
	for name := range p.output {
		if slices.Contains(p.failed, name) || name == "" && len(p.failed) == 0 || name != "" && strings.Contains(strings.Join(p.output[name], ""), "panic: ") {
			if err := r.failed(name, p.output[name], s, path.Base(e.Package), argument); err != nil {
				return err
			}
		}
	}
	return nil
}

// failed prints the log of a test, or of a package if name is empty, and writes it to a file.
func (r *report) failed(name string, output []string, s step, base, argument string) error {
	title, pattern := name, "^"+name+"$"
	if name == "" {
		title, pattern = base, ""
		r.mu.Lock()
		r.counts.failed++
		r.mu.Unlock()
	}
	again := s.line(pattern, argument)
	file := filepath.Join(r.logs, title+".log")
	log, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(log, "$ %s\n%s", again, strings.Join(output, ""))
	if err := errors.Join(err, log.Close()); err != nil {
		return err
	}
	r.mu.Lock()
	r.reasons = append(r.reasons, fmt.Sprintf("%s failed:\n%s", title, failureOf(output)))
	r.mu.Unlock()
	if len(output) > firstLines+lastLines {
		left := fmt.Sprintf("... %d more lines in %s\n", len(output)-firstLines-lastLines, file)
		output = slices.Concat(output[:firstLines], []string{left}, output[len(output)-lastLines:])
	}
	r.printf("--- FAIL %s\n%s--- log: %s\n--- run it again: %s\n", title, strings.Join(output, ""), file, again)
	return nil
}

// close prints the skipped tests, and the counts.
func (r *report) close() {
	close(r.done)
	var missing []string
	for _, reason := range slices.Sorted(maps.Keys(r.skipped)) {
		tests := r.skipped[reason]
		slices.Sort(tests)
		programs, isProgram := strings.CutPrefix(reason, "needs ")
		switch {
		case reason == need.LeftToE2E:
			r.printf("skipped %d tests: %s\n", len(tests), reason)
		default:
			r.printf("skipped: %s: %s\n", reason, strings.Join(tests, " "))
		}
		for program := range strings.SplitSeq(programs, ", ") {
			if _, known := need.Known[program]; isProgram && known {
				missing = append(missing, program)
			}
		}
	}
	if len(missing) > 0 {
		r.printf("Install what is missing with:\n  apt-get install --no-install-recommends %s\n", strings.Join(packagesOf(missing), " "))
	}
	r.printf("%s", strings.Join(r.reasons, ""))
	r.printf("%d passed, %d failed, %d skipped\n", r.counts.passed, r.counts.failed, r.counts.skipped)
}
