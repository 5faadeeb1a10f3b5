package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestFindsGuards(t *testing.T) {
	for name, test := range map[string]struct {
		function string
		want     []string // the expected guards
	}{
		"error":                {`func f() error { if a { return err }; return nil }`, []string{"a"}},
		"error of a call":      {`func f() error { if err := g(); err != nil { return err }; return nil }`, []string{"err := g(); err != nil"}},
		"error before":         {`func f() error { err := g(); if err != nil { return err }; return nil }`, []string{"err := g(); err != nil"}},
		"operands":             {`func f() error { if a || (b || c && d) { return err }; return nil }`, []string{"a", "b", "c && d"}},
		"the same twice":       {`func f() error { if a { return err }; if a { return err }; return nil }`, []string{"a", "a #2"}},
		"success":              {`func f() error { if a { return nil }; return err }`, nil},
		"nothing":              {`func f() (Decision, error) { if a { return Decision{}, nil }; return d, nil }`, []string{"a"}},
		"false":                {`func f() (int, bool) { if a { return 0, false }; return 1, true }`, []string{"a"}},
		"true":                 {`func f() bool { if a { return true }; return false }`, nil},
		"conditions of true":   {`func f() bool { return a && (b || c) }`, []string{"a", "b || c"}},
		"conditions of false":  {`func f() bool { return a || b && c }`, []string{"a", "b && c"}},
		"problem":              {`func f() *problem { if a { return p }; return nil }`, []string{"a"}},
		"list of errors":       {`func f() error { if a { errs = append(errs, e) }; return nil }`, []string{"a"}},
		"error of variable":    {`func f() (err error) { if a { err = e }; if b { err = nil }; return err }`, []string{"a"}},
		"error of field":       {`func f() (p plan) { switch { case a: p.err = e; g(); case b: p.err = nil }; return p }`, []string{"a"}},
		"plan with error":      {`func f() (p plan) { if a { p = plan{n, e} }; if b { p = plan{err: e} }; return p }`, []string{"b"}},
		"plan that failed":     {`func f() (p plan) { if p.err != nil { return p }; if q.err != nil { return p }; return p }`, []string{"p.err != nil"}},
		"error of an attempt":  {`func f() (err error) { if a { v, err = g() }; if b { err := g(); h(err) }; return err }`, nil},
		"continue":             {`func f() { for { if a { continue }; g() } }`, []string{"a"}},
		"switch of conditions": {`func f() error { switch { case a, b: return err; case c: return nil }; return nil }`, []string{"a", "b"}},
		"switch of a value":    {`func f() error { switch a { case b: return err }; return nil }`, nil},
		"function of variable": {`var f = func() error { if a { return err }; return nil }`, []string{"a"}},
		"function in function": {`func f() { g(func() error { if a { return err }; return nil }) }`, []string{"a"}},
	} {
		path := filepath.Join(t.TempDir(), "x.go")
		must.OK(t, os.WriteFile(path, []byte("package x\n"+test.function), 0o600))
		source, guards, err := guardsOf(path, 1)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var got []string
		for _, g := range guards {
			got = append(got, g.text)
		}
		if strings.Join(got, ";;") != strings.Join(test.want, ";;") {
			t.Errorf("%s: guards %q, want %q", name, got, test.want)
		}
		if n := len(regexp.MustCompile(`mutant\(\d+\)`).FindAllString(source, -1)); n != len(test.want) {
			t.Errorf("%s: %d switches for %d guards in %s", name, n, len(test.want), source)
		}
	}
}

func TestSwitchesKeepConditions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.go")
	must.OK(t, os.WriteFile(path, []byte("package x\nfunc f() bool {\n\tif a == 1 || b { return false }\n\treturn c && d\n}"), 0o600))
	source, _, err := guardsOf(path, 7)
	want := "package x\nfunc f() bool {\n\tif ((a == 1) && mutant(7)) || ((b) && mutant(8)) { return false }\n\treturn ((c) || !mutant(9)) && ((d) || !mutant(10))\n}"
	if err != nil || source != want {
		t.Errorf("guardsOf gives %v and\n%s\nwant\n%s", err, source, want)
	}
}

// A line of explained.txt without a guard is stale. The report comes after the run, so that a stale line does not hide
// unnoticed guards.
func TestExplanationNeedsGuard(t *testing.T) {
	for name, test := range map[string]struct{ text, stale, want string }{
		"no guard":          {"signer/ca.go: f: b\n  reason\n", "signer/ca.go: f: b", ""},
		"of another folder": {"server/ca.go: f: b\n  reason\n", "", ""},
		"guard":             {"# comment\nsigner/ca.go: f: a\n  reason\n", "", ""},
		"one of two":        {"signer/ca.go: f: b\nsigner/ca.go: f: a\n  reason\n", "signer/ca.go: f: b", ""},
		"no reason":         {"signer/ca.go: f: a\n", "", "no reason for signer/ca.go: f: a"},
	} {
		g := &guard{file: "signer/ca.go", function: "f", text: "a", killer: "TestA"}
		stale, err := explain([]*guard{g}, test.text)
		if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: explain = %v, want %q", name, err, test.want)
		}
		if got := strings.Join(stale, ";"); got != test.stale {
			t.Errorf("%s: stale lines %q, want %q", name, got, test.stale)
		}
		if err := report([]*guard{g}, stale); (err != nil) != (test.stale != "") {
			t.Errorf("%s: report = %v with stale lines %q", name, err, stale)
		}
		if (g.reason == "reason") != strings.Contains(test.text, "f: a\n  reason") {
			t.Errorf("%s: the guard has reason %q", name, g.reason)
		}
	}
}

// Each line of explained.txt must match a guard. A change of a condition must also change or remove its line.
func TestExplainedGuardsExist(t *testing.T) {
	t.Chdir("../..")
	text := must.Value(os.ReadFile(explainedFile))(t)
	var guards []*guard
	for _, folder := range strings.Fields(guarded) {
		must.OK(t, filepath.WalkDir(strings.TrimSuffix(folder, "..."), func(path string, d fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			_, found, err := guardsOf(path, 1)
			for _, g := range found {
				g.file = filepath.ToSlash(path)
			}
			guards = append(guards, found...)
			return err
		}))
	}
	stale, err := explain(guards, string(text))
	if err != nil {
		t.Error(err)
	}
	// A line about a folder without guards is stale, too.
	explained := 0
	for _, g := range guards {
		if g.reason != "" {
			explained++
		}
	}
	lines := regexp.MustCompile(`(?m)^[^#\s].*`).FindAllString(string(text), -1)
	if explained != len(lines) || len(stale) > 0 {
		t.Errorf("%s: %d lines explain %d guards; these name no guard:\n%s", explainedFile, len(lines), explained, strings.Join(stale, "\n"))
	}
}
