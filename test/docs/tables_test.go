package docs

import (
	"regexp"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	return string(harness.ReadFile(t, harness.RepositoryFile(t, name)))
}

var (
	declaredMetric = regexp.MustCompile(`"(kubejoin_[a-z0-9_]+)"`)
	namedMetric    = regexp.MustCompile("(?m)^\\| `(kubejoin_[a-z0-9_]+)`")
)

// docs/metrics.md has a row for each metric, and no other.
func TestMetricsPageIsComplete(t *testing.T) {
	t.Parallel()
	declared := map[string]bool{}
	for _, dir := range []string{"clusterinfo", "cmd", "internal", "server", "signer", "tokens"} {
		for name := range declaredIn(t, harness.RepositoryFile(t, dir), declaredMetric) {
			declared[name] = true
		}
	}
	compareNames(t, "metric", declared, namesIn(read(t, "docs/metrics.md"), namedMetric))
}

var shBlock = regexp.MustCompile("(?ms)^(?:<!--[^\n]*\n)?```(?:sh|console)\n(.*?)^```$")

// chinese are the pages in Chinese, and the English ones that they follow.
var chinese = map[string]string{
	"README.zh-CN.md":               "README.md",
	"docs/zh-CN/install.md":         "docs/install.md",
	"docs/zh-CN/tokens.md":          "docs/tokens.md",
	"docs/zh-CN/troubleshooting.md": "docs/troubleshooting.md",
}

// TestChinesePagesFollowTheEnglishOnes catches a page in Chinese that has other commands, sections or rows of tables than
// its English one. test/commands runs the commands of the English page.
func TestChinesePagesFollowTheEnglishOnes(t *testing.T) {
	t.Parallel()
	for name, english := range chinese {
		want, got := read(t, english), read(t, name)
		for what, r := range map[string]*regexp.Regexp{"block": mdFence, "heading": mdLevel, "row": mdRow} {
			inEnglish, inChinese := r.FindAllString(want, -1), r.FindAllString(got, -1)
			if what == "row" { // the text of a row is translated
				inEnglish, inChinese = slices.Repeat([]string{""}, len(inEnglish)), slices.Repeat([]string{""}, len(inChinese))
			}
			if len(inEnglish) != len(inChinese) {
				t.Errorf("%s has %d of %q, and %s has %d", name, len(inChinese), what, english, len(inEnglish))
				continue
			}
			for i := range inEnglish {
				if inEnglish[i] != inChinese[i] {
					t.Errorf("%s: %s %d differs from %s:\n%s\n%s", name, what, i+1, english, inChinese[i], inEnglish[i])
				}
			}
		}
		if len(shBlock.FindAllString(want, -1)) == 0 {
			t.Errorf("%s has no commands: this test could not fail", english)
		}
	}
}
