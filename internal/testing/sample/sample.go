// Package sample compares the sample output of a page of the docs with the output of a test.
package sample

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"
	"testing"
)

var (
	block   = regexp.MustCompile("(?ms)^<!-- run by (Test\\w+) -->\n```(?:text|console|json)\n(.*?)^```$")
	prompt  = regexp.MustCompile(`(?m)^\$ .*\n`)
	tokenID = regexp.MustCompile(`\b([a-z0-9]{6})(?:\.[a-z0-9]{16}| is spent| never expires)\b`)
	skipped = regexp.MustCompile(`(?m)^…\n`)
)

// varying are values that differ from run to run. The age in a column also sets the spaces after it.
var varying = []struct {
	value *regexp.Regexp
	name  string
}{
	{regexp.MustCompile(`(ID\d+)\.[a-z0-9]{16}\b`), "$1.SECRET"},
	{regexp.MustCompile(`\bsha256:[0-9a-f]{64}\b`), "sha256:HASH"},
	{regexp.MustCompile(`\b[b-z][aiou][b-z][aiou][b-z](?:-[b-z][aiou][b-z][aiou][b-z]){3}\b`), "WORDS"},
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "TIME"},
	{regexp.MustCompile(`(?m)(  )(?:\d+[smhd])+(?:  +|$)`), "${1}AGE "},
	{regexp.MustCompile(`\b127\.0\.0\.1:\d+`), "127.0.0.1:PORT"},
}

// Check fails the test if the samples on page differ from got. They are the blocks of page under a comment "run by" this
// test, without typed commands. Tokens, hashes and their words, times, ages and ports of 127.0.0.1 may differ, but two places with one
// token ID have one in got, too. In a sample, … stands for the rest of a line, and a line of … for any lines.
func Check(t testing.TB, page, got string) {
	t.Helper()
	if want := Of(t, page); !matches(want, got) {
		t.Errorf("%s shows\n%s\nthe output is\n%s", page, want, got)
	}
}

// Of returns the samples that [Check] compares.
func Of(t testing.TB, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	for above := "../"; errors.Is(err, fs.ErrNotExist) && len(above) < 30; above += "../" {
		text, err = os.ReadFile(above + page)
	}
	if err != nil {
		t.Fatal(err)
	}
	test, _, _ := strings.Cut(t.Name(), "/")
	var all strings.Builder
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		if m[1] == test {
			all.WriteString(prompt.ReplaceAllString(m[2], ""))
		}
	}
	if all.Len() == 0 {
		t.Fatalf("%s has no output under <!-- run by %s -->", page, test)
	}
	return all.String()
}

func matches(sample, got string) bool {
	pattern := regexp.QuoteMeta(skipped.ReplaceAllString(normalise(sample), "\x00"))
	pattern = strings.NewReplacer("\x00", `(?:.*\n)*`, "…", ".*").Replace(pattern)
	return regexp.MustCompile(`\A` + pattern + `\z`).MatchString(normalise(got))
}

func normalise(text string) string {
	seen := map[string]bool{}
	for _, m := range tokenID.FindAllStringSubmatch(text, -1) {
		if id := m[1]; !seen[id] {
			seen[id] = true
			text = regexp.MustCompile(`\b`+id+`\b`).ReplaceAllString(text, fmt.Sprint("ID", len(seen)))
		}
	}
	for _, v := range varying {
		text = v.value.ReplaceAllString(text, v.name)
	}
	return text
}
