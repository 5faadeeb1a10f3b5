package config

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A yamlReader reads YAML nodes strictly and collects the mistakes in them.
type yamlReader struct {
	file string
	errs Errors
}

func (r *yamlReader) fail(line int, field, format string, args ...any) {
	r.errs = append(r.errs, &Error{File: r.file, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// A field is one possible key of a mapping.
type field struct {
	name     string
	required bool
	read     func(n *yaml.Node, path string)
}

// mapping reads a node that may have these fields and no others. It reports whether the node is a mapping.
func (r *yamlReader) mapping(n *yaml.Node, path string, fields ...field) bool {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	want := strings.Join(names, ", ")
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		r.fail(n.Line, path, "%s given, want the fields %s", describe(n), want)
		return false
	}
	given := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := slices.Index(names, key.Value)
		if key.ShortTag() != "!!str" || at < 0 {
			r.fail(key.Line, path, "unknown field %s, want one of %s", describe(key), want)
			continue
		}
		if first, twice := given[key.Value]; twice {
			r.fail(key.Line, join(path, key.Value), "duplicate field, first in line %d", first)
			continue
		}
		given[key.Value] = key.Line
		if value.Kind != yaml.ScalarNode {
			value.Line = key.Line // not the line of the first item in it
		}
		fields[at].read(value, join(path, key.Value))
	}
	for _, f := range fields {
		if _, found := given[f.name]; f.required && !found {
			r.fail(n.Line, join(path, f.name), "missing")
		}
	}
	return true
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// list reads each item of a list. what describes the items, and most is the maximum number of them.
func (r *yamlReader) list(n *yaml.Node, path, what string, most int, read func(n *yaml.Node, path string)) {
	switch {
	case n.Kind != yaml.SequenceNode || n.ShortTag() != "!!seq":
		r.fail(n.Line, path, "%s given, want a list of %s", describe(n), what)
		return
	case len(n.Content) > most:
		r.fail(n.Line, path, "%d items given, want at most %d", len(n.Content), most)
		return
	}
	for i, item := range n.Content {
		read(item, fmt.Sprintf("%s[%d]", path, i))
	}
}

// text reads a non-empty string.
func (r *yamlReader) text(n *yaml.Node, path, want string) (string, bool) {
	if n.ShortTag() != "!!str" || n.Value == "" { // a list or mapping has no Value
		r.fail(n.Line, path, "%s given, want %s", describe(n), want)
		return "", false
	}
	return n.Value, true
}

// number reads an integer.
func (r *yamlReader) number(n *yaml.Node, path, want string) (int, bool) {
	var i int
	if n.ShortTag() != "!!int" || n.Decode(&i) != nil {
		r.fail(n.Line, path, "%s given, want %s", describe(n), want)
		return 0, false
	}
	return i, true
}

// rejectAliases rejects anchors and aliases, because with them few bytes can expand to very many. It returns
// false if it rejected one.
func (r *yamlReader) rejectAliases(n *yaml.Node) bool {
	if n.Anchor != "" { // every alias needs an anchor before it
		r.fail(n.Line, "", "YAML anchors (&) and aliases (*) are not supported: repeat the value, and put a value that begins with * in quotes")
		return false
	}
	for _, child := range n.Content {
		if !r.rejectAliases(child) {
			return false // one error is enough
		}
	}
	return true
}

// describe describes a node for an error message. It does not repeat private keys, which somebody may have
// pasted into the file.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	if n.ShortTag() == "!!null" {
		return "nothing"
	}
	return quoted(n.Value)
}

func quoted(s string) string {
	const most = 60
	if strings.Contains(s, "\n") || strings.Contains(s, "PRIVATE KEY") {
		return fmt.Sprintf("a text of %d bytes", len(s))
	}
	if len(s) > most {
		return fmt.Sprintf("%q…", strings.ToValidUTF8(s[:most], ""))
	}
	return fmt.Sprintf("%q", s)
}
