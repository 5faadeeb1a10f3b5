// Package reference generates the HTML and text reference of the HTTPS API from openapi.yaml. It runs with 'go
// generate' in package server. Do not import this package into a program: it uses templates, with which the
// linker keeps all exported methods.
package reference

import (
	"bytes"
	_ "embed"
	"fmt"
	"html"
	"html/template"
	"regexp"
	"strings"
	"text/tabwriter"
)

//go:embed page.html
var pageTemplate string

// Page returns the reference as HTML for browsers, with the style sheet in it, and as text for other clients.
func Page(document, style []byte) (page, text []byte, err error) {
	of, err := readDescription(document)
	if err != nil {
		return nil, nil, err
	}
	of.Style = template.CSS(style)
	t, err := template.New("reference").Funcs(template.FuncMap{"prose": prose}).Parse(pageTemplate)
	if err != nil {
		return nil, nil, err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, of); err != nil {
		return nil, nil, err
	}
	return out.Bytes(), of.text(), nil
}

// text returns one line for each operation.
func (d *description) text() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s: %s\n\n", d.Title, d.Summary)
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, s := range d.Sections {
		for _, op := range s.Operations {
			fmt.Fprintf(table, "%s\t%s\t%s\n", op.Method, op.Path, strings.ReplaceAll(op.Summary, "`", ""))
		}
	}
	_ = table.Flush() // writes to memory cannot fail
	fmt.Fprint(&out, "\nAll of it is in /openapi.yaml, and here for a browser.\n")
	return out.Bytes()
}

var quoted = regexp.MustCompile("`([^`]+)`")

// prose returns text of the description as HTML: paragraphs, and code in backticks.
func prose(text string) template.HTML {
	var out strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if paragraph != "" {
			out.WriteString("<p>" + quoted.ReplaceAllString(html.EscapeString(paragraph), "<code>$1</code>") + "</p>")
		}
	}
	return template.HTML(out.String())
}
