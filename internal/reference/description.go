package reference

import (
	"errors"
	"fmt"
	"html/template"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/server/api"
	"go.yaml.in/yaml/v3"
)

// A description holds the parts of openapi.yaml that the page shows, in the same order.
type description struct {
	Title, Summary, Text string
	Style                template.CSS
	Sections             []section
	Schemes              []named
	Objects              []schemaShown
	Problems             []problemShown
}

type named struct{ Name, Text string }

type section struct {
	Name, Text string
	Operations []operationShown
}

type operationShown struct {
	ID, Method, Path, Summary, Text string
	Access                          string
	Credentials                     []string     // names of Schemes; empty means public
	Fields                          []fieldShown // parameters, and fields of the body
	BodyTypes                       []string
	BodyFields                      bool
	BodyText                        string
	Answers                         []answerShown
	Problems                        []problemsShown
	Samples                         []string
}

type fieldShown struct {
	Name, In, Type, Text string
	Required             bool
	Object               string // the type of the field or of its items
}

type answerShown struct {
	Status, Text     string
	Types            []string
	Object           string
	Headers          []named
	Example, Pattern string
}

type schemaShown struct {
	Name, Text string
	Fields     []fieldShown
}

// A problemShown is one problem type. Name is without the common prefix.
type problemShown struct{ Name, Status, Text string }

// problemsShown are the problems of one status.
type problemsShown struct {
	Status string
	Names  []string
}

// everyAnswer are the headers of every response. The page lists these headers only once.
var everyAnswer = map[string]bool{"X-Request-Id": true, "Cache-Control": true}

// A described is a YAML node with aliases and references resolved. The zero value is a missing node, whose values are
// all empty.
type described struct {
	node *yaml.Node
	root *yaml.Node
	name string // name of the referenced component
}

func readDescription(document []byte) (*description, error) {
	var file yaml.Node
	if err := yaml.Unmarshal(document, &file); err != nil {
		return nil, err
	}
	if len(file.Content) != 1 {
		return nil, errors.New("openapi.yaml: want one document")
	}
	root := described{node: file.Content[0], root: file.Content[0]}
	info, components := root.at("info"), root.at("components")
	d := &description{Title: info.at("title").text(), Summary: info.at("summary").text(), Text: info.at("description").text()}
	for _, scheme := range components.at("securitySchemes").fields() {
		d.Schemes = append(d.Schemes, named{scheme.key, scheme.at("description").text()})
	}
	statuses := map[string]string{}
	for _, one := range components.at("schemas").at("ProblemType").at("oneOf").items() {
		p := problemShown{strings.TrimPrefix(one.at("const").text(), api.ProblemType), one.at("x-status").text(), one.at("description").text()}
		if next := one.at("x-next").text(); next != "" {
			p.Text += " Next: " + next + "."
		}
		d.Problems, statuses[p.Name] = append(d.Problems, p), p.Status
	}
	for _, tag := range root.at("tags").items() {
		s := section{Name: tag.at("name").text(), Text: tag.at("description").text()}
		for _, path := range root.at("paths").fields() {
			for _, op := range path.fields() {
				if tags := op.at("tags").items(); len(tags) == 1 && tags[0].text() == s.Name {
					s.Operations = append(s.Operations, operation(path, op, statuses))
				}
			}
		}
		d.Sections = append(d.Sections, s)
	}
	for _, schema := range components.at("schemas").fields() {
		if fields := fields(schema.described); len(fields) > 0 {
			d.Objects = append(d.Objects, schemaShown{schema.key, schema.at("description").text(), fields})
		}
	}
	return d, nil
}

func operation(path, op field, statuses map[string]string) operationShown {
	o := operationShown{
		ID: op.at("operationId").text(), Method: strings.ToUpper(op.key), Path: path.key,
		Summary: op.at("summary").text(), Text: op.at("description").text(), Access: op.at("x-access").text(),
		BodyText: op.at("requestBody").at("description").text(),
	}
	for _, one := range op.at("security").items() {
		for _, scheme := range one.fields() {
			o.Credentials = append(o.Credentials, scheme.key)
		}
	}
	for _, p := range append(path.at("parameters").items(), op.at("parameters").items()...) {
		f := shown(p.at("name").text(), p.at("schema"))
		f.In, f.Required = p.at("in").text(), p.at("required").text() == "true"
		if text := p.at("description").text(); text != "" {
			f.Text = text
		}
		o.Fields = append(o.Fields, f)
	}
	for _, media := range op.at("requestBody").at("content").fields() {
		o.BodyTypes = append(o.BodyTypes, media.key)
		for _, f := range fields(media.at("schema")) {
			o.BodyFields = true
			if !slices.ContainsFunc(o.Fields, func(p fieldShown) bool { return p.Name == f.Name && p.In == "query" }) {
				f.In = "body"
				o.Fields = append(o.Fields, f)
			}
		}
	}
	for _, status := range op.at("responses").fields() {
		if status.key < "4" || status.at("content").at("text/plain").node != nil {
			o.Answers = append(o.Answers, answerOf(status))
		}
	}
	for _, p := range op.at("x-problems").items() {
		name := p.text()
		if last := len(o.Problems) - 1; last < 0 || o.Problems[last].Status != statuses[name] {
			o.Problems = append(o.Problems, problemsShown{Status: statuses[name]})
		}
		last := &o.Problems[len(o.Problems)-1]
		last.Names = append(last.Names, name)
	}
	for _, s := range op.at("x-codeSamples").items() {
		o.Samples = append(o.Samples, s.at("source").text())
	}
	return o
}

func answerOf(status field) answerShown {
	a := answerShown{Status: status.key, Text: status.at("description").text()}
	for _, h := range status.at("headers").fields() {
		if !everyAnswer[h.key] {
			a.Headers = append(a.Headers, named{h.key, h.at("description").text()})
		}
	}
	for _, media := range status.at("content").fields() {
		a.Types = append(a.Types, media.key)
		if name := media.at("schema").name; len(media.at("schema").at("properties").fields()) > 0 {
			a.Object = name
		}
		if example := media.at("example"); example.node != nil {
			a.Example = example.text()
		}
	}
	return a
}

// fields returns the properties of a schema.
func fields(schema described) []fieldShown {
	var list []fieldShown
	required := map[string]bool{}
	for _, name := range schema.at("required").items() {
		required[name.text()] = true
	}
	for _, p := range schema.at("properties").fields() {
		f := shown(p.key, p.described)
		f.Required = required[p.key]
		list = append(list, f)
	}
	return list
}

// shown describes a value with a schema.
func shown(name string, schema described) fieldShown {
	f := fieldShown{Name: name, Text: schema.at("description").text()}
	of, several := schema, false
	if items := schema.at("items"); items.node != nil {
		of, several = items, true
	}
	if len(of.at("properties").fields()) > 0 && of.name != "" {
		f.Object = of.name
	}
	var words []string
	var choice []string
	for _, v := range of.at("enum").items() {
		choice = append(choice, v.text())
	}
	kind := of.at("type").text()
	switch {
	case of.at("const").node != nil:
		words = append(words, of.at("const").text())
	case len(choice) > 0 && several:
		words = append(words, "list of "+strings.Join(choice, ", "))
	case len(choice) > 0:
		words = append(words, strings.Join(choice, ", "))
	case several && f.Object != "":
		words = append(words, "list of")
	case f.Object != "":
	case several:
		words = append(words, "list of "+kind+"s")
	case of.at("format").text() == "date-time":
		words = append(words, "time")
	default:
		words = append(words, kind)
	}
	if most := of.at("maximum").text(); most != "" {
		words = append(words, of.at("minimum").text()+" to "+most)
	}
	if value := schema.at("default"); value.node != nil && value.text() != "false" {
		var values []string
		for _, v := range value.items() {
			values = append(values, v.text())
		}
		if values == nil {
			values = []string{value.text()}
		}
		words = append(words, "default "+strings.Join(values, ", "))
	}
	f.Type = strings.Join(words, "; ")
	return f
}

// at returns the value of a key.
func (d described) at(key string) described {
	for _, f := range d.fields() {
		if f.key == key {
			return f.described
		}
	}
	return described{}
}

type field struct {
	key string
	described
}

func (d described) fields() []field {
	if d.node == nil || d.node.Kind != yaml.MappingNode {
		return nil
	}
	var list []field
	for i := 0; i+1 < len(d.node.Content); i += 2 {
		list = append(list, field{d.node.Content[i].Value, d.follow(d.node.Content[i+1])})
	}
	return list
}

func (d described) items() []described {
	if d.node == nil || d.node.Kind != yaml.SequenceNode {
		return nil
	}
	var list []described
	for _, n := range d.node.Content {
		list = append(list, d.follow(n))
	}
	return list
}

func (d described) follow(n *yaml.Node) described {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == "$ref" {
				to := described{node: d.root, root: d.root}
				var name string
				for part := range strings.SplitSeq(strings.TrimPrefix(n.Content[i+1].Value, "#/"), "/") {
					to, name = to.at(strings.ReplaceAll(part, "~1", "/")), part
				}
				to.name = name
				return to
			}
		}
	}
	return described{node: n, root: d.root}
}

// text returns the value of a scalar. It returns any other node as YAML.
func (d described) text() string {
	switch {
	case d.node == nil:
		return ""
	case d.node.Kind == yaml.ScalarNode:
		return d.node.Value
	}
	out, err := yaml.Marshal(d.node)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(out)
}
