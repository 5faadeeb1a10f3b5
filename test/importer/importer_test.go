// Package importer_test builds and runs the programs of examples/ in a separate module, with the oldest and the newest
// supported minor version of Kubernetes.
//
// Run it with -count=1: Go's test cache ignores changes in the source files of the programs.
package importer_test

import (
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// minors are the oldest and newest supported minor versions of client-go and of etcd's client.
var minors = []struct{ name, modfile, version, etcd string }{
	{"oldest", "go.mod", "v0.36.", "v3.6."},
	{"newest", "go.newest.mod", "v0.37.", "v3.7."},
}

const (
	clientGo   = "k8s.io/client-go"
	etcdClient = "go.etcd.io/etcd/client/v3"
	kubejoin   = "github.com/kubejoin/kubejoin/"
)

// A build contains the programs that were built with one of the module files.
type build struct {
	modfile string
	dir     string
}

// TestExamplesWorkInSeparateModule catches an example or package that does not build, or does not work, as a
// dependency.
func TestExamplesWorkInSeparateModule(t *testing.T) {
	control := cluster.ForTest(t, cluster.Options{})
	t.Run("join command of the docs", func(t *testing.T) { testJoinCommandOfDocs(t, control) })
	for _, minor := range minors {
		t.Run(minor.name, func(t *testing.T) {
			b := build{minor.modfile, t.TempDir()}
			b.goCommand(t, "build", "-o", b.dir+string(filepath.Separator), "./...")
			b.goCommand(t, "build", kubejoin+"tokens/...", kubejoin+"clusterinfo/...", kubejoin+"signer/...", kubejoin+"server/...")
			t.Run("versions", func(t *testing.T) { b.testVersions(t, minor.version, minor.etcd) })
			t.Run("light imports", b.testLightImports)
			t.Run("mint, serve, discover", b.testMintServeDiscover)
			t.Run("mount a server", b.testMountServer)
			t.Run("enforce limits", b.testEnforceLimits)
			t.Run("sign a CSR", b.testSignCSR)
			t.Run("bootstrap signer", func(t *testing.T) { b.testBootstrapSigner(t, control) })
			t.Run("mint on a cluster, embed controllers", func(t *testing.T) { b.testEmbedControllers(t, control) })
		})
	}
}

// program returns the path of a built program.
func (b build) program(name string) string { return filepath.Join(b.dir, name) }

// goCommand runs the go command with the module file, and returns what it prints.
func (b build) goCommand(t *testing.T, verb string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{verb, "-modfile=" + b.modfile}, args...)...)
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.String())
	}
	return string(out)
}

// testVersions checks which module versions the programs contain.
func (b build) testVersions(t *testing.T, client, etcd string) {
	version := func(module, want string) string {
		t.Helper()
		got := strings.TrimSpace(b.goCommand(t, "list", "-m", "-f", "{{.Version}}", module))
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s requires %s %s, want %s*", b.modfile, module, got, want)
		}
		return got
	}
	version(etcdClient, etcd)
	want := version(clientGo, client)
	for _, name := range []string{clientGo, "k8s.io/api", "k8s.io/apimachinery"} { // remote-token is only a client of kubejoin and needs no Kubernetes module
		if got := linked(t, b.program("remote-token"))[name]; got != "" {
			t.Errorf("remote-token links %s %s, want it not to", name, got)
		}
	}
	for program, linksClient := range map[string]bool{
		"mint-token": false, "enforce-limits": false, "sign-csr": false, "embed-server": false, "mount-server": false,
		"bootstrap-signer": true, "mint-on-cluster": true, "embed-controllers": true,
	} {
		versions := linked(t, b.program(program))
		if got, found := versions[clientGo]; found != linksClient || found && got != want {
			t.Errorf("%s links %s %q, want it linked: %v, %s", program, clientGo, got, linksClient, want)
		}
		for _, name := range []string{"k8s.io/api", "k8s.io/apimachinery"} {
			if got := versions[name]; got != want {
				t.Errorf("%s links %s %q, want %s", program, name, got, want)
			}
		}
	}
}

// linked returns the modules in a program and their versions, as 'go version -m' prints them.
func linked(t *testing.T, program string) map[string]string {
	t.Helper()
	info := the(buildinfo.ReadFile(program))(t)
	versions := map[string]string{}
	for _, module := range info.Deps {
		versions[module.Path] = module.Version
	}
	return versions
}

// testLightImports checks that packages for programs without a cluster do not import client-go, directly or indirectly.
func (b build) testLightImports(t *testing.T) {
	list := func(packages ...string) (client, all int) {
		for dep := range strings.FieldsSeq(b.goCommand(t, "list", append([]string{"-deps"}, packages...)...)) {
			all++
			if dep == clientGo || strings.HasPrefix(dep, clientGo+"/") {
				client++
			}
		}
		return client, all
	}
	client, all := list(kubejoin+"tokens", kubejoin+"clusterinfo", kubejoin+"signer", kubejoin+"server/client")
	t.Logf("tokens, clusterinfo, signer and server/client import %d packages", all)
	if client != 0 {
		t.Errorf("got %d packages of %s among them, want none", client, clientGo)
	}
	if client, _ := list(kubejoin + "tokens/secretstore"); client == 0 {
		t.Errorf("go list shows no import of %s by tokens/secretstore, want one", clientGo)
	}
}

// TestLinksToAllExamples catches an example that this module does not build, or builds from a copy.
func TestLinksToAllExamples(t *testing.T) {
	files, err := filepath.Glob("../../examples/*/*.go")
	if err != nil || len(files) < len(minors) {
		t.Fatalf("got examples %v, %v, want at least %d", files, err, len(minors))
	}
	for _, file := range files {
		here := filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file))
		want := the(filepath.Abs(file))(t)
		link, err := os.Stat(here)
		if err != nil {
			t.Errorf("%v: want a link to %s", err, file)
			continue
		}
		if original, err := os.Stat(want); err != nil || !os.SameFile(link, original) {
			t.Errorf("%s is not a link to %s (%v)", here, file, err)
		}
	}
}
