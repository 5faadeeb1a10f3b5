package docs

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// docs/metrics.md must have a row for each metric, and no other rows.
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

// chinese maps each Chinese page to the English page that it translates.
var chinese = map[string]string{
	"README.zh-CN.md":               "README.md",
	"docs/zh-CN/install.md":         "docs/install.md",
	"docs/zh-CN/tokens.md":          "docs/tokens.md",
	"docs/zh-CN/troubleshooting.md": "docs/troubleshooting.md",
}

// TestChinesePagesFollowTheEnglishOnes catches a Chinese page that has other commands, sections or table rows than its
// English page. test/commands runs the commands of the English page.
func TestChinesePagesFollowTheEnglishOnes(t *testing.T) {
	t.Parallel()
	for name := range pages(t) {
		if strings.Contains(name, "zh-CN") && chinese[name] == "" {
			t.Errorf("%s is not in the table of pages in Chinese", name)
		}
	}
	for name, english := range chinese {
		want, got := read(t, english), read(t, name)
		for what, r := range map[string]*regexp.Regexp{"block": mdFence, "heading": mdLevel, "row": mdRow} {
			inEnglish, inChinese := r.FindAllString(want, -1), r.FindAllString(got, -1)
			if what == "row" { // count rows only: their text is translated
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

// terms maps patterns of words that Chinese pages must not use to the words to use instead. The Chinese terms of Kubernetes
// come from kubernetes.io.
var terms = map[*regexp.Regexp]string{
	regexp.MustCompile(`(?:^|[^动])引导令牌`):              "启动引导令牌",
	regexp.MustCompile(`(?:每个|一个|各|在)控制平面(?:[^节]|$)`): "控制平面节点",
	regexp.MustCompile(`CA ?(?:的|及其)?密钥`):             "CA 私钥",
	regexp.MustCompile(`签发者`):                         "签名者",
	regexp.MustCompile(`拒之门外`):                        "禁止其访问集群",
	regexp.MustCompile(`(?:由人|手动|手工)批准`):              "人工批准",
	regexp.MustCompile(`令牌(?:机密|秘密)`):                 "令牌密钥",
	regexp.MustCompile(`不匿名访问`):                       "无需匿名访问即可发现",
}

var (
	mdStart   = regexp.MustCompile(`^ *(?:[-*#|>]|\d+\.|<!--|!\[|$)`) // start of a line that does not continue a paragraph
	mdText    = regexp.MustCompile(`^ *(?:[-*>]|\d+\.|[^ #|<!])`)     // start of a line that the next line may continue
	tokenWord = regexp.MustCompile(`(?:启动引导)?令牌`)
)

// TestChinesePagesReadWell catches a line break inside a paragraph, which GitHub shows as a space, and words that differ
// from page to page.
func TestChinesePagesReadWell(t *testing.T) {
	t.Parallel()
	for name := range chinese {
		introduced, before := false, ""
		for i, line := range strings.Split(withoutCode(read(t, name)), "\n") {
			if mdText.MatchString(before) && !mdStart.MatchString(line) {
				t.Errorf("%s:%d: the line continues a paragraph; write each paragraph in one line", name, i+1)
			}
			before = line
			for wrong, right := range terms {
				if found := wrong.FindString(line); found != "" {
					t.Errorf("%s:%d: %q, want %s", name, i+1, found, right)
				}
			}
			word := tokenWord.FindString(strings.ReplaceAll(line, "持有者令牌", ""))
			if introduced || word == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "- [") {
				continue
			}
			introduced = true
			if word == "令牌" {
				t.Errorf("%s:%d: the first token is 令牌, want 启动引导令牌", name, i+1)
			}
		}
	}
}

var (
	pictured = regexp.MustCompile(`(?m)^\w+ --?> \w+: `)
	numbers  = regexp.MustCompile(`(?m)^- \*\*(\d+)(?:, (\d+))?\*\*: `)
)

// TestStepsHaveNumbersOfPicture catches a step of docs/how-it-works.md whose number is missing or differs from its message
// in the picture of a join. The pictures in other languages must have the same messages.
func TestStepsHaveNumbersOfPicture(t *testing.T) {
	t.Parallel()
	arrows := pictured.FindAllString(read(t, "docs/join.txt"), -1)
	if translated := pictured.FindAllString(read(t, "docs/zh-CN/join.txt"), -1); len(arrows) == 0 || !slices.Equal(arrows, translated) {
		t.Errorf("the picture in Chinese has the messages\n%q\nand the English one\n%q", translated, arrows)
	}
	var want, got []string
	for i := range arrows {
		want = append(want, strconv.Itoa(i+1))
	}
	page := read(t, "docs/how-it-works.md")
	for _, m := range numbers.FindAllStringSubmatch(page, -1) {
		got = append(got, slices.DeleteFunc(m[1:], func(n string) bool { return n == "" })...)
	}
	if alt := "A join in " + strconv.Itoa(len(arrows)) + " messages"; !slices.Equal(got, want) || !strings.Contains(page, alt) {
		t.Errorf("docs/how-it-works.md has the steps %q, want %q and %q", got, want, alt)
	}
}
