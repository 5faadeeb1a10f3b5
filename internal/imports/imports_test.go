// Package imports_test enforces the direction of imports between packages.
package imports_test

import (
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

const module = "github.com/kubejoin/kubejoin/"

// arrows lists imports that packages must not have, directly or indirectly. "/..." includes all packages below. The
// package control has the forbidden import, and so shows that the test can detect it.
var arrows = []struct {
	name     string
	packages []string
	not      func(imported string) bool
	control  string
}{
	{
		"the standard library alone",
		[]string{"tokens", "server/api", "signer/issuance", "internal/codes"},
		func(imported string) bool {
			host, _, _ := strings.Cut(imported, "/")
			return strings.Contains(host, ".") && !strings.HasPrefix(imported, module)
		},
		"signer/approval",
	},
	{
		"nothing of the module: every package may import the table of codes",
		[]string{"internal/codes"},
		func(imported string) bool { return strings.HasPrefix(imported, module) },
		"internal/codes/codepage",
	},
	{
		"no client-go: only adapters talk to the API server",
		[]string{"tokens", "clusterinfo", "clusterinfo/joinformat", "clusterinfo/mint", "server/api", "signer", "signer/approval", "signer/admission", "signer/pkcs10", "signer/issuance/...", "signer/revocation", "signer/revocation/desk", "server", "server/operations"},
		below("k8s.io/client-go"), "tokens/secretstore",
	},
	{
		"no Prometheus",
		[]string{"tokens", "server/api", "signer/approval"},
		below("github.com/prometheus"), "tokens/cleaner",
	},
	{
		"no server",
		[]string{"tokens/...", "clusterinfo/...", "signer/...", "server/api", "internal/host/credentials"},
		below(module + "server"), "cmd/kubejoin",
	},
	{
		"of the server its wire types alone",
		[]string{"server/client"},
		func(imported string) bool { return below(module+"server")(imported) && imported != module+"server/api" },
		"cmd/kubejoin",
	},
	{
		"not the server that calls it",
		[]string{"server/auth/...", "server/operations", "internal/web", "internal/doctor", "internal/kube/tokenwarning"},
		func(imported string) bool { return imported == module+"server" },
		"cmd/kubejoin",
	},
	{
		"no signer",
		[]string{"tokens/...", "clusterinfo/..."},
		below(module + "signer"), "server",
	},
	{
		"no admission: it imports approval",
		[]string{"signer/approval", "signer/pkcs10"},
		below(module + "signer/admission"), "signer",
	},
	{
		"nothing of internal/testing",
		[]string{"tokens/...", "clusterinfo/...", "signer/...", "server/...", "cmd/...", "internal/host/credentials", "internal/daemon", "internal/doctor", "deploy"},
		below(module + "internal/testing"), "internal/testing/hostile",
	},
}

// below reports whether a package is path or below it.
func below(path string) func(string) bool {
	return func(imported string) bool { return imported == path || strings.HasPrefix(imported, path+"/") }
}

func TestForbiddenImports(t *testing.T) {
	deps := dependencies(t)
	for _, rule := range arrows {
		t.Run(rule.name, func(t *testing.T) {
			for _, pattern := range rule.packages {
				root, all := strings.CutSuffix(pattern, "/...")
				found := false
				for pkg, imports := range deps {
					if pkg != module+root && !(all && below(module+root)(pkg)) {
						continue
					}
					found = true
					for _, imported := range imports {
						if rule.not(imported) {
							t.Errorf("%s imports %s: see 'go list -deps' for the way", pkg, imported)
						}
					}
				}
				if !found {
					t.Errorf("there is no package %s", pattern)
				}
			}
			if !slices.ContainsFunc(deps[module+rule.control], rule.not) {
				t.Errorf("%s is not seen to import what this rule is about", rule.control)
			}
		})
	}
}

// dependencies returns the direct and indirect imports of each package of the module, without its tests.
func dependencies(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Deps " "}}`, module+"...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	deps := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		deps[words[0]] = words[1:]
	}
	return deps
}

// TestPackagesImportNoTemplates keeps templates out of the program. Templates call methods by name. So the linker would
// keep every method of every type, and the program would be 50 % larger.
func TestPackagesImportNoTemplates(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{.ImportPath}}: {{join .Imports " "}}`, module+"cmd/kubejoin").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	seen := false
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(line, ": ")
		if !strings.HasPrefix(pkg, module) { // skip packages outside of this module
			continue
		}
		seen = seen || pkg == module+"cmd/kubejoin"
		for imported := range strings.FieldsSeq(imports) {
			if imported == "text/template" || imported == "html/template" {
				t.Errorf("%s imports %s", pkg, imported)
			}
		}
	}
	if !seen {
		t.Error("go list has no cmd/kubejoin, so this check cannot fail")
	}
}

// TestOnlyPemfileReadsPEM allows functions that skip unreadable PEM blocks only in package pemfile. With them, a
// certificate can silently vanish from a bundle. Example programs and tests may use them.
func TestOnlyPemfileReadsPEM(t *testing.T) {
	skips := regexp.MustCompile(`\b(pem\.Decode|\w*\.AppendCertsFromPEM|tls\.(Load)?X509KeyPair|(cert|certutil)\.(ParseCertsPEM|CertsFromFile|NewPool\w*))\(`)
	seen := false
	eachFile(t, []string{"test", "examples", "internal/testing", "bin"}, func(name, source string) {
		found := skips.FindString(source)
		if strings.HasPrefix(name, "internal/pemfile/") {
			seen = seen || found != ""
		} else if found != "" && !strings.HasSuffix(name, "_test.go") {
			t.Errorf("%s calls %s…): use internal/pemfile", name, found)
		}
	})
	if !seen {
		t.Error("internal/pemfile is not seen to read PEM, so this check cannot fail")
	}
}

// eachFile visits the Go files of the repository outside of some folders.
func eachFile(t *testing.T, skipped []string, visit func(name, source string)) {
	t.Helper()
	root := os.DirFS("../..")
	must.OK(t, fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skipped, name):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(name, ".go"):
			return nil
		}
		source, err := fs.ReadFile(root, name)
		visit(name, string(source))
		return err
	}))
}

// TestNoFlagIsListOfPflag forbids the list types of pflag. They read one CSV record, and silently drop all other lines.
func TestNoFlagIsListOfPflag(t *testing.T) {
	list := regexp.MustCompile(`\.String(Slice|Array)(Var)?P?\(`)
	if !list.MatchString("f.StringSliceVar(") || !list.MatchString("f.StringArrayP(") {
		t.Error("the pattern does not match, so this check cannot fail")
	}
	eachFile(t, nil, func(name, source string) {
		if found := list.FindString(source); found != "" && name != "internal/imports/imports_test.go" {
			t.Errorf("%s calls %s…): use listVar of cmd/kubejoin", name, found)
		}
	})
}

// TestSleepsOnlyWithSynctest forbids sleeps in tests with a real clock, because sleeps are too short on a busy machine.
// Such tests wait for a state with internal/testing/wait. Tests of whole programs are below test/.
func TestSleepsOnlyWithSynctest(t *testing.T) {
	sleep := regexp.MustCompile(`\btime\.Sleep\(`)
	seen := false
	eachFile(t, []string{"test"}, func(name, source string) {
		if !strings.HasSuffix(name, "_test.go") || !sleep.MatchString(source) {
			return
		}
		if seen = true; !strings.Contains(source, `"testing/synctest"`) {
			t.Errorf("%s sleeps without testing/synctest: use internal/testing/wait", name)
		}
	})
	if !seen {
		t.Error("no test is seen to sleep, so this check cannot fail")
	}
}

// TestOnlyCommandsImport ensures that only commands import packages of the command line.
func TestOnlyCommandsImport(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}}: {{join .Imports " "}} {{join .TestImports " "}} {{join .XTestImports " "}}`, module+"...").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	for _, only := range []string{"github.com/spf13/cobra", "github.com/spf13/pflag", module + "internal/daemon"} {
		seen := false
		for line := range strings.Lines(string(out)) {
			pkg, imports, _ := strings.Cut(line, ": ")
			switch {
			case !slices.Contains(strings.Fields(imports), only):
			case strings.HasPrefix(pkg, module+"cmd/"):
				seen = true
			default:
				t.Errorf("%s imports %s: only packages below cmd may", pkg, only)
			}
		}
		if !seen {
			t.Errorf("no package below cmd imports %s, so this check cannot fail", only)
		}
	}
}
