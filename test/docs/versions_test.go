package docs

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/test/cluster"
)

var versionRange = regexp.MustCompile(`Kubernetes (1\.\d+) (?:to|至) (1\.\d+)`)

// TestSupportedVersionsAgree catches a page or a program that names other Kubernetes versions than the versions that the
// tests run.
func TestSupportedVersionsAgree(t *testing.T) {
	t.Parallel()
	versions, err := cluster.Versions()
	if err != nil {
		t.Fatal(err)
	}
	oldest, newest := versions[0], versions[len(versions)-1]
	minor := func(version string) string { return version[:strings.LastIndex(version, ".")] }
	if got, want := fmt.Sprintf("1.%d to 1.%d", doctor.OldestMinor, doctor.NewestMinor), minor(oldest)+" to "+minor(newest); got != want {
		t.Errorf("internal/doctor supports %s, and test/kube has %s", got, want)
	}
	for name, page := range pages(t) {
		found := versionRange.FindAllStringSubmatch(page, -1)
		for _, m := range found {
			if (m[1] != minor(oldest) || m[2] != minor(newest)) && name != "CHANGELOG.md" {
				t.Errorf("%s: %s, want %s to %s as in test/kube", name, m[0], minor(oldest), minor(newest))
			}
		}
		switch name {
		case "README.md", "README.zh-CN.md", "docs/install.md", "docs/doctor.md", "docs/versions.md":
			if len(found) == 0 {
				t.Errorf("%s does not name the supported versions of Kubernetes", name)
			}
		}
	}
	var rows []string
	for i, version := range versions {
		rows = append(rows, "| "+minor(version)+" | "+version+" | ")
		if want := fmt.Sprintf("1.%d", doctor.OldestMinor+i); minor(version) != want {
			t.Errorf("test/kube has Kubernetes %s, want %s: no version may be missing", version, want)
		}
	}
	for name, texts := range map[string][]string{
		"docs/versions.md":                 rows,
		"deploy/chart/kubejoin/Chart.yaml": {`kubeVersion: ">=` + minor(oldest) + `.0-0"`},
		"test/chart/schema_test.go":        {fmt.Sprintf("{%q, %q}", oldest, newest)},
		"test/chart/main.go":               {fmt.Sprintf("Version: %q", "v"+newest)},
		"Makefile":                         {"--kube-version " + minor(newest) + " "},
		".ci/run":                          {"\nmake test\nmake e2e CORE=1\n"},
	} {
		for _, text := range texts {
			if !strings.Contains(read(t, name), text) {
				t.Errorf("%s lacks %q, as in test/kube", name, text)
			}
		}
	}
}
