// Package docs checks that names in the docs exist in the code, and that names in the code exist in the docs.
package docs

import (
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

var (
	namedTest    = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	declaredTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t \*testing\.T\)`)
	namedFile    = regexp.MustCompile(`\bdeploy/[a-z./-]*[a-z]`)
)

// declaredTests returns the folders of each test of the repository, by the name of the test.
func declaredTests(t *testing.T) map[string][]string {
	t.Helper()
	declared := map[string][]string{}
	err := filepath.WalkDir(harness.RepositoryFile(t, ""), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, "_test.go") {
			for name := range namesIn(string(harness.ReadFile(t, path)), declaredTest) {
				declared[name] = append(declared[name], filepath.Dir(path))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return declared
}

// The tests and files that the pages on security name must exist.
func TestSecurityPagesNameWhatExists(t *testing.T) {
	t.Parallel()
	declared := declaredTests(t)
	for _, name := range []string{"docs/security.md", "docs/abuse.md", "docs/invariants.md"} {
		page := read(t, name)
		named := namedTest.FindAllStringSubmatch(page, -1)
		if len(named) == 0 {
			t.Errorf("%s names no tests", name)
		}
		for _, m := range named {
			if declared[m[1]] == nil {
				t.Errorf("%s: there is no test %s", name, m[1])
			}
		}
		for _, file := range namedFile.FindAllString(page, -1) {
			if found, err := filepath.Glob(harness.RepositoryFile(t, file)); err != nil || len(found) == 0 {
				t.Errorf("%s: there is no %s", name, file)
			}
		}
	}
}

var (
	commentedBlock = regexp.MustCompile("(?m)^(<!--.*)\n```(?:sh|console)$")
	runComment     = regexp.MustCompile(`^<!-- run (?:by (Test\w+)|after docs/\S+#\S+) -->$`)
)

// TestCommandsOutsideTheirPageHaveATest catches a block of commands that no test runs. test/commands runs every block,
// except for those whose comment names another test.
func TestCommandsOutsideTheirPageHaveATest(t *testing.T) {
	t.Parallel()
	declared, comments := declaredTests(t), 0
	for name, page := range pages(t) {
		if !strings.HasPrefix(name, "README") && !strings.HasPrefix(name, "docs/") {
			continue
		}
		for _, m := range commentedBlock.FindAllStringSubmatch(page, -1) {
			comments++
			run := runComment.FindStringSubmatch(m[1])
			if run == nil {
				t.Errorf("%s: comment %q, want 'run by' a test or 'run after' a section", name, m[1])
			} else if run[1] != "" && declared[run[1]] == nil {
				t.Errorf("%s: there is no test %s", name, run[1])
			}
		}
	}
	if comments == 0 {
		t.Error("no block has a comment: this test could not fail")
	}
}

var (
	anyBlock = regexp.MustCompile("(?ms)^([^\n]*)\n *```(\\w*)\n(.*?)^ *```$")
	output   = regexp.MustCompile(`^(?:|text|console|json)$`) // languages of sample outputs
	drawing  = regexp.MustCompile(`(?m)^ *\|[ |]*$`)
	typed    = regexp.MustCompile(`(?m)^(?:\$ .*\\\n(?:.*\\\n)*.*|\$ .*)\n`)
)

// TestSamplesAreCompared catches a sample output in an English page that no test compares with a real output. The samples
// in Chinese pages are equal to the English ones.
func TestSamplesAreCompared(t *testing.T) {
	t.Parallel()
	declared, samples := declaredTests(t), 0
	for name, page := range pages(t) {
		if strings.Contains(name, "zh-CN") || !strings.HasPrefix(name, "README") && !strings.HasPrefix(name, "docs/") {
			continue
		}
		for _, m := range anyBlock.FindAllStringSubmatch(page, -1) {
			if !output.MatchString(m[2]) || drawing.MatchString(m[3]) || m[2] == "console" && typed.ReplaceAllString(m[3], "") == "" {
				continue
			}
			samples++
			if run := runComment.FindStringSubmatch(m[1]); run == nil || !slices.ContainsFunc(declared[run[1]], testsName(t, name+`"`)) {
				t.Errorf("%s: no test compares this output; want <!-- run by TestX --> above it, and sample.Check(t, %q, output) in TestX:\n%s", name, name, m[3])
			}
		}
	}
	if samples < 5 {
		t.Errorf("%d samples found: the docs have more", samples)
	}
}

// testsName returns a function that reports whether the tests in a folder contain a text.
func testsName(t *testing.T, text string) func(folder string) bool {
	return func(folder string) bool {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		return err == nil && slices.ContainsFunc(files, func(file string) bool { return strings.Contains(string(harness.ReadFile(t, file)), text) })
	}
}

// declaredIn returns the names that a pattern finds in the code of a folder and its subfolders.
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
