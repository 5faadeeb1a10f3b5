package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// The tests run in the root of the repository, like the command suite.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// Catches a renamed test in core: it would no longer run, and nothing would fail.
func TestPromisesHaveTestsThatExist(t *testing.T) {
	for _, c := range core {
		files := must.Value(filepath.Glob(filepath.Join(c.pkg, "*_test.go")))(t)
		if !slices.ContainsFunc(files, func(file string) bool {
			return bytes.Contains(must.Value(os.ReadFile(file))(t), []byte("\nfunc "+c.test+"(t *testing.T) {"))
		}) {
			t.Errorf("%s has no %s, which shows: %s", c.pkg, c.test, c.promise)
		}
	}
}

func names(stages []stage) (names []string) {
	for _, s := range stages {
		names = append(names, s.name)
	}
	return names
}

// 'make test' must run each package with tests. 'make e2e' must run each package that may skip tests in 'make test'.
func TestStagesRunEachPackage(t *testing.T) {
	all := must.Value(packages(t.Context(), func(string, []string) bool { return true }))(t)
	tested := map[string]int{}
	program := regexp.MustCompile(`exec\.Command(Context)?\([^"]*"(go|make)"|"github.com/kubejoin/kubejoin/test/`)
	for _, s := range must.Value(fastStages(t.Context()))(t) {
		for _, step := range s.steps {
			for _, pkg := range step.packages {
				tested[pkg]++
				starts := slices.ContainsFunc(must.Value(filepath.Glob(filepath.Join(pkg, "*_test.go")))(t), func(file string) bool {
					return program.Match(must.Value(os.ReadFile(file))(t))
				})
				if starts && !slices.Contains(step.command, fresh) {
					t.Errorf("make test may take the result of %s from a cache, although its tests start programs of this module", pkg)
				}
			}
		}
	}
	for _, pkg := range all {
		if tested[pkg] != 1 {
			t.Errorf("make test runs %s %d times, want once", pkg, tested[pkg])
		}
	}
	if len(all) < 50 || len(tested) != len(all) {
		t.Errorf("make test runs %d packages, and %d have tests", len(tested), len(all))
	}
	needy := map[string]int{}
	for _, s := range must.Value(e2eStages(t.Context(), false))(t) {
		for _, step := range s.steps {
			for _, pkg := range step.packages {
				if step.run == "" && step.dir == "" {
					needy[pkg]++
				}
			}
		}
	}
	skips := regexp.MustCompile(`\bcluster\.(ForTest|Shared|NeedRoot)\(|\betcd\.ForTest\(|\bneed\.[A-Z]`)
	for _, pkg := range all {
		for _, file := range must.Value(filepath.Glob(filepath.Join(pkg, "*_test.go")))(t) {
			if skips.Match(must.Value(os.ReadFile(file))(t)) && needy[pkg] != 1 {
				t.Errorf("make e2e runs %s %d times, want once: %s may skip tests", pkg, needy[pkg], file)
			}
		}
	}
}

// nested must list exactly the nested modules of the repository.
func TestStagesCheckEachModule(t *testing.T) {
	var known []string
	for _, n := range nested {
		known = append(known, n.dir+"/go.mod")
	}
	slices.Sort(known)
	found := strings.Fields(string(must.Value(exec.Command("git", "ls-files", "*/go.mod").Output())(t)))
	if slices.Sort(found); !slices.Equal(found, known) {
		t.Errorf("got modules %q, want %q", known, found)
	}
}

func TestCoreRunsEachPromiseOnce(t *testing.T) {
	ran := map[string]int{}
	for _, s := range must.Value(e2eStages(t.Context(), true))(t) {
		for _, step := range s.steps {
			for _, c := range core {
				if slices.Contains(step.packages, c.pkg) && regexp.MustCompile(step.run).MatchString(c.test) && step.run != "" {
					ran[c.test]++
				}
			}
		}
	}
	for _, c := range core {
		if ran[c.test] != 1 {
			t.Errorf("make e2e CORE=1 runs %s %d times, want once", c.test, ran[c.test])
		}
	}
}

func TestSelectsStageOrFolder(t *testing.T) {
	stages := must.Value(e2eStages(t.Context(), false))(t)
	for only, want := range map[string]string{
		"clusters": "clusters test/kubeadm ", "join": "programs test/join ^TestX$", "test/join": "programs test/join ^TestX$", "storm": "load test/storm ^TestX$", "kubeadm": "clusters test/kubeadm ^TestX$",
		"csr": "packages signer/csr ^TestX$", "nonsense": "", "": "",
	} {
		run := "^TestX$"
		if only == "clusters" {
			run = ""
		}
		selected, err := selectStages(stages, only, run)
		got := ""
		if err == nil {
			got = strings.Join(names(selected), " ") + " " + strings.Join(selected[0].steps[0].packages, " ") + " " + selected[0].steps[0].run
		} else if !strings.Contains(err.Error(), `ONLY="`+only+`": want one of modules, kube, packages,`) {
			t.Errorf("%s: got error %q", only, err)
		}
		if got != want {
			t.Errorf("ONLY=%s: got %q, want %q", only, got, want)
		}
	}
}

// events encodes events in the form of 'go test -json'.
func events(t *testing.T, all ...event) *bytes.Buffer {
	var b bytes.Buffer
	for _, e := range all {
		must.OK(t, json.NewEncoder(&b).Encode(e))
	}
	return &b
}

func TestReportsPackages(t *testing.T) {
	const pkg = module + "/signer"
	output := func(test, line string) event {
		return event{Action: "output", Package: pkg, Test: test, Output: line}
	}
	end := func(action, test string) event { return event{Action: action, Package: pkg, Test: test, Elapsed: 12} }
	for name, test := range map[string]struct {
		events []event
		err    string
		want   []string
		log    string
	}{
		"passed": {events: []event{end("run", "TestA"), output("TestA", "    a_test.go:7: noise\n"), end("pass", "TestA/sub"), end("pass", "TestA"), end("pass", "")},
			want: []string{"ok   signer ", "1 tests\n   signer.TestA 12s\n", "1 passed, 0 failed, 0 skipped\n"}},
		"cached": {events: []event{end("run", "TestA"), end("pass", "TestA"), output("", "ok  \tsigner\t(cached)\n"), end("pass", "")},
			want: []string{"   cached  1 tests\n1 passed, 0 failed, 0 skipped\n"}},
		"failed": {events: []event{end("run", "TestA"), output("TestA", "=== RUN TestA\n"), output("TestA/sub", "    a_test.go:7: got 1, want 2\n"), end("fail", "TestA/sub"), end("fail", "TestA"), end("fail", "")},
			want: []string{"FAIL signer ", "got 1, want 2\n", "--- log: LOGS/TestA.log\n", "--- run it again: KUBE=1 go test -x -run '^TestA$' ./signer\n", "0 passed, 1 failed, 0 skipped\n"},
			log:  "TestA"},
		"failed, with logs of machines": {events: []event{end("run", "TestA"), output("TestA", "    a_test.go:6: 3 s\n"), output("TestA", "    a_test.go:7: exit status 1\n"), output("TestA", "        no space\n"),
			output("TestA", "    testing.go:9: logs:\n"), output("TestA", "        containerd\n"), end("fail", "TestA"), end("fail", "")},
			want: []string{"\nTestA failed:\n    a_test.go:6: 3 s\n    a_test.go:7: exit status 1\n        no space\n0 passed, 1 failed, 0 skipped\n"}},
		"failed build": {events: []event{{Action: "build-output", ImportPath: "x", Output: "a.go:1: undefined: b\n"}, {Action: "fail", Package: pkg, FailedBuild: "x"}},
			err: "no test ran", want: []string{"a.go:1: undefined: b\n", "--- run it again: KUBE=1 go test -x ./signer\n", "0 passed, 1 failed,"}, log: "signer"},
		"panic": {events: []event{end("run", "TestA"), end("run", "TestB"), output("TestB", "panic: oh\n"), end("fail", "TestB"), end("fail", "")},
			want: []string{"panic: oh\n", "0 passed, 1 failed,"}, log: "TestB"},
		"time is up": {events: []event{end("run", "TestA"), output("TestA", "panic: test timed out after 1s\n"), end("fail", "")},
			err: "no test ran", want: []string{"panic: test timed out", "'^TestA$'"}, log: "TestA"},
		"skipped": {events: []event{end("run", "TestA"), output("TestA", "    a_test.go:7: WORK=$WORK\n"), output("TestA", "        > [!root] skip 'needs openssl, curl'\n"), output("TestA", "--- SKIP: TestA (0.00s)\n"), end("skip", "TestA"),
			end("run", "TestB"), output("TestB", "    a_test.go:7: 'make e2e' runs it\n"), end("skip", "TestB"), end("pass", "")},
			want: []string{"skipped 1 tests: 'make e2e' runs it\n", "skipped: needs openssl, curl: signer.TestA\n", "apt-get install --no-install-recommends ca-certificates curl openssl\n", "0 passed, 0 failed, 2 skipped\n"}},
		"nothing": {err: "no test ran"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			logs := t.TempDir()
			r := must.Value(newReport(&out, logs))(t)
			err := r.read(events(t, test.events...), step{env: []string{"KUBE=1"}, command: []string{"go", "test", "-x"}, packages: []string{"signer"}})
			r.close()
			if got := ""; err != nil {
				if got = err.Error(); got != test.err {
					t.Errorf("got error %q, want %q", got, test.err)
				}
			} else if test.err != "" {
				t.Errorf("got no error, want %q", test.err)
			}
			for _, want := range test.want {
				if !strings.Contains(strings.ReplaceAll(out.String(), logs, "LOGS"), want) {
					t.Errorf("got output without %q:\n%s", want, &out)
				}
			}
			if test.log != "" {
				must.Value(os.ReadFile(filepath.Join(logs, test.log+".log")))(t)
			}
		})
	}
}

// A report must cut the middle of a long log, and write the whole log to a file.
func TestCutsLongLogs(t *testing.T) {
	var out bytes.Buffer
	r := must.Value(newReport(&out, t.TempDir()))(t)
	var lines []string
	for range 1000 {
		lines = append(lines, "line\n")
	}
	must.OK(t, r.failed("TestA", lines, step{command: []string{"go", "test"}}, "signer", "./signer"))
	if got := strings.Count(out.String(), "line\n"); got != firstLines+lastLines || !strings.Contains(out.String(), "... 880 more lines in ") {
		t.Errorf("printed %d lines:\n%s", got, &out)
	}
	if got := bytes.Count(must.Value(os.ReadFile(filepath.Join(r.logs, "TestA.log")))(t), []byte("line\n")); got != 1000 {
		t.Errorf("the file has %d lines, want 1000", got)
	}
}

func TestHeartbeatNamesRunningTests(t *testing.T) {
	var out bytes.Buffer
	r := must.Value(newReport(&out, t.TempDir()))(t)
	r.test(event{Action: "run", Package: module + "/signer", Test: "TestA"}, &result{output: map[string][]string{}})
	ticks := make(chan time.Time)
	go r.heartbeat(ticks)
	ticks <- time.Now()                   // the report began less than quiet ago: no line
	ticks <- time.Now().Add(2 * quiet)    // nothing was printed for longer than quiet: one line
	ticks <- time.Now().Add(-time.Minute) // returns when the report has handled the line before
	r.close()
	if !strings.Contains(out.String(), "running signer.TestA\n") {
		t.Errorf("got %q", &out)
	}
}

func TestChecksCommitMessages(t *testing.T) {
	const body = "\n\nIt was counted twice."
	for message, want := range map[string]string{
		"signer: count a claim once" + body:               "",
		"test/suite,docs: say what runs" + body:           "",
		"signer: count a claim once":                      "no body",
		"count a claim once" + body:                       "want a subject such as",
		"signer: count a claim once; docs: say so" + body: "two changes",
		"signer: " + strings.Repeat("a", 64) + body:       "",
		"signer: " + strings.Repeat("ü", 65) + body:       "73 characters, want at most 72",
		"": "want a subject",
	} {
		if got := checkCommit(message); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("%q: got %q, want %q", message, got, want)
		}
	}
}

// checkCommits must check only commits that the main branch does not have, or the last commit if there are none.
func TestChecksCommitsOfBranch(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, output)
		}
	}
	check := func() (string, error) {
		var out bytes.Buffer
		t.Chdir(dir)
		err := checkCommits(t.Context(), &out)
		return out.String(), err
	}
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "bad")
	git("commit", "-q", "--allow-empty", "-m", "a: b", "-m", "Why.")
	if out, err := check(); err != nil || !strings.Contains(out, "only the last one is checked") {
		t.Errorf("on main: %v, %s", err, out)
	}
	git("switch", "-q", "-c", "mine")
	git("commit", "-q", "--allow-empty", "-m", "worse")
	git("commit", "-q", "--allow-empty", "-m", "a: c", "-m", "Why.")
	if out, err := check(); err == nil || !strings.Contains(err.Error(), `"worse"`) || strings.Contains(err.Error(), `"bad"`) || out != "" {
		t.Errorf("on a branch: %v, %s", err, out)
	}
}
