package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var flagRow = regexp.MustCompile("(?m)^\\| (?:`-[a-z]`, )?`--([a-z0-9-]+)[^`]*`")

// docs/configuration.md has a row for each flag of serve, and no row for a flag that does not exist. Each flag of the
// other commands is named on some page.
func TestDocsNameEveryFlag(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range flagRow.FindAllStringSubmatch(string(page), -1) {
		rows[m[1]] = true
	}
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	var docs strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		docs.Write(text)
	}
	known := map[string]bool{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Name() == "completion" { // cobra's
			return
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			known[f.Name] = true
			if f.Hidden || f.Name == "help" {
				return
			}
			if c.Name() == "serve" && !rows[f.Name] {
				t.Errorf("docs/configuration.md has no row for --%s", f.Name)
			}
			if !strings.Contains(docs.String(), "--"+f.Name) {
				t.Errorf("no page names --%s of %s", f.Name, c.CommandPath())
			}
		})
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand())
	if len(known) < 50 {
		t.Fatalf("%d flags found: kubejoin has more", len(known))
	}
	for name := range rows {
		if !known[name] {
			t.Errorf("docs/configuration.md has a row for --%s, which does not exist", name)
		}
	}
}
