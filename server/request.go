package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	kjson "sigs.k8s.io/json"
)

// readRequest fills asked, a pointer to a struct of package api, from the query and the JSON body
// of a request, each field in one of them. It is strict: what is unknown or said twice is an
// error.
func readRequest(r *http.Request, asked any) error {
	fields := fieldsOf(reflect.ValueOf(asked).Elem())
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem(http.StatusBadRequest, "invalid-query", "the query cannot be read: want name=value pairs, percent-encoded")
	}
	inBody, err := readBody(r, asked, known(fields))
	if err != nil {
		return err
	}
	for name, values := range query {
		at := -1
		for i, f := range fields {
			if f.name == name {
				at = i
			}
		}
		if at < 0 {
			return badField(fmt.Sprintf("%.40q", name), "unknown query parameter; known are %s", known(fields))
		}
		if _, twice := inBody[name]; twice {
			return badField(name, "given more than once")
		}
		if err := fields[at].set(values); err != nil {
			return err
		}
	}
	return nil
}

// readBody reads a body, if there is one, and says which fields it had.
func readBody(r *http.Request, asked any, known string) (map[string]json.RawMessage, error) {
	body, err := io.ReadAll(r.Body)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, newProblem(http.StatusRequestEntityTooLarge, "body-too-large", "the body has more than %d bytes", tooLarge.Limit)
	} else if err != nil {
		return nil, newProblem(http.StatusBadRequest, "invalid-body", "the body ended early")
	}
	if len(body) == 0 {
		return nil, nil
	}
	// What curl -d sends without a header is taken for a form by name, and is JSON in fact
	// or nothing that could be read.
	if media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || media != "application/json" && media != "application/x-www-form-urlencoded" {
		return nil, newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type", "want a body of application/json, or none")
	}
	// Strict: unknown and repeated fields are errors, names are case-sensitive. What is wrong is
	// not repeated: it may be a secret.
	strict, err := kjson.UnmarshalStrict(body, asked)
	if err != nil {
		return nil, newProblem(http.StatusBadRequest, "invalid-body", `the body is not a JSON object such as {"ttl": "2h", "description": "rack 7"}, or a field of it is of another kind`)
	}
	if len(strict) > 0 {
		return nil, newProblem(http.StatusBadRequest, "invalid-body", "the body has fields that are unknown or repeated; known are %s", known)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, err
	}
	return fields, nil
}

// A requestField is one field of a request that may be a query parameter.
type requestField struct {
	name  string
	value reflect.Value
}

// fieldsOf gives the fields of a struct, and of those embedded in it, that may stand in a URL:
// no secrets, which URLs leak.
func fieldsOf(v reflect.Value) []requestField {
	var fields []requestField
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if f.Anonymous {
			fields = append(fields, fieldsOf(v.Field(i))...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch v.Field(i).Interface().(type) {
		case string, int, bool, []string:
			fields = append(fields, requestField{name, v.Field(i)})
		}
	}
	return fields
}

func known(fields []requestField) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// set takes the values of a query parameter. Lists may be repeated, or have commas.
func (f requestField) set(values []string) error {
	if list, ok := f.value.Addr().Interface().(*[]string); ok {
		*list = []string{}
		for _, v := range values {
			if v != "" {
				*list = append(*list, strings.Split(v, ",")...)
			}
		}
		return nil
	}
	if len(values) != 1 {
		return badField(f.name, "given more than once")
	}
	switch v := f.value.Addr().Interface().(type) {
	case *string:
		if values[0] == "" && f.name != "description" {
			return badField(f.name, "is empty; leave it out for the default")
		}
		*v = values[0]
	case *int:
		n, err := strconv.Atoi(values[0])
		if err != nil {
			return badField(f.name, "%.40q is not a number", values[0])
		}
		*v = n
	case *bool:
		switch values[0] {
		case "true", "": // as in ?dryRun
			*v = true
		case "false":
			*v = false
		default:
			return badField(f.name, "%.40q given, want true or false", values[0])
		}
	}
	return nil
}
