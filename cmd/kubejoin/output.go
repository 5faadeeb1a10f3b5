package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// An output prints objects in the format of --output.
type output struct {
	cmd      *cobra.Command
	format   string
	known    []string // formats other than jsonpath
	template *jsonpath.JSONPath
}

const jsonpathFormat = "jsonpath="

// register adds --output with the formats known, json, yaml and name.
func (o *output) register(cmd *cobra.Command, known ...string) {
	o.registerFormats(cmd, append(known, "json", "yaml", "name")...)
}

// registerFormats adds --output with the formats known and jsonpath.
func (o *output) registerFormats(cmd *cobra.Command, known ...string) {
	o.cmd, o.known, o.format = cmd, known, "text"
	cmd.Flags().VarP(parsedValue{&o.format, o.parse}, "output", "o", "output format: "+strings.Join(known, ", ")+" or jsonpath=TEMPLATE")
	heading(cmd.Flags(), "Output flags", "output")
	// It fails only if the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(append(slices.Clone(known), jsonpathFormat), cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
}

// parse checks a value of --output.
func (o *output) parse(s string) (string, error) {
	text, found := strings.CutPrefix(s, jsonpathFormat)
	o.template = nil
	if !found && !slices.Contains(o.known, s) {
		return "", fmt.Errorf("%q given, want %s or jsonpath=TEMPLATE", s, strings.Join(o.known, ", "))
	}
	if found {
		o.template = jsonpath.New("output").AllowMissingKeys(true)
		if err := o.template.Parse(text); err != nil || text == "" {
			return "", fmt.Errorf("%q given, want a valid template such as jsonpath={.items[*].id}", s)
		}
	}
	return s, nil
}

// object prints an object as JSON, YAML or jsonpath. It reports false if --output is another format.
func (o *output) object(w io.Writer, object any) (done bool, err error) {
	switch {
	case o.template != nil:
		content, err := json.Marshal(object)
		if err != nil {
			return true, err
		}
		var fields any // by JSON field name, so that templates use the names that -o json shows
		if err := json.Unmarshal(content, &fields); err != nil {
			return true, err
		}
		return true, o.template.Execute(w, fields)
	case o.format == "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "    ")
		e.SetEscapeHTML(false)
		return true, e.Encode(object)
	case o.format == "yaml":
		content, err := yaml.Marshal(object)
		if err == nil {
			_, err = w.Write(content)
		}
		return true, err
	}
	return false, nil
}

// table aligns columns, three spaces apart like kubeadm. It replaces control characters, because cells contain untrusted text.
func table(w io.Writer, rows [][]string) error {
	_, err := io.WriteString(w, tableText(rows))
	return err
}

func tableText(rows [][]string) string {
	var b strings.Builder
	lines := tabwriter.NewWriter(&b, 10, 4, 3, ' ', 0)
	for _, row := range rows {
		for i, cell := range row {
			row[i] = safetext.Printable(cell)
		}
		fmt.Fprintln(lines, strings.Join(row, "\t"))
	}
	_ = lines.Flush() // writes to a strings.Builder never fail
	return b.String()
}

// text prints the object if --output is json, yaml or jsonpath, and otherwise prints the text.
func (o *output) text(w io.Writer, object any, text string) error {
	done, err := o.object(w, object)
	if !done {
		_, err = io.WriteString(w, sanitize(text))
	}
	return err
}

// list prints a list in the format of --output: as an object, as the names of its items, or as a table. The names leave out
// items without a name. If the table would be empty, list prints a notice to standard error.
func list[T any](o *output, w io.Writer, object any, items []T, name func(T) string, columns []string, row func(T) []string) error {
	if done, err := o.object(w, object); done {
		return err
	}
	if len(items) == 0 {
		if columns != nil && o.format != "name" {
			progress(o.cmd, "the list is empty")
		}
		return nil
	}
	var rows [][]string
	if o.format == "name" {
		columns, row = nil, func(item T) []string { return []string{name(item)} }
	}
	if columns != nil {
		rows = append(rows, columns)
	}
	for _, item := range items {
		if cells := row(item); o.format != "name" || cells[0] != "" {
			rows = append(rows, cells)
		}
	}
	return table(w, rows)
}

// did returns done. With dryRun, it adds that the command would have done it.
func did(dryRun bool, done string) string {
	if dryRun {
		return "would be " + done + " (dry run)"
	}
	return done
}

// stamp formats a time. For the zero time, it returns the text otherwise.
func stamp(t time.Time, otherwise string) string {
	if t.IsZero() {
		return otherwise
	}
	return t.UTC().Format(time.RFC3339)
}

func yesNo(yes bool) string {
	if yes {
		return "yes"
	}
	return "no"
}

func orNone(list ...string) string {
	if s := strings.Join(list, ","); s != "" {
		return s
	}
	return "<none>"
}

func age(created, now time.Time) string {
	if created.IsZero() {
		return "<unknown>"
	}
	return duration.ShortHumanDuration(now.Sub(created))
}

// sanitize makes untrusted text safe for a terminal and redacts the secrets of tokens. It keeps line breaks.
func sanitize(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = safetext.Printable(safetext.Redact(line))
	}
	return strings.Join(lines, "\n")
}

// warn prints warnings to standard error.
func warn(cmd *cobra.Command, warnings ...string) {
	for _, w := range warnings {
		cmd.PrintErrln("kubejoin: warning:", sanitize(w))
	}
}
