package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
)

const module = "github.com/kubejoin/kubejoin"

// A stage is a part of a run.
type stage struct {
	name, about string
	usual       time.Duration // usual duration on two idle cores with warm caches
	required    bool          // if the stage fails, the run ends
	steps       []step
}

// A step is one command of a stage.
type step struct {
	dir      string   // folder, relative to the repository
	env      []string // added to the environment of this process
	command  []string
	packages []string // packages to test; empty if the command is not 'go test'
	run      string   // regular expression for the names of tests; empty for all tests
}

// shell returns a step that is not a test.
func shell(dir string, command ...string) step { return step{dir: dir, command: command} }

// fresh runs tests again that have passed before. Go's test cache depends on the files that a test itself reads, but not on
// files that the programs it starts, or the go command, read.
const fresh = "-count=1"

// tests returns a step that runs 'go test' with these flags. With race, it uses the race detector if there is a C compiler.
func tests(race bool, packages []string, flags ...string) step {
	// Linking is faster without the symbols of debuggers (-w). 'make check' runs vet.
	s := step{command: []string{"go", "test", "-ldflags=-w", "-vet=off", fresh}, packages: packages}
	if race = race && hasCompiler(); race {
		s.command = append(s.command, "-race")
	} else {
		s.env = []string{"CGO_ENABLED=0"} // as in releases, so that kubejoin and most tests share compiled packages
	}
	s.command = append(s.command, flags...)
	return s
}

// hasCompiler reports whether there is a C compiler, which the race detector needs.
func hasCompiler() bool {
	_, err := exec.LookPath(cmp.Or(os.Getenv("CC"), "gcc"))
	return err == nil
}

// raced reports whether the tests of a package run with the race detector: it covers most packages, and the whole program
// standalone and on a cluster. Commands, which their tests start a thousand times, and the other tests below test/ run
// without it, because it doubles their time.
func raced(pkg string) bool {
	return !strings.HasPrefix(pkg, "test/") && pkg != "cmd/kubejoin" || pkg == "test/limits" || pkg == "test/standalone"
}

// slowest are the packages with the slowest tests. They begin first, so that the others run beside them.
var slowest = []string{"test/limits", "tokens/boltstore", "server", "clusterinfo/joinformat", "internal/host/pki", "test/standalone", "tokens/secretstore",
	"test/host", "test/ha", "test/outage", "test/commands", "test/join", "cmd/kubejoin"}

// packages lists the packages of the module, as relative paths, the slowest first. keep selects packages by path and by the
// imports of their tests.
func packages(ctx context.Context, keep func(pkg string, imports []string) bool) ([]string, error) {
	const format = `{{.ImportPath}} {{join .TestImports " "}} {{join .XTestImports " "}}`
	list := exec.CommandContext(ctx, "go", "list", "-f", format, "./...")
	list.Stderr = os.Stderr
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var kept []string
	for line := range strings.Lines(string(output)) {
		words := strings.Fields(line)
		if pkg := strings.TrimPrefix(words[0], module+"/"); len(words) > 1 && keep(pkg, words[1:]) {
			kept = append(kept, pkg)
		}
	}
	rank := func(pkg string) int {
		if i := slices.Index(slowest, pkg); i >= 0 {
			return i
		}
		return len(slowest)
	}
	slices.SortStableFunc(kept, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return kept, nil
}

// mayCache reports whether Go's test cache covers all files of this module on which the tests of a package depend. It
// ignores programs of the machine: see [need.Missing].
func mayCache(pkg string, imports []string) bool {
	const runsGo = "internal/imports"
	return !strings.HasPrefix(pkg, "test/") && pkg != "cmd/kubejoin" && pkg != runsGo && !slices.ContainsFunc(imports, func(imported string) bool {
		return strings.HasPrefix(imported, module+"/test/")
	})
}

// fastStages returns the stages of 'make test'. They need no Kubernetes and no root, and only the programs Go, make and git.
func fastStages(ctx context.Context) ([]stage, error) {
	// Most of these tests wait for disks and processes, so more of them run at once than there are cores.
	flags := []string{"-short", "-timeout=30m", "-p=4", "-parallel=8"}
	caches := map[string]bool{}
	all, err := packages(ctx, func(pkg string, imports []string) bool {
		caches[pkg] = mayCache(pkg, imports)
		return true
	})
	if err != nil {
		return nil, err
	}
	steps := func(race bool) (steps []step) {
		for _, may := range []bool{true, false} {
			s := tests(race, slices.DeleteFunc(slices.Clone(all), func(pkg string) bool {
				return (raced(pkg) && hasCompiler()) != race || caches[pkg] != may
			}), flags...)
			if may {
				s = cached(s)
			}
			if len(s.packages) > 0 {
				steps = append(steps, s)
			}
		}
		return steps
	}
	stages := []stage{{name: "packages", about: "packages and conformance suites, with the race detector", usual: 9 * time.Minute, steps: steps(true)},
		{name: "program", about: "the whole program standalone, commands and docs", usual: 3 * time.Minute, steps: steps(false)}}
	if !hasCompiler() {
		stages = stages[1:]
		stages[0].about = "all tests, without the race detector: there is no C compiler"
	}
	return stages, nil
}

// core has one test with real components for each promise that only such a test can show. Tests with oldest also run with
// the oldest supported Kubernetes.
var core = []struct {
	promise, pkg, test string
	oldest             bool
}{
	{"a machine joins, by each form of a join command", "test/join", "TestJoinsByEveryFormat", true},
	{"tokens in etcd", "test/join", "TestJoinsWithTokensInEtcd", true},
	{"a limited token", "test/limits", "TestTokenForOneNodeAdmitsOne", true},
	{"the name of an existing Node", "test/limits", "TestReplaceNodeTokenReplacesOneMachine", false},
	{"serving certificates", "test/join", "TestAPIServerVerifiesKubeletServingCertificate", true},
	{"discovery without anonymous access", "test/join", "TestJoinsWithoutAnonymousAccess", false},
	{"a control plane by one call", "test/join", "TestControlPlaneByOneCall", true},
	{"the timeline of machines", "test/join", "TestTimelineFollowsMachines", false},
	{"a machine with a key of its own", "test/join", "TestMachineJoinsWithItsKey", false},
	{"rejoin", "test/join", "TestExpiredKubeletComesBack", true},
	{"revocation", "test/access", "TestRevocationWebhook", true},
	{"a CA rotation on a cluster", "test/kubeadm", "TestReplacesClusterCA", true},
	{"installation by the chart", "test/kubeadm", "TestHelmPage", false},
	{"failover with a killed leader", "test/outage", "TestFailoverLosesNoRequest", false},
	{"a small storm", "test/storm", "TestStormLosesNoMachine", false},
}

// nested are the modules below this one, with arguments of 'go mod tidy' for each go.mod file, and whether they have code
// to vet.
var nested = []struct {
	dir  string
	code bool
}{
	{"test/kube", false}, {"test/containers", false}, {"test/etcdctl", false}, {"test/specs", false}, {"test/ignition", true},
	{"test/chart", true}, {"test/console", true}, {"test/importer", false}, {"deploy/image", true}, {"cmd/kubejoin-pkcs11", true},
}

// e2eStages returns the stages that run all tests with real components, or with short only the tests in [core].
func e2eStages(ctx context.Context, short bool) ([]stage, error) {
	versions, err := cluster.Versions()
	if err != nil {
		return nil, err
	}
	oldest := "KUBE=" + versions[0]
	// Outside test/, 'make test' has already run the packages whose tests need no program.
	needy := func(pkg string, imports []string) bool {
		return strings.HasPrefix(pkg, "test/") || slices.ContainsFunc(imports, func(imported string) bool {
			return strings.HasPrefix(imported, module+"/test/") || imported == module+"/internal/testing/need"
		})
	}
	all, err := packages(ctx, needy)
	if err != nil {
		return nil, err
	}
	alone := []string{"test/kubeadm", "test/load", "test/storm"}
	var watched, rest []string
	for _, pkg := range all {
		switch {
		case slices.Contains(alone, pkg):
		case raced(pkg):
			watched = append(watched, pkg)
		default:
			rest = append(rest, pkg)
		}
	}
	modules, err := checkModules()
	if err != nil {
		return nil, err
	}
	// Most tests with Kubernetes wait for processes and timers, so more of them run at once than there are cores.
	stages := []stage{
		{"modules", "go.mod files, nested modules, chart and prose", time.Minute, false, modules},
		{"kube", "build Kubernetes, containerd and etcd", 10 * time.Second, true, []step{shell("", "go", "run", "./test/demo", "-build")}},
		{"packages", "packages with a control plane, with the race detector", 8 * time.Minute, false, []step{tests(true, watched, "-timeout=30m", "-p=4", "-parallel=4")}},
		{"clusters", "whole clusters by kubeadm init", 15 * time.Minute, false, []step{tests(false, alone[:1], "-timeout=40m", "-parallel=2")}},
		{"programs", "machines and control planes", 12 * time.Minute, false, []step{tests(false, rest, "-timeout=60m", "-p=4", "-parallel=4")}},
		{"load", "load and storms", 4 * time.Minute, false, []step{tests(false, alone[1:], "-timeout=30m", "-p=1")}},
		{"importer", "programs that import kubejoin", time.Minute, false, []step{in("test/importer", tests(false, []string{"./..."}, "-timeout=20m"))}},
		{"console", "the page in a browser", 2 * time.Minute, false, []step{in("test/console", tests(false, []string{"./..."}, "-timeout=20m"))}},
		{"image", "images and release", 2 * time.Minute, false, []step{in("deploy/image", tests(false, []string{"./..."}, "-timeout=30m"))}},
		{"oldest", "Kubernetes " + versions[0], 3 * time.Minute, false, []step{
			with(oldest, shell("", "go", "run", "./test/demo", "-build")),
			with(oldest, promised(tests(false, all, "-timeout=20m", "-p=2"), func(i int) bool { return core[i].oldest })),
		}},
	}
	if hasCompiler() {
		stages = slices.Insert(stages, 9, stage{"pkcs11", "keys on PKCS#11 tokens", 20 * time.Second, false, []step{in("cmd/kubejoin-pkcs11", tests(true, []string{"./..."}, "-timeout=10m"))}})
	}
	if short {
		kept := []string{"modules", "kube", "clusters", "programs", "load", "console"}
		stages = slices.DeleteFunc(stages, func(s stage) bool { return !slices.Contains(kept, s.name) })
		stages[3].steps[0].packages = append(stages[3].steps[0].packages, "test/limits")
		for _, s := range stages[2:5] {
			s.steps[0] = promised(s.steps[0], func(int) bool { return true })
		}
		stages[5].steps[0].run = "^TestShowsWhatJoins$"
	}
	return stages, nil
}

func in(dir string, s step) step { s.dir = dir; return s }

// cached returns a step like s that may take the results from Go's test cache.
func cached(s step) step {
	s.command = slices.DeleteFunc(slices.Clone(s.command), func(word string) bool { return word == fresh })
	if programs := missing(); len(programs) > 0 {
		s.env = append(s.env, need.MissingPrograms+"="+strings.Join(programs, ","))
	}
	return s
}

func with(env string, s step) step { s.env = append(s.env, env); return s }

// promised returns a step like s with only those tests of [core] that keep selects.
func promised(s step, keep func(i int) bool) step {
	var folders, names []string
	for i, c := range core {
		if keep(i) && slices.Contains(s.packages, c.pkg) {
			folders, names = append(folders, c.pkg), append(names, c.test)
		}
	}
	slices.Sort(folders)
	s.packages, s.run = slices.Compact(folders), "^("+strings.Join(names, "|")+")$"
	return s
}

// checkModules returns the steps that check go.mod files, nested modules, the chart and the prose.
func checkModules() ([]step, error) {
	steps := []step{shell("", "go", "mod", "tidy", "-diff")}
	for _, n := range nested {
		files, err := filepath.Glob(filepath.Join(n.dir, "go*.mod"))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			steps = append(steps, shell(n.dir, "go", "mod", "tidy", "-diff", "-modfile="+filepath.Base(file)))
		}
		if n.code && (hasCompiler() || n.dir != "cmd/kubejoin-pkcs11") {
			steps = append(steps, shell(n.dir, "go", "vet", "./..."))
		}
	}
	steps = append(steps, in("test/chart", tests(false, []string{"./..."})))
	return append(steps, shell("", "make", "-s", "prose")), nil
}

// selectStages returns the stage with this name, or else the tests of the folder with this name. If run is not empty, only
// tests that match it run. Tests build missing programs themselves, so no other stage is needed.
func selectStages(stages []stage, only, run string) ([]stage, error) {
	var names []string
	selected := func(s stage, steps ...step) ([]stage, error) {
		s.steps = steps
		for i := range s.steps {
			s.steps[i].run = cmp.Or(run, s.steps[i].run)
		}
		return []stage{s}, nil
	}
	for _, s := range stages {
		if names = append(names, s.name); s.name == only {
			return selected(s, s.steps...)
		}
	}
	for _, s := range stages {
		for _, step := range s.steps {
			step.packages = slices.DeleteFunc(slices.Clone(step.packages), func(pkg string) bool { return pkg != only && path.Base(pkg) != only })
			if len(step.packages) > 0 {
				return selected(s, step)
			}
		}
	}
	return nil, fmt.Errorf("invalid ONLY=%q: want one of %s, or the name of a folder with tests", only, strings.Join(names, ", "))
}
