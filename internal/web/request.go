package web

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	kjson "sigs.k8s.io/json"
)

// ReadRequest sets the fields of req, a pointer to a struct of package api, from the query and the JSON
// body of a request. It is strict: unknown fields, fields given twice and empty values are errors.
func ReadRequest(r *http.Request, req any) error {
	fields := fieldsOf(reflect.ValueOf(req).Elem())
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	inBody, err := readBody(r, fields)
	if invalid := (api.InvalidFields)(nil); err != nil && !errors.As(err, &invalid) {
		return err
	}
	return api.JoinInvalid(err, fill(inURL(fields), query, inBody))
}

// ReadQuery is ReadRequest without the body, for requests whose body is not JSON or is ignored.
func ReadQuery(r *http.Request, req any) error {
	query, err := parseQuery(r)
	if err != nil {
		return err
	}
	return fill(inURL(fieldsOf(reflect.ValueOf(req).Elem())), query, nil)
}

// Limits of a query. The header limit of NewServer would allow thousands of parameters. The default limit of an
// importer's own server would allow a hundred thousand.
const (
	maxQuery      = 8 << 10 // half of maxHeader, so that a long query causes this problem and not an HTTP/2 error
	maxParameters = 1000
)

// LongQuery returns the problem of a query that exceeds the limits, or nil.
func LongQuery(r *http.Request) *Problem {
	if q := r.URL.RawQuery; len(q) > maxQuery || strings.Count(q, "&") >= maxParameters {
		return NewProblem("query-too-long", "the query has %d bytes; want at most %d bytes and %d parameters", len(q), maxQuery, maxParameters)
	}
	return nil
}

func parseQuery(r *http.Request) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, NewProblem("invalid-query", "malformed query: want name=value pairs, percent-encoded")
	}
	return query, nil
}

// fill sets fields from a query. inBody has the fields that the body has set. These must not also be in the query.
func fill(fields []requestField, query url.Values, inBody map[string]json.RawMessage) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(query)) {
		f, found := find(fields, name)
		if !found {
			errs = append(errs, unknownField(name, "query parameter", fields))
		} else if _, twice := inBody[name]; twice {
			errs = append(errs, api.InvalidField(name, "given more than once"))
		} else {
			errs = append(errs, cmp.Or(f.set(query[name]), f.check()))
		}
	}
	return api.JoinInvalid(errs...)
}

// readBody sets fields from the JSON body of a request, if there is one, and returns the fields that the body
// contained. Names are case-sensitive.
func readBody(r *http.Request, fields []requestField) (map[string]json.RawMessage, error) {
	body, err := ReadAll(r)
	if err != nil || len(body) == 0 {
		return nil, err
	}
	// curl -d without a header declares a form. Accept this content type, but the body must be JSON.
	if !HasType(r, "application/json", "application/x-www-form-urlencoded") {
		return nil, WrongType(r, "want a JSON body with the content type application/json, or no body")
	}
	if !utf8.Valid(body) { // a decoder would replace the invalid bytes
		return nil, NewProblem("invalid-body", "the body is not valid UTF-8, which JSON requires")
	}
	return readObject(body, fields)
}

// readObject sets fields from a JSON object, and returns the fields that it contained.
func readObject(body []byte, fields []requestField) (map[string]json.RawMessage, error) {
	var given map[string]json.RawMessage
	repeated, err := kjson.UnmarshalStrict(body, &given, kjson.DisallowDuplicateFields)
	if syntax, at := kjson.SyntaxErrorOffset(err); syntax {
		return nil, NewProblem("invalid-body", "the body is not a JSON object: syntax error at byte %d of %d", at, len(body))
	} else if err != nil || given == nil {
		return nil, NewProblem("invalid-body", "the body is %s, want a JSON object", kindOf(body))
	}
	var errs []error
	for _, err := range repeated {
		if field := (kjson.FieldError)(nil); errors.As(err, &field) {
			errs = append(errs, api.InvalidField(field.FieldPath(), "given more than once"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if f, found := find(fields, name); found {
			errs = append(errs, cmp.Or(f.decode(given[name]), f.check()))
		} else {
			errs = append(errs, unknownField(name, "field", fields))
		}
	}
	return given, api.JoinInvalid(errs...)
}

// maxInvalidItems is the maximum number of problems in one error about a list.
const maxInvalidItems = 20

// ReadItems sets list, a pointer to a slice of structs, from a JSON list. It is as strict as [ReadRequest]. Its errors name fields
// as [api.ItemField] does.
func ReadItems(content []byte, list any) error {
	var items []json.RawMessage
	if json.Unmarshal(content, &items) != nil {
		return api.InvalidField("items", "%s given, want a list of objects", kindOf(content))
	}
	all := reflect.ValueOf(list).Elem()
	all.Set(reflect.MakeSlice(all.Type(), len(items), len(items)))
	var errs []error
	for i, item := range items {
		_, err := readObject(item, fieldsOf(all.Index(i)))
		var invalid api.InvalidFields
		if err != nil && !errors.As(err, &invalid) {
			invalid = api.InvalidField("", "%s given, want an object", kindOf(item))
		}
		for _, e := range invalid {
			errs = append(errs, api.InvalidFields{{Field: api.ItemField(i, e.Field), Detail: e.Detail}})
		}
		if len(errs) >= maxInvalidItems {
			break
		}
	}
	return api.JoinInvalid(errs...)
}

// WrongType returns the problem of a body whose Content-Type the operation does not accept. want says which types it accepts.
func WrongType(r *http.Request, want string) *Problem {
	given := "no content type"
	if header := r.Header.Get("Content-Type"); header != "" {
		given = fmt.Sprintf("content type %q", safetext.Text(header, MaxField))
	}
	return NewProblem("unsupported-media-type", "%s given; %s", given, want)
}

// HasType reports whether the Content-Type of a request is one of these types.
func HasType(r *http.Request, types ...string) bool {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && slices.Contains(types, media)
}

// unknownField returns the error of an unknown field name. The name may be anything, for example a pasted secret:
// [Problem.Response] redacts and truncates it.
func unknownField(name, what string, fields []requestField) error {
	return api.InvalidField(name, "unknown %s %.40q; known: %s", what, name, known(fields))
}

// kindOf names the kind of a JSON value, for messages.
func kindOf(value []byte) string {
	switch value = bytes.TrimLeft(value, " \t\r\n"); value[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case 't', 'f':
		return "true or false"
	case 'n':
		return "null"
	}
	return "a number"
}

// ReadAll reads a whole body. The caller must have limited it to MaxBody.
func ReadAll(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		if r.ContentLength > tooLarge.Limit {
			return nil, NewProblem("body-too-large", "the body has %d bytes, want at most %d", r.ContentLength, tooLarge.Limit)
		}
		return nil, NewProblem("body-too-large", "the body has more than %d bytes", tooLarge.Limit)
	} else if err != nil {
		return nil, NewProblem("invalid-body", "the body ended early")
	}
	return body, nil
}

// A requestField is one field of a request.
type requestField struct {
	name  string
	value reflect.Value
	tag   reflect.StructTag
}

func find(fields []requestField, name string) (requestField, bool) {
	for _, f := range fields {
		if f.name == name {
			return f, true
		}
	}
	return requestField{}, false
}

// fieldsOf returns the fields of a struct and of structs embedded in it.
func fieldsOf(v reflect.Value) []requestField {
	var fields []requestField
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			fields = append(fields, fieldsOf(v.Field(i))...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "-" {
			fields = append(fields, requestField{name, v.Field(i), f.Tag})
		}
	}
	return fields
}

// inURL returns the fields that may be query parameters. It excludes objects, and secrets, because URLs leak secrets.
func inURL(fields []requestField) []requestField {
	var allowed []requestField
	for _, f := range fields {
		switch f.value.Interface().(type) {
		case string, int, bool, []string:
			allowed = append(allowed, f)
		}
	}
	return allowed
}

func known(fields []requestField) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return safetext.List(names, "and")
}

// check returns an error for a field that is given but empty, because it would mean the same as a missing field. For
// example, an empty list of node names, from an unset shell variable, would allow any name. The tag empty:"allowed" of
// a field allows an empty value. For a number, the tag zero says which value is expected instead of 0.
func (f requestField) check() error {
	mayBeEmpty := f.tag.Get("empty") == "allowed"
	switch v := f.value.Interface().(type) {
	case int:
		if v == 0 {
			return api.InvalidField(f.name, "0 given, %s", f.tag.Get("zero"))
		}
	case []string:
		if len(v) == 0 && !mayBeEmpty {
			return api.InvalidField(f.name, "is empty; leave it out for the default")
		}
		if slices.Contains(v, "") {
			return api.InvalidField(f.name, "item %d of the list is empty", slices.Index(v, "")+1)
		}
	case bool, json.RawMessage:
	default: // strings and secrets
		if f.value.Len() == 0 && !mayBeEmpty {
			return api.InvalidField(f.name, "is empty; leave it out for the default")
		}
	}
	return nil
}

// decode sets the field from JSON. Its errors quote no values except numbers, because a value may be a secret.
func (f requestField) decode(value json.RawMessage) error {
	if string(value) == "null" {
		return api.InvalidField(f.name, "is null; leave it out for the default")
	}
	if t := f.value.Type(); t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		return ReadItems(value, f.value.Addr().Interface())
	}
	err := json.Unmarshal(value, f.value.Addr().Interface())
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return err
	}
	given, want := kindOf(value), "a string"
	switch f.value.Interface().(type) {
	case int:
		want = "a whole number"
		if given == "a number" {
			given = safetext.Text(string(value), MaxField)
		}
	case bool:
		want = "true or false"
	case []string:
		want = "a list of strings"
		if given == "a list" {
			given += " of other values"
		}
	}
	return api.InvalidField(f.name, "%s given, want %s", given, want)
}

// set sets the field from a query parameter. A list may be a repeated parameter, or separated by commas.
func (f requestField) set(values []string) error {
	if list, ok := f.value.Addr().Interface().(*[]string); ok {
		*list = []string{}
		if len(values) == 1 && values[0] == "" {
			return nil
		}
		for _, v := range values {
			*list = append(*list, strings.Split(v, ",")...)
		}
		return nil
	}
	if len(values) != 1 {
		return api.InvalidField(f.name, "given more than once")
	}
	switch v := f.value.Addr().Interface().(type) {
	case *string:
		*v = values[0]
	case *int:
		n, err := strconv.Atoi(values[0])
		if err != nil {
			return api.InvalidField(f.name, "%.40q is not a number", values[0])
		}
		*v = n
	case *bool:
		switch values[0] {
		case "true", "": // ?dryRun gives the empty string
			*v = true
		case "false":
			*v = false
		default:
			return api.InvalidField(f.name, "%.40q given, want true or false", values[0])
		}
	}
	return nil
}
