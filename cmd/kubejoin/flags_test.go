package main

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// otherNames maps a forbidden flag name to the name that all commands must use instead.
var otherNames = map[string]string{
	"out-dir": "output-dir", "out-file": "output-file", "ca-cert": "ca-file", "server": "url", "cert": "client-certificate",
}

// eachFlag calls visit with each flag of a command and its subcommands.
func eachFlag(c *cobra.Command, visit func(*cobra.Command, *pflag.Flag)) {
	c.InitDefaultHelpFlag()
	c.LocalFlags().VisitAll(func(f *pflag.Flag) { visit(c, f) })
	for _, sub := range c.Commands() {
		eachFlag(sub, visit)
	}
}

// A flag must mean the same in all commands: each duration allows days, -o is the output format, and no flag has a second name.
func TestFlagsMeanTheSameEverywhere(t *testing.T) {
	durations := 0
	eachFlag(rootCommand(), func(c *cobra.Command, f *pflag.Flag) {
		if f.Value.Type() == "duration" {
			durations++
			if err := f.Value.Set("2d"); err != nil || f.Value.String() != "48h" {
				t.Errorf("%s --%s=2d: %v, value %s", c.CommandPath(), f.Name, err, f.Value)
			}
		}
		if (f.Shorthand == "o") != (f.Name == "output") {
			t.Errorf("%s: flag --%s has shorthand %q; -o is --output, and --output has it", c.CommandPath(), f.Name, f.Shorthand)
		}
		if name := otherNames[f.Name]; name != "" {
			t.Errorf("%s: flag --%s, want --%s", c.CommandPath(), f.Name, name)
		}
	})
	if durations < 20 {
		t.Errorf("%d flags for durations", durations)
	}
}

// serve must pass the limits of tokens on to the server, where zero means the default, and a negative value means unlimited.
func TestServeLimitsTokens(t *testing.T) {
	for _, test := range []struct {
		args  []string
		ttl   time.Duration
		nodes int
	}{
		{nil, 168 * time.Hour, 100},
		{[]string{"--max-token-ttl=1d", "--max-token-nodes=5"}, 24 * time.Hour, 5},
		{[]string{"--max-token-ttl=0", "--max-token-nodes=0"}, -1, -1},
	} {
		var o serveOptions
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		o.register(flags)
		must.OK(t, flags.Parse(test.args))
		o.given = flags.Changed
		made := must.Value(o.options())(t)
		if made.Limits.MaxTokenTTL != test.ttl || made.Limits.MaxTokenNodes != test.nodes {
			t.Errorf("%q: got %s and %d, want %s and %d", test.args, made.Limits.MaxTokenTTL, made.Limits.MaxTokenNodes, test.ttl, test.nodes)
		}
	}
}

// The help must fit a terminal of 100 columns, and must not name files of the source tree.
func TestHelpFitsTheTerminal(t *testing.T) {
	lines := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		var out strings.Builder
		c.SetOut(&out)
		must.OK(t, c.Help())
		for line := range strings.Lines(out.String()) {
			lines++
			line = strings.TrimSuffix(line, "\n")
			if strings.Contains(c.CommandPath(), "completion") {
				continue // a command of cobra
			}
			if utf8.RuneCountInString(line) > helpWidth {
				t.Errorf("%s: more than %d columns: %s", c.CommandPath(), helpWidth, line)
			}
			if strings.Contains(strings.ReplaceAll(line, docsURL, ""), "docs/") || strings.Contains(line, "0m0s") {
				t.Errorf("%s: a page without its URL, or a duration with zeros at its end: %s", c.CommandPath(), line)
			}
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit(rootCommand())
	if lines < 1000 {
		t.Errorf("%d lines", lines)
	}
}

// Catches an error "want a or b" with a value that the flag refuses.
func TestFlagsTakeWhatTheirErrorsName(t *testing.T) {
	values := 0
	eachFlag(rootCommand(), func(c *cobra.Command, f *pflag.Flag) {
		err := c.Flags().Set(f.Name, "?")
		if err == nil {
			return
		}
		_, want, _ := strings.Cut(flagError(c.Flags(), err).Error(), "want ")
		if _, examples, found := strings.Cut(want, " such as "); found {
			want = examples
		}
		for value := range strings.SplitSeq(strings.ReplaceAll(want, " or ", ", "), ", ") {
			value = strings.Replace(value, "TEMPLATE", "{.id}", 1)
			if value == "" || strings.Contains(value, " ") {
				continue // the text describes the value instead of listing values
			}
			values++
			if err := c.Flags().Set(f.Name, value); err != nil {
				t.Errorf("%s --%s: the error names %q: %v", c.CommandPath(), f.Name, value, err)
			}
		}
	})
	if values < 200 {
		t.Errorf("%d values", values)
	}
}

func TestUnknownFlagNamesTheNearest(t *testing.T) {
	for args, want := range map[string]string{
		"token create --max-node 3":       "unknown flag: --max-node; want --max-nodes",
		"token create --completely-wrong": "unknown flag: --completely-wrong",
		"serve --datadir x":               "unknown flag: --datadir; want --data-dir",
		"issued list --kubeconfi x":       "unknown flag: --kubeconfi", // --kubeconfig is hidden there
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", args, err, want)
		}
	}
}

func TestDurationValue(t *testing.T) {
	for s, want := range map[string]time.Duration{"0": 0, "90s": 90 * time.Second, "-1h": -time.Hour, "1d": 24 * time.Hour, "1d12h": 36 * time.Hour, "0d1m30s": 90 * time.Second, "36500d": 36500 * 24 * time.Hour} {
		var d time.Duration
		if err := (*durationValue)(&d).Set(s); err != nil || d != want {
			t.Errorf("%q: %s, %v", s, d, err)
		}
	}
	for _, s := range []string{"", "d", "1", "1.5d", "-1d", "1d-2h", "1d+2h", "1d12", "1h1d", "1d1d", "5x", "36501d", "36500d1s", "1d876001h", "18446744073709551616d1h", "99999999999999999999d"} {
		d := time.Minute
		if err := (*durationValue)(&d).Set(s); err == nil || d != time.Minute {
			t.Errorf("%q: %s, want an error and no change", s, d)
		}
	}
}

// pflag's own lists read only the first line. Catches a name in the second line of --reserved-node-names that is not reserved.
func TestListFlagsTakeEachLine(t *testing.T) {
	lists := 0
	eachFlag(rootCommand(), func(c *cobra.Command, f *pflag.Flag) {
		if f.Value.Type() != "stringSlice" {
			return
		}
		lists++
		if err := f.Value.Set("a\nb\n"); err != nil || f.Value.String() != "a,b" {
			t.Errorf("%s --%s with two lines: %v, value %s", c.CommandPath(), f.Name, err, f.Value)
		}
		if err := f.Value.Set("c,d"); err != nil || f.Value.String() != "a,b,c,d" {
			t.Errorf("%s: set --%s a second time: got error %v and value %s, want a,b,c,d", c.CommandPath(), f.Name, err, f.Value)
		}
		if err := f.Value.Set(""); (err == nil) != slices.Contains(mayBeEmpty, f.Name) || f.Value.String() != "a,b,c,d" {
			t.Errorf("%s --%s without a value: %v, value %s", c.CommandPath(), f.Name, err, f.Value)
		}
	})
	if lists < 25 {
		t.Errorf("%d flags for lists", lists)
	}
}

func TestParseList(t *testing.T) {
	for s, want := range map[string][]string{
		"a":                      {"a"},
		"a,b":                    {"a", "b"},
		"a\nb":                   {"a", "b"},
		"a,b\nc":                 {"a", "b", "c"},
		"\na\r\nb\r\n\n":         {"a", "b"}, // line ends of Windows
		" a , \tb \n c ":         {"a", "b", "c"},
		`"a,b", "say ""x""",c d`: {"a,b", `say "x"`, "c d"},
	} {
		if list, err := parseList(s, false); err != nil || !slices.Equal(list, want) {
			t.Errorf("%q: got %q, %v, want %q", s, list, err, want)
		}
	}
	for s, want := range map[string]string{
		"":          "is empty; leave it out for the default",
		" \n":       "is empty; leave it out for the default",
		",":         "number 1 of the list is empty",
		"a,":        "number 2 of the list is empty",
		"a,,b":      "number 2 of the list is empty",
		"a\n\nb":    "number 2 of the list is empty",
		"a\n \r\nb": "number 2 of the list is empty",
		"a\nb, ,c":  "number 3 of the list is empty",
		`a,""`:      "number 2 of the list is empty",
		"a\n\"b":    `line 2 of the list, "\"b": want quotation marks around a whole entry, or none`,
	} {
		if list, err := parseList(s, false); err == nil || err.Error() != want {
			t.Errorf("%q: got %q, %v, want the error %q", s, list, err, want)
		}
	}
	if list, err := parseList("", true); err != nil || list == nil || len(list) > 0 {
		t.Errorf("an empty list that is allowed: got %q, %v", list, err)
	}
}

// closed is a standard output that was closed.
type closed struct{}

func (closed) Write([]byte) (int, error) { return 0, fs.ErrClosed }

// Catches a command that deletes further tokens after it could not print which token it has deleted.
func TestEachEndsIfALineCannotBePrinted(t *testing.T) {
	cmd, calls := &cobra.Command{}, 0
	cmd.SetOut(closed{})
	err := each(cmd, []string{"a", "b"}, func(string) (string, error) { calls++; return "done", nil })
	if !errors.Is(err, fs.ErrClosed) || calls != 1 {
		t.Errorf("got %v after %d calls, want %v after one", err, calls, fs.ErrClosed)
	}
}
