package test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest    = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	declaredTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
	namedFile    = regexp.MustCompile(`\bdeploy/[a-z./-]*[a-z]`)
)

// The tests and files that docs/security-model.md names are there.
func TestSecurityModelNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, "_test.go") {
			for _, m := range declaredTest.FindAllSubmatch(readFile(t, path), -1) {
				declared[string(m[1])] = true
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	model := string(readFile(t, "../docs/security-model.md"))
	named := namedTest.FindAllStringSubmatch(model, -1)
	if len(named) == 0 {
		t.Fatal("docs/security-model.md names no tests")
	}
	for _, m := range named {
		if !declared[m[1]] {
			t.Errorf("there is no test %s", m[1])
		}
	}
	for _, name := range namedFile.FindAllString(model, -1) {
		if found, err := filepath.Glob(filepath.Join("..", name)); err != nil || len(found) == 0 {
			t.Errorf("there is no %s", name)
		}
	}
}
