package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A document decodes a YAML file strictly into a struct. It keeps the line of each field, and collects the mistakes.
//
// Tags of a struct say what its fields may contain. yaml is the name of the field, and ",omitempty" makes it optional.
// list describes the items of a list for errors, and want describes a text or a boolean. only lists the allowed texts,
// separated by |. The other scalars, such as [Lifetime], implement yaml.Unmarshaler, and their errors say what is
// expected.
type document struct {
	file  string
	lines map[string]int  // by path, for example signers[2].duration
	wrong map[string]bool // paths of fields with an error in them
	errs  Errors
}

// newDocument decodes a file of a kind.
func newDocument(file, kind string, content []byte, into any) *document {
	d := &document{file: file, lines: map[string]int{}, wrong: map[string]bool{}}
	if len(content) > MaxSize {
		d.fail("", "the file is larger than %d bytes", MaxSize)
		return d
	}
	decoder := yaml.NewDecoder(bytes.NewReader(content))
	var root, second yaml.Node
	err := decoder.Decode(&root)
	if errors.Is(err, io.EOF) {
		d.fail("", "the file is empty, want a %s", kind)
		return d
	}
	if err == nil {
		if n := anchored(&root); n != nil {
			d.failAt(n.Line, "", "YAML anchors (&) and aliases (*) are not supported: repeat the value, and put a value that begins with * in quotes")
			return d
		}
		err = decoder.Decode(&second)
	}
	switch {
	case err == nil:
		d.failAt(second.Line, "", "a second YAML document begins here, want only one")
	case !errors.Is(err, io.EOF):
		d.notYAML(content, err)
	default:
		d.decode(root.Content[0], "", root.Content[0].Line, reflect.ValueOf(into).Elem(), "")
	}
	return d
}

// anchored returns the first node with an anchor, or nil. An alias is possible only after an anchor. With aliases,
// few bytes can expand to very many.
func anchored(n *yaml.Node) *yaml.Node {
	if n.Anchor != "" {
		return n
	}
	for _, child := range n.Content {
		if a := anchored(child); a != nil {
			return a
		}
	}
	return nil
}

var yamlError = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?((?:unknown anchor '(.*)' referenced)?.*)`)

func (d *document) notYAML(content []byte, err error) {
	match := yamlError.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(match[1]) // 0 if the error has no line
	text, anchor := match[2], match[3]
	if anchor != "" {
		before, _, _ := bytes.Cut(content, []byte("*"+anchor))
		line = bytes.Count(before, []byte("\n")) + 1
	}
	if anchor != "" || strings.Contains(text, "expected alphabetic or numeric character") {
		text = fmt.Sprintf("%.200s: put a value that begins with * in quotes", text) // many patterns begin with *
	}
	d.failAt(line, "", "invalid YAML: %s", strings.ToValidUTF8(text, ""))
}

// fail reports a mistake in a field, at the line of the field or, if the field is missing, of its parent.
func (d *document) fail(path, format string, args ...any) {
	at := path
	for d.lines[at] == 0 && at != "" {
		at = parent(at)
	}
	d.failAt(d.lines[at], path, format, args...)
}

func (d *document) failAt(line int, path, format string, args ...any) {
	d.errs = append(d.errs, &Error{File: d.file, Line: line, Field: path, Message: fmt.Sprintf(format, args...)})
	for ; path != ""; path = parent(path) {
		d.wrong[path] = true
	}
}

// check reports err, if it is not nil, as a mistake in a field.
func (d *document) check(path string, err error) {
	if err != nil {
		d.fail(path, "%v", err)
	}
}

func parent(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

func join(path, name string) string { return strings.TrimPrefix(path+"."+name, ".") }

// decode decodes a node. A field has the line of its name, even if its value begins further down.
func (d *document) decode(n *yaml.Node, path string, line int, v reflect.Value, tag reflect.StructTag) {
	d.lines[path] = line
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch to := v.Addr().Interface().(type) {
	case yaml.Unmarshaler:
		d.check(path, to.UnmarshalYAML(n))
		return
	case *netip.Prefix:
		var err error
		if *to, err = parsePrefix(n.Value); n.ShortTag() != "!!str" {
			err = fmt.Errorf("%s given, want an address or a range such as 10.0.0.0/8", describe(n))
		}
		d.check(path, err)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		d.mapping(n, path, v)
	case reflect.Slice:
		d.list(n, path, v, tag)
	default: // a text or a boolean
		only := tag.Get("only")
		if n.Value == "" || n.ShortTag() != map[reflect.Kind]string{reflect.String: "!!str", reflect.Bool: "!!bool"}[v.Kind()] ||
			only != "" && !slices.Contains(strings.Split(only, "|"), n.Value) || n.Decode(v.Addr().Interface()) != nil {
			d.fail(path, "%s given, want %s", describe(n), cmp.Or(tag.Get("want"), strings.ReplaceAll(only, "|", " or "), "one of "+tag.Get("list")))
		}
	}
}

func (d *document) mapping(n *yaml.Node, path string, v reflect.Value) {
	var names []string
	fields := map[string]reflect.StructField{}
	for f := range v.Type().Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); name != "" {
			names, fields[name] = append(names, name), f
		}
	}
	want := strings.Join(names, ", ")
	if n.Kind != yaml.MappingNode || n.ShortTag() != "!!map" {
		d.fail(path, "%s given, want the fields %s", describe(n), want)
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, at := n.Content[i], join(path, n.Content[i].Value)
		f, known := fields[key.Value]
		switch {
		case !known || key.ShortTag() != "!!str":
			d.failAt(key.Line, path, "unknown field %s, want one of %s", describe(key), want)
		case d.lines[at] > 0:
			d.failAt(key.Line, at, "duplicate field, first in line %d", d.lines[at])
		default:
			d.decode(n.Content[i+1], at, key.Line, v.FieldByIndex(f.Index), f.Tag)
		}
	}
	for _, name := range names {
		if at := join(path, name); d.lines[at] == 0 && !optional(fields[name].Tag) {
			d.fail(at, "missing")
		}
	}
}

func optional(tag reflect.StructTag) bool { return strings.HasSuffix(tag.Get("yaml"), ",omitempty") }

func (d *document) list(n *yaml.Node, path string, v reflect.Value, tag reflect.StructTag) {
	switch size := len(n.Content); {
	case n.Kind != yaml.SequenceNode || n.ShortTag() != "!!seq":
		d.fail(path, "%s given, want a list of %s", describe(n), tag.Get("list"))
	case size > maxItems:
		d.fail(path, "%d items given, want at most %d", size, maxItems)
	case size == 0 && !optional(tag):
		d.fail(path, "the list is empty, want at least one item")
	default:
		v.Set(reflect.MakeSlice(v.Type(), size, size))
		for i, item := range n.Content {
			d.decode(item, fmt.Sprintf("%s[%d]", path, i), item.Line, v.Index(i), tag)
		}
	}
}

// describe describes a node for an error message.
func describe(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!null":
		return "nothing"
	}
	return quoted(n.Value)
}

// quoted shortens a text for an error message. It does not repeat private keys, which somebody may have pasted into
// the file.
func quoted(s string) string {
	if strings.ContainsAny(s, "\n\r\x00") || strings.Contains(s, "PRIVATE KEY") {
		return fmt.Sprintf("a text of %d bytes", len(s))
	}
	return fmt.Sprintf("%.60q", s)
}
