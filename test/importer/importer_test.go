// Package importer_test builds and runs the programs of examples/ in a module of a stranger's,
// with the oldest and with the newest minor of Kubernetes that is supported.
//
// Run it with -count=1: the programs are built from files that the test cache does not look at.
package importer_test

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// minors are the ends of what is supported; the versions are those of client-go.
var minors = []struct{ name, modfile, version string }{
	{"oldest", "go.mod", "v0.35."},
	{"newest", "go.newest.mod", "v0.37."},
}

const (
	clientGo = "k8s.io/client-go"
	kubejoin = "github.com/kubejoin/kubejoin/"
)

// A build is the programs as one of the module files has them.
type build struct {
	modfile string
	dir     string
}

func TestImporter(t *testing.T) {
	control := cluster.ForTest(t, cluster.Options{})
	for _, minor := range minors {
		t.Run(minor.name, func(t *testing.T) {
			b := build{minor.modfile, t.TempDir()}
			b.goCommand(t, "build", "-o", b.dir+string(filepath.Separator), "./...")
			b.goCommand(t, "build", kubejoin+"tokens/...", kubejoin+"clusterinfo/...", kubejoin+"signer/...", kubejoin+"server/...")
			t.Run("versions", func(t *testing.T) { b.testVersions(t, minor.version) })
			t.Run("light imports", b.testLightImports)
			t.Run("mint, serve, discover", b.testMintServeDiscover)
			t.Run("mount a server", b.testMountServer)
			t.Run("sign a CSR", b.testSignCSR)
			t.Run("bootstrap signer", func(t *testing.T) { b.testBootstrapSigner(t, control) })
			t.Run("mint on a cluster, embed controllers", func(t *testing.T) { b.testEmbedControllers(t, control) })
		})
	}
}

// program is the path of one that was built.
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

// testVersions looks into the programs for what they were really built from.
func (b build) testVersions(t *testing.T, want string) {
	var module struct{ Version string }
	if err := json.Unmarshal([]byte(b.goCommand(t, "list", "-m", "-json", clientGo)), &module); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(module.Version, want) {
		t.Errorf("%s requires %s %s, want %s*", b.modfile, clientGo, module.Version, want)
	}
	for _, name := range []string{clientGo, "k8s.io/api", "k8s.io/apimachinery"} { // a client of kubejoin needs none of them
		if got := linked(t, b.program("remote-token"))[name]; got != "" {
			t.Errorf("remote-token links %s %s", name, got)
		}
	}
	for program, linksClient := range map[string]bool{
		"mint-token": false, "sign-csr": false, "embed-server": false, "mount-server": false,
		"bootstrap-signer": true, "mint-on-cluster": true, "embed-controllers": true,
	} {
		versions := linked(t, b.program(program))
		if got, found := versions[clientGo]; found != linksClient || found && got != module.Version {
			t.Errorf("%s links %s %q, want it linked: %v, %s", program, clientGo, got, linksClient, module.Version)
		}
		for _, name := range []string{"k8s.io/api", "k8s.io/apimachinery"} {
			if got := versions[name]; got != module.Version {
				t.Errorf("%s links %s %q, want %s", program, name, got, module.Version)
			}
		}
	}
}

// linked is what 'go version -m' prints: the modules in a program and their versions.
func linked(t *testing.T, program string) map[string]string {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for _, module := range info.Deps {
		versions[module.Path] = module.Version
	}
	return versions
}

// A stranger who has no cluster gets no client of one, however far down.
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
	t.Logf("tokens, clusterinfo, signer and server/client take %d packages", all)
	if client != 0 {
		t.Errorf("%d packages of %s are among them, want none", client, clientGo)
	}
	if client, _ := list(kubejoin + "tokens/secretstore"); client == 0 {
		t.Errorf("tokens/secretstore is not seen to import %s", clientGo)
	}
}

// Every example is built and run here, and from the very same files.
func TestSameSources(t *testing.T) {
	files, err := filepath.Glob("../../examples/*/*.go")
	if err != nil || len(files) < len(minors) {
		t.Fatalf("examples are not found: %v %v", files, err)
	}
	for _, file := range files {
		here := filepath.Join(filepath.Base(filepath.Dir(file)), filepath.Base(file))
		want, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
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
