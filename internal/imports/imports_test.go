// Package imports_test holds the arrows between packages in their direction.
package imports_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestNoClientGo keeps the Kubernetes client out of what an importer may want without a
// cluster, however far down: only adapters talk to the API server.
func TestNoClientGo(t *testing.T) {
	const module = "github.com/kubejoin/kubejoin/"
	for _, pkg := range []string{"tokens", "clusterinfo", "clusterinfo/joinformat", "signer", "signer/approval", "signer/issuance"} {
		t.Run(pkg, func(t *testing.T) {
			deps := goList(t, module+pkg)
			if !deps[module+pkg] {
				t.Fatalf("go list -deps of %s does not have the package itself", pkg)
			}
			for dep := range deps {
				if dep == "k8s.io/client-go" || strings.HasPrefix(dep, "k8s.io/client-go/") {
					t.Errorf("%s imports %s: see 'go mod why' or 'go list -deps' for the way", pkg, dep)
				}
			}
		})
	}
	// The test itself sees what it looks for.
	if !goList(t, module+"tokens/secretstore")["k8s.io/client-go/kubernetes"] {
		t.Error("tokens/secretstore is not seen to import k8s.io/client-go")
	}
}

// TestNoTemplates keeps templates out of what is linked: they call methods by name, so that the linker
// keeps every method of every type. The program would be half as large again.
func TestNoTemplates(t *testing.T) {
	const module = "github.com/kubejoin/kubejoin/"
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{.ImportPath}}: {{join .Imports " "}}`, module+"cmd/kubejoin").CombinedOutput()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, out)
	}
	seen := false
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(line, ": ")
		if !strings.HasPrefix(pkg, module) { // of others the linker knows what is used
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
		t.Error("go list has no cmd/kubejoin: this check could not fail")
	}
}

func goList(t *testing.T, pkg string) map[string]bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).CombinedOutput()
	if err != nil {
		t.Fatalf("go list -deps %s: %v\n%s", pkg, err, out)
	}
	deps := map[string]bool{}
	for dep := range strings.FieldsSeq(string(out)) {
		deps[dep] = true
	}
	return deps
}
