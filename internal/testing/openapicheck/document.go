package openapicheck

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// A Document is a parsed OpenAPI description.
type Document struct {
	// Root is the whole document, as decoded JSON.
	Root map[string]any
	// Operations are in the order of their paths and methods.
	Operations []*Operation

	elsewhere map[int][]*response // responses outside of operations, by status
	compiler  *jsonschema.Compiler
}

// An Operation is one method of one path.
type Operation struct {
	ID, Method, Path string
	// Pointer is its JSON pointer in the document.
	Pointer string
	// Access and Problems are its extensions x-access and x-problems.
	Access   string
	Problems []string
	// Query are the names of its query parameters.
	Query []string

	glob      string // Path, with an asterisk for each parameter
	responses map[int]*response
	request   map[string]*jsonschema.Schema // by content type
}

type response struct {
	headers map[string]header
	content map[string]*jsonschema.Schema // by content type
}

type header struct {
	required bool
	number   bool
	schema   *jsonschema.Schema
}

var parameter = regexp.MustCompile(`\{[^/]*\}`)

// location is the URL of the document for the schema compiler.
const location = "https://kubejoin.io/openapi.json"

// Parse parses a description in YAML or JSON. It must not refer to other documents.
func Parse(content []byte) (*Document, error) {
	asJSON, err := yaml.YAMLToJSONStrict(content)
	if err != nil {
		return nil, err
	}
	root, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	if err != nil {
		return nil, err
	}
	d := &Document{compiler: jsonschema.NewCompiler(), elsewhere: map[int][]*response{}}
	d.Root, _ = root.(map[string]any)
	d.compiler.AssertFormat()
	if err := d.compiler.AddResource(location, root); err != nil {
		return nil, err
	}
	paths := object(d.Root["paths"])
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := object(paths[path])
		for _, method := range []string{"get", "post", "delete", "put", "patch"} {
			if _, has := item[method]; !has {
				continue
			}
			op, err := d.operation(path, method, item)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", method, path, err)
			}
			d.Operations = append(d.Operations, op)
		}
	}
	for name, status := range map[string]int{
		"NotFound": 404, "MethodNotAllowed": 405, "QueryTooLong": 414, "TooManyRequests": 429, "Unavailable": 503,
		"KubernetesNotFound": 404, "KubernetesMethodNotAllowed": 405, "KubernetesQueryTooLong": 414, "KubernetesTooManyRequests": 429, "KubernetesUnavailable": 503,
	} {
		if _, said := d.Resolve("#/components/responses/" + name); said == nil {
			name = "KubernetesStatus"
		}
		r, err := d.response("#/components/responses/" + name)
		if err != nil {
			return nil, err
		}
		d.elsewhere[status] = append(d.elsewhere[status], r)
	}
	return d, nil
}

func (d *Document) operation(path, method string, item map[string]any) (*Operation, error) {
	pointer := "#/paths/" + escape(path) + "/" + method
	said := object(item[method])
	op := &Operation{
		Method: strings.ToUpper(method), Path: path, Pointer: pointer,
		glob:      parameter.ReplaceAllString(path, "*"),
		responses: map[int]*response{}, request: map[string]*jsonschema.Schema{},
	}
	op.ID, _ = said["operationId"].(string)
	op.Access, _ = said["x-access"].(string)
	for _, name := range list(said["x-problems"]) {
		op.Problems = append(op.Problems, fmt.Sprint(name))
	}
	for _, p := range append(slices.Clone(list(item["parameters"])), list(said["parameters"])...) {
		if parameter := d.resolved(p); parameter["in"] == "query" {
			op.Query = append(op.Query, fmt.Sprint(parameter["name"]))
		}
	}
	var err error
	for status := range object(said["responses"]) {
		code, err := strconv.Atoi(status)
		if err != nil {
			return nil, fmt.Errorf("status %q, want a number", status)
		}
		if op.responses[code], err = d.response(pointer + "/responses/" + status); err != nil {
			return nil, fmt.Errorf("%s: %w", status, err)
		}
	}
	op.request, err = d.content(pointer + "/requestBody")
	return op, err
}

func (d *Document) response(pointer string) (*response, error) {
	pointer, said := d.Resolve(pointer)
	if said == nil {
		return nil, fmt.Errorf("there is no %s", pointer)
	}
	r := &response{headers: map[string]header{}}
	var err error
	if r.content, err = d.content(pointer); err != nil {
		return nil, err
	}
	for name := range object(said["headers"]) {
		at, said := d.Resolve(pointer + "/headers/" + name)
		h := header{required: said["required"] == true, number: object(said["schema"])["type"] == "integer"}
		if h.schema, err = d.compiler.Compile(location + at + "/schema"); err != nil {
			return nil, err
		}
		r.headers[name] = h
	}
	return r, nil
}

// content compiles the schemas of an object with a field content.
func (d *Document) content(pointer string) (map[string]*jsonschema.Schema, error) {
	schemas := map[string]*jsonschema.Schema{}
	_, said := d.Resolve(pointer)
	for media := range object(said["content"]) {
		var err error
		if schemas[media], err = d.Schema(pointer + "/content/" + escape(media) + "/schema"); err != nil {
			return nil, err
		}
	}
	return schemas, nil
}

// Schema compiles the schema at a JSON pointer.
func (d *Document) Schema(pointer string) (*jsonschema.Schema, error) {
	return d.compiler.Compile(location + pointer)
}

// Resolve follows a JSON pointer, and then each $ref. It returns the final pointer and the object there, or nil if the
// value there is not an object.
func (d *Document) Resolve(pointer string) (string, map[string]any) {
	var at any = d.Root
	for _, part := range strings.Split(pointer, "/")[1:] {
		at = object(at)[unescape(part)]
	}
	said := object(at)
	if ref, ok := said["$ref"].(string); ok {
		return d.Resolve(ref)
	}
	return pointer, said
}

func (d *Document) resolved(v any) map[string]any {
	said := object(v)
	if ref, ok := said["$ref"].(string); ok {
		_, said = d.Resolve(ref)
	}
	return said
}

// find returns the operation of a request, or nil. For HEAD, it returns the operation of GET. A literal path of the
// description takes precedence over path templates.
func (d *Document) find(method, escaped string) *Operation {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	literal := slices.ContainsFunc(d.Operations, func(op *Operation) bool { return op.Path == escaped })
	for _, op := range d.Operations {
		matches := op.Path == escaped
		if !literal {
			matches, _ = path.Match(op.glob, escaped)
		}
		if matches && op.Method == method {
			return op
		}
	}
	return nil
}

func object(v any) map[string]any { m, _ := v.(map[string]any); return m }
func list(v any) []any            { l, _ := v.([]any); return l }

func escape(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~", "~0"), "/", "~1")
}

func unescape(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "~1", "/"), "~0", "~")
}
