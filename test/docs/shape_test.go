package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubejoin/kubejoin/test/harness"
)

// Limits on the shape of a page, so that a reader can find things in it.
const (
	maxLines       = 250
	maxReadmeLines = 100
	reserve        = 5   // lines below the limit, so that a page near its limit is shortened before it is full
	maxColumns     = 120 // columns of prose; not of code, tables and links
	maxCellWords   = 20
	screen         = 60 // lines: a longer page has a table of contents
)

var (
	mdFence  = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	mdLink   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	mdHTML   = regexp.MustCompile(`(?:src|href|srcset)="([^"]+)"`)
	mdTitle  = regexp.MustCompile(`(?m)^(#+) (.*)$`)
	notSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	mdLevel  = regexp.MustCompile(`(?m)^##+ `)
	mdRow    = regexp.MustCompile(`(?m)^\|`)
	contents = regexp.MustCompile(`(?s)\n## (?:Contents|目录)\n(.*?)\n## `)
	external = regexp.MustCompile(`^(https?|mailto):`)
)

// pages returns the text of each Markdown file of the repository, by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*.md", "examples/*/*.md"} {
		files, err := filepath.Glob(harness.RepositoryFile(t, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			name, err := filepath.Rel(harness.RepositoryFile(t, ""), file)
			if err != nil {
				t.Fatal(err)
			}
			all[name] = string(harness.ReadFile(t, file))
		}
	}
	if len(all) < 15 {
		t.Fatalf("%d pages found: the repository has more", len(all))
	}
	return all
}

// withoutCode blanks the code blocks of a page, and keeps the line numbers.
func withoutCode(page string) string {
	return mdFence.ReplaceAllStringFunc(page, func(block string) string { return strings.Repeat("\n", strings.Count(block, "\n")) })
}

func TestPagesAreShortAndNarrow(t *testing.T) {
	t.Parallel()
	for name, page := range pages(t) {
		limit := maxLines
		if strings.HasPrefix(name, "README") {
			limit = maxReadmeLines
		}
		if lines := strings.Count(page, "\n"); lines > limit && name != "CHANGELOG.md" && name != "docs/codes.md" { // docs/codes.md is generated
			t.Errorf("%s has %d lines, want at most %d", name, lines, limit)
		} else if lines > screen && strings.HasPrefix(name, "docs/") && !contents.MatchString(page) {
			t.Errorf("%s has %d lines and no contents", name, lines)
		}
		for i, line := range strings.Split(withoutCode(page), "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "|") {
				limit := maxCellWords
				if name == "docs/codes.md" && strings.HasPrefix(line, "| `Kubejoin") { // ignore descriptions of alerts
					limit = 2 * maxCellWords
				}
				for cell := range strings.SplitSeq(strings.Trim(line, "| "), " | ") {
					if words := len(strings.Fields(cell)); words > limit {
						t.Errorf("%s:%d: a table cell has %d words, want at most %d: %s", name, i+1, words, limit, cell)
					}
				}
				continue
			}
			if chinese[name] != "" { // in Chinese, a line break inside a paragraph shows as a space
				continue
			}
			if columns := utf8.RuneCountInString(mdLink.ReplaceAllString(line, "]")); columns > maxColumns {
				t.Errorf("%s:%d has %d columns, want at most %d", name, i+1, columns, maxColumns)
			}
		}
	}
}

// GitHub drops the cells of a row beyond the columns of its table. A row gets such cells, for example, from a pipe in a
// command.
func TestRowsHaveTheColumnsOfTheirTable(t *testing.T) {
	t.Parallel()
	for name, page := range pages(t) {
		columns := 0 // columns of the current table; 0 outside tables
		for i, line := range strings.Split(withoutCode(page), "\n") {
			if !strings.HasPrefix(line, "|") {
				columns = 0
				continue
			}
			n := strings.Count(line, "|") - strings.Count(line, `\|`)
			if columns == 0 {
				columns = n
			}
			if n != columns {
				t.Errorf("%s:%d: the row has %d columns, and its table %d: %s", name, i+1, n-1, columns-1, line)
			}
		}
	}
}

// The table of contents must list each heading of the second level.
func TestContentsAreComplete(t *testing.T) {
	t.Parallel()
	for name, page := range pages(t) {
		found := contents.FindStringSubmatch(page)
		if found == nil {
			continue
		}
		for _, m := range mdTitle.FindAllStringSubmatch(withoutCode(page), -1) {
			if m[1] == "##" && m[2] != "Contents" && m[2] != "目录" && !strings.Contains(found[1], "(#"+slug(m[2])+")") {
				t.Errorf("%s: the contents have no link to %q", name, m[2])
			}
		}
	}
}

// A link must lead to an existing file of the repository, and to an existing heading.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	all, links := pages(t), 0
	for name, page := range all {
		page = withoutCode(page)
		for _, m := range slices.Concat(mdLink.FindAllStringSubmatch(page, -1), mdHTML.FindAllStringSubmatch(page, -1)) {
			if external.MatchString(m[1]) {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = filepath.Join(filepath.Dir(name), file)
			}
			if found, err := filepath.Glob(harness.RepositoryFile(t, target)); err != nil || len(found) == 0 {
				t.Errorf("%s: there is no %s", name, target)
			} else if anchor != "" && !slices.Contains(anchors(all[target]), anchor) {
				t.Errorf("%s: %s has no heading #%s", name, target, anchor)
			}
		}
	}
	if links < 50 {
		t.Errorf("%d links found: the docs have more", links)
	}
}

// anchors returns the anchors of a page's headings, as GitHub makes them.
func anchors(page string) []string {
	var all []string
	seen := map[string]int{}
	for _, m := range mdTitle.FindAllStringSubmatch(withoutCode(page), -1) {
		s := slug(m[2])
		if n := seen[s]; n > 0 {
			all = append(all, s+"-"+string(rune('0'+n)))
		} else {
			all = append(all, s)
		}
		seen[s]++
	}
	return all
}

func slug(heading string) string {
	heading = mdLink.ReplaceAllString(heading, "]")
	return strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
