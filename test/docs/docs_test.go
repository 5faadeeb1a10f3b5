// Package docs checks that the docs name what exists in the code, and the code what the docs name.
package docs

import (
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

var (
	namedTest    = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	declaredTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
	namedFile    = regexp.MustCompile(`\bdeploy/[a-z./-]*[a-z]`)
)

// The tests and files that the pages on security name are there.
func TestSecurityPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	err := filepath.WalkDir(harness.RepositoryFile(t, ""), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, "_test.go") {
			for _, m := range declaredTest.FindAllSubmatch(harness.ReadFile(t, path), -1) {
				declared[string(m[1])] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	model := read(t, "docs/security.md") + read(t, "docs/abuse.md")
	named := namedTest.FindAllStringSubmatch(model, -1)
	if len(named) == 0 {
		t.Fatal("the pages on security name no tests")
	}
	for _, m := range named {
		if !declared[m[1]] {
			t.Errorf("there is no test %s", m[1])
		}
	}
	for _, name := range namedFile.FindAllString(model, -1) {
		if found, err := filepath.Glob(harness.RepositoryFile(t, name)); err != nil || len(found) == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}

var (
	declaredReason = regexp.MustCompile(`\bReason[A-Za-z]* *= "([A-Za-z]+)"`)
	namedReason    = regexp.MustCompile("(?m)^\\| `([A-Za-z]+)` \\| ")
	declaredCheck  = regexp.MustCompile(`\.check\("([a-z-]+)"`)
)

// Each reason of a certificate that is not given is in the tables of docs/protocol.md, and no other.
func TestProtocolHasEveryReason(t *testing.T) {
	t.Parallel()
	_, section, found := strings.Cut(read(t, "docs/protocol.md"), "\n## Refusals\n")
	if !found {
		t.Fatal("docs/protocol.md has no section Refusals")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	compareNames(t, "reason", declaredIn(t, harness.RepositoryFile(t, "signer"), declaredReason), namesIn(section, namedReason))
}

// declaredIn are the names that a pattern finds in the code of a folder and those below it.
func declaredIn(t *testing.T, dir string, pattern *regexp.Regexp) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			maps.Copy(names, namesIn(string(harness.ReadFile(t, path)), pattern))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func namesIn(text string, pattern *regexp.Regexp) map[string]bool {
	names := map[string]bool{}
	for _, m := range pattern.FindAllStringSubmatch(text, -1) {
		names[m[1]] = true
	}
	return names
}

func compareNames(t *testing.T, what string, declared, named map[string]bool) {
	t.Helper()
	if len(declared) == 0 {
		t.Fatalf("no %s is declared: this test could not fail", what)
	}
	for name := range declared {
		if !named[name] {
			t.Errorf("%s %s is in no table", what, name)
		}
	}
	for name := range named {
		if !declared[name] {
			t.Errorf("there is no %s %s", what, name)
		}
	}
}
