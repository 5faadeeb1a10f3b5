// Package reference makes the page about the HTTPS API for people, of its description in OpenAPI. It is
// run when the description changes, see package server, and is part of no program: a template in it
// would have the linker keep every method there is.
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

//go:embed page.css
var pageStyle string

// Page is the page for browsers, and what stands in its place for others.
func Page(document []byte) (page, text []byte, err error) {
	of, err := readDescription(document)
	if err != nil {
		return nil, nil, err
	}
	of.Style = template.CSS(pageStyle)
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

// text is a line for each operation.
func (d *description) text() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s: %s\n\n", d.Title, d.Summary)
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, s := range d.Sections {
		for _, op := range s.Operations {
			fmt.Fprintf(table, "%s\t%s\t%s\n", op.Method, op.Path, strings.ReplaceAll(op.Summary, "`", ""))
		}
	}
	_ = table.Flush() // into memory
	fmt.Fprint(&out, "\nAll of it is in /openapi.yaml, and here for a browser.\n")
	return out.Bytes()
}

var quoted = regexp.MustCompile("`([^`]+)`")

// prose is text of the description as HTML: paragraphs, and code in backticks.
func prose(text string) template.HTML {
	var out strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		if paragraph != "" {
			out.WriteString("<p>" + quoted.ReplaceAllString(html.EscapeString(paragraph), "<code>$1</code>") + "</p>")
		}
	}
	return template.HTML(out.String())
}
