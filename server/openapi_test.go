package server_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/openapicheck"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

func document(t *testing.T) *openapicheck.Document {
	t.Helper()
	return must.Value(described())(t)
}

func operationOf(t *testing.T, id string) *openapicheck.Operation {
	t.Helper()
	for _, op := range document(t).Operations {
		if op.ID == id {
			return op
		}
	}
	t.Fatalf("openapi.yaml has no operation %s", id)
	return nil
}

// pathOf returns the path of an operation with a value for its parameter.
func pathOf(op *openapicheck.Operation) string {
	return strings.NewReplacer("{id}", "qwertz", "{node}", "worker-3", "{serial}", "1f", "{ca}", "cluster", "{file}", "app.js").Replace(op.Path)
}

func TestOpenAPIIsValid(t *testing.T) {
	d := document(t)
	content := must.Get(os.ReadFile("testdata/openapi-3.1-schema.json")) // https://spec.openapis.org/oas/3.1/schema/2022-10-07
	rules := must.Get(jsonschema.UnmarshalJSON(bytes.NewReader(content)))
	compiler := jsonschema.NewCompiler()
	must.OK(t, compiler.AddResource("openapi-3.1", rules))
	schema := must.Get(compiler.Compile("openapi-3.1"))
	if err := schema.Validate(d.Root); err != nil {
		t.Error(err)
	}
	ids, used := map[string]bool{}, map[string]bool{}
	for _, op := range d.Operations {
		if op.ID == "" || ids[op.ID] {
			t.Errorf("%s %s: operationId %q is empty or used twice", op.Method, op.Path, op.ID)
		}
		ids[op.ID] = true
	}
	walk("#", d.Root, func(pointer string, v map[string]any) {
		if ref, ok := v["$ref"].(string); ok {
			used[ref] = true
			if _, to := d.Resolve(ref); to == nil {
				t.Errorf("%s refers to %s, which does not exist", pointer, ref)
			}
		}
		example, has := v["example"]
		if !has || v["schema"] == nil {
			return
		}
		s, err := d.Schema(pointer + "/schema")
		if err != nil {
			t.Errorf("%s: %v", pointer, err)
		} else if err := s.Validate(example); err != nil {
			t.Errorf("example at %s: %v", pointer, err)
		}
	})
	components := d.Root["components"].(map[string]any)
	for kind, all := range components {
		for name := range all.(map[string]any) {
			ref := "#/components/" + kind + "/" + name
			if kind == "schemas" {
				if _, err := d.Schema(ref); err != nil {
					t.Error(err)
				}
			}
			switch {
			case kind == "securitySchemes", used[ref], strings.HasSuffix(name, "MethodNotAllowed"): // not part of an operation
			case ref == "#/components/schemas/SignCertificate": // its fields are referred to one by one
			default:
				t.Errorf("%s is never used", ref)
			}
		}
	}
}

// walk calls f with each JSON object in v and its JSON pointer.
func walk(pointer string, v any, f func(pointer string, v map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		f(pointer, v)
		for key, value := range v {
			walk(pointer+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(key), value, f)
		}
	case []any:
		for i, value := range v {
			walk(fmt.Sprint(pointer, "/", i), value, f)
		}
	}
}

var parameterPattern = regexp.MustCompile(`:[^}]*\}`)

func TestOpenAPIDescribesEveryRoute(t *testing.T) {
	described, there := map[string]string{}, map[string]string{}
	for _, op := range document(t).Operations {
		described[op.Method+" "+op.Path] = op.Access
	}
	for _, r := range server.AllRoutes() {
		path, access := parameterPattern.ReplaceAllString(r.Path, "}"), ""
		if r.Access != (auth.Access{}) {
			access = r.Access.String()
		}
		there[r.Method+" "+path] = access
		if op := operationOf(t, r.Name); op.Method != r.Method {
			t.Errorf("operation %s is %s, want %s", op.ID, op.Method, r.Method)
		}
	}
	if !maps.Equal(described, there) {
		for name, access := range there {
			if is, has := described[name]; !has || is != access {
				t.Errorf("%s: described %t with x-access %q, want %q", name, has, is, access)
			}
		}
		for name := range described {
			if _, has := there[name]; !has {
				t.Errorf("%s is described, and there is no such route", name)
			}
		}
	}
}

// asked has the type that each operation decodes. TestUnknownFieldErrorListsDescribedFields checks that.
var asked = map[string]any{
	"print-join-command":         api.PrintJoinCommand{},
	"create-token":               api.CreateToken{},
	"list-tokens":                api.ListPage{},
	"get-token":                  nil,
	"delete-token":               api.DeleteToken{},
	"renew-token":                api.RenewToken{},
	"list-claims":                api.ListPage{},
	"release-claim":              api.ReleaseClaim{},
	"add-machines":               api.AddMachines{},
	"list-machines":              api.ListPage{},
	"get-machine":                nil,
	"delete-machine":             api.DeleteMachine{},
	"list-pending-machines":      nil,
	"print-machine-join-command": api.PrintMachineJoin{},
	"list-issued":                api.ListIssued{},
	"get-issued":                 nil,
	"list-revocations":           api.ListPage{},
	"revoke":                     api.Revoke{},
	"undo-revocation":            api.UndoRevocation{},
	"ca-rotation":                nil,
	"prepare-ca":                 api.PrepareCA{},
	"trust-ca":                   api.StepCA{},
	"switch-ca":                  api.StepCA{},
	"finish-ca":                  api.StepCA{},
	"abort-ca":                   api.StepCA{},
	"explain-request":            api.ExplainRequest{},
	"list-joins":                 api.ListJoins{},
	"explain": struct {
		Format string `json:"format"`
	}{},
	"list-permissions": nil,
	"take-turn":        api.TakeTurn{},
	"give-back-turn":   api.TakeTurn{},
	"certificate":      api.SignCertificate{},
	"bind-key":         api.BindKey{},
	"cluster-info":     nil,
	"ca":               api.GetCA{},
	"openapi":          nil,
	"openapi-json":     nil,
	"reference":        nil,
	"console":          nil,
	"console-file":     nil,
}

// others are the operations that decode no type of package api.
var others = []string{"discovery", "tokenreview", "tokenreview-v1beta1", "subjectaccessreview", "healthz", "readyz", "version", "metrics", "join-machine"}

func TestOpenAPIHasTheFieldsOfRequests(t *testing.T) {
	d := document(t)
	for _, op := range d.Operations {
		given, known := asked[op.ID]
		if !known {
			if !slices.Contains(others, op.ID) {
				t.Errorf("operation %s: add to asked which type it decodes", op.ID)
			}
			continue
		}
		parameters, all := map[string]reflect.Type{}, map[string]reflect.Type{}
		if given != nil {
			for _, f := range fieldsOf(reflect.TypeOf(given)) {
				all[f.name] = f.of
				switch reflect.Zero(f.of).Interface().(type) {
				case string, int, bool, []string:
					parameters[f.name] = f.of
				}
			}
		}
		if !slices.Equal(slices.Sorted(slices.Values(op.Query)), slices.Sorted(maps.Keys(parameters))) {
			t.Errorf("%s: query parameters %q are described, want %q", op.ID, op.Query, slices.Sorted(maps.Keys(parameters)))
		}
		_, said := d.Resolve(op.Pointer)
		for i, p := range listOf(said["parameters"]) {
			pointer, parameter := d.Resolve(fmt.Sprint(op.Pointer, "/parameters/", i))
			if want, has := parameters[fmt.Sprint(parameter["name"])]; has && parameter["in"] == "query" {
				wantType(t, d, pointer+"/schema", want)
			}
			if p == nil {
				t.Errorf("%s: parameter %d is empty", op.ID, i)
			}
		}
		if op.Method == http.MethodGet || op.ID == "certificate" { // a body of a GET has no meaning: RFC 9110, section 9.3.1
			continue
		}
		wantObject(t, d, op.Pointer+"/requestBody/content/application~1json/schema", reflect.TypeOf(given), false)
	}
}

// Generated clients may send defaults explicitly. Catches a default that the server refuses or that changes the result.
func TestOpenAPIDefaultsCanBeSent(t *testing.T) {
	d := document(t)
	later := time.Now().Add(48 * time.Hour).UTC().Truncate(time.Second)
	expires := `"` + later.Format(time.RFC3339) + `"`
	for _, test := range []struct {
		schema, path string
		given        map[string]string // fields, in JSON
	}{
		{"CreateToken", tokenPath, map[string]string{"expires": expires}},
		{"CreateToken", tokenPath, map[string]string{"usages": `["signing"]`}},
		{"CreateToken", tokenPath, map[string]string{"usages": `["authentication"]`, "maxNodes": "1", "role": `"control-plane"`}},
		{"PrintJoinCommand", tokenPath + "/print-join-command", map[string]string{"expires": expires, "format": `"json"`}},
		{"RenewToken", "", map[string]string{"expires": expires}},
	} {
		s := newSite(t)
		s.start(t)
		made, _, _ := askFor[api.Token](t, s, "POST", tokenPath, "")
		if test.path == "" {
			test.path = tokenPath + "/" + made.ID + "/renew"
		}
		fields := map[string]json.RawMessage{}
		pointer := "#/components/schemas/" + test.schema + "/properties"
		_, properties := d.Resolve(pointer)
		for name := range properties {
			if _, property := d.Resolve(pointer + "/" + name); property["default"] != nil {
				fields[name] = json.RawMessage(jsonOf(t, property["default"]))
			}
		}
		if len(fields) == 0 {
			t.Errorf("%s has no defaults, want some for this test", test.schema)
		}
		for name, value := range test.given {
			if properties[name] == nil {
				t.Errorf("%s has no field %s", test.schema, name)
			}
			fields[name] = json.RawMessage(value)
		}
		body := jsonOf(t, fields)
		answer, p, got := askFor[api.Token](t, s, "POST", test.path, body)
		if got.status >= 400 {
			t.Errorf("%s: %s: got %d %s, want success", test.schema, body, got.status, p.Detail)
		} else if _, ends := test.given["expires"]; ends && !answer.Expires.Equal(later) {
			t.Errorf("%s: %s: got expiry %s, want %s", test.schema, body, answer.Expires, later)
		}
	}
}

// shown has the types of response bodies by schema name. wantObject also checks the types nested in them.
var shown = map[string]any{
	"TokenList": api.TokenList{}, "JoinCommand": api.JoinCommand{}, "ClaimList": api.ClaimList{}, "MachineList": api.MachineList{}, "PendingMachineList": api.PendingMachineList{}, "IssuanceEntryList": api.IssuanceEntryList{}, "PermissionList": api.PermissionList{},
	"Revocation": api.Revocation{}, "RevocationList": api.RevocationList{},
	"Turn": api.Turn{}, "BoundKey": api.BoundKey{}, "CABundle": api.CABundle{}, "CARotation": api.CARotation{}, "Explanation": api.NodeExplanation{}, "JoinList": api.JoinList{}, "RequestExplanation": api.RequestExplanation{},
	"Version": api.Version{}, "Problem": api.Problem{},
}

// notOurs are the response schemas of Kubernetes types.
var notOurs = []string{"ConfigMap", "TokenReview", "SubjectAccessReview", "Status"}

func TestOpenAPIHasTheFieldsOfResponses(t *testing.T) {
	d := document(t)
	seen := map[string]bool{}
	for name, v := range shown {
		seen[name] = true
		wantObject(t, d, "#/components/schemas/"+name, reflect.TypeOf(v), true)
	}
	for _, op := range d.Operations {
		_, said := d.Resolve(op.Pointer + "/responses")
		for status := range said {
			pointer, _ := d.Resolve(op.Pointer + "/responses/" + status + "/content/application~1json/schema")
			name := strings.TrimPrefix(pointer, "#/components/schemas/")
			if strings.HasPrefix(pointer, "#/components/schemas/") && !seen[name] && !slices.Contains(notOurs, name) && !checkedSchemas[name] {
				t.Errorf("%s %s returns %s: add its type to shown", op.ID, status, name)
			}
		}
	}
}

// checkedSchemas are the schemas that wantObject has checked.
var checkedSchemas = map[string]bool{}

type namedField struct {
	name     string
	of       reflect.Type
	optional bool
}

// fieldsOf returns the JSON fields of a struct, including those of embedded structs.
func fieldsOf(t reflect.Type) []namedField {
	var fields []namedField
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			fields = append(fields, fieldsOf(f.Type)...)
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "-" {
			fields = append(fields, namedField{name, f.Type, strings.Contains(options, "omit")})
		}
	}
	return fields
}

// wantObject compares a schema with a struct and its nested types. In a response, the fields that are always present
// must be required.
func wantObject(t *testing.T, d *openapicheck.Document, pointer string, of reflect.Type, answer bool) {
	t.Helper()
	pointer, schema := d.Resolve(pointer)
	if of == nil {
		if schema != nil {
			t.Errorf("%s is described, and the operation decodes no body", pointer)
		}
		return
	}
	if schema == nil {
		t.Errorf("schema %s for %s is missing", pointer, of)
		return
	}
	checkedSchemas[pointer[strings.LastIndex(pointer, "/")+1:]] = true
	if schema["additionalProperties"] != false {
		t.Errorf("%s: want additionalProperties: false", pointer)
	}
	properties, _ := schema["properties"].(map[string]any)
	var names, required []string
	for _, f := range fieldsOf(of) {
		names = append(names, f.name)
		if !f.optional && answer {
			required = append(required, f.name)
		}
		if _, has := properties[f.name]; has {
			wantType(t, d, pointer+"/properties/"+f.name, f.of)
		}
	}
	if described := slices.Sorted(maps.Keys(properties)); !slices.Equal(described, slices.Sorted(slices.Values(names))) {
		t.Errorf("%s has properties %q, and %s has %q", pointer, described, of, slices.Sorted(slices.Values(names)))
	}
	var described []string
	for _, name := range listOf(schema["required"]) {
		described = append(described, fmt.Sprint(name))
	}
	if of == reflect.TypeFor[api.Problem]() { // the server sets both in every problem
		required = append(required, "detail", "requestID")
	}
	if slices.Sort(described); !slices.Equal(described, slices.Sorted(slices.Values(required))) {
		t.Errorf("%s requires %q, and %s always has %q", pointer, described, of, slices.Sorted(slices.Values(required)))
	}
}

// wantType compares a schema with the type of a field.
func wantType(t *testing.T, d *openapicheck.Document, pointer string, of reflect.Type) {
	t.Helper()
	pointer, schema := d.Resolve(pointer)
	want := map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Bool: "boolean", reflect.Slice: "array", reflect.Struct: "object", reflect.Map: "object"}
	switch {
	case of.Kind() == reflect.Pointer:
		wantType(t, d, pointer, of.Elem())
		return
	case of == reflect.TypeFor[time.Time]():
		if schema["type"] != "string" || schema["format"] != "date-time" {
			t.Errorf("%s: want a string of format date-time", pointer)
		}
		return
	case of == reflect.TypeFor[json.RawMessage]():
		return
	case schema["const"] != nil && schema["type"] == nil && of.Kind() == reflect.String, schema["oneOf"] != nil:
		return
	}
	kind := schema["type"]
	if either, ok := kind.([]any); ok && len(either) == 2 && either[1] == "null" {
		kind = either[0]
	}
	if kind == nil || kind != want[of.Kind()] {
		t.Errorf("%s is of type %v, and %s is %q", pointer, schema["type"], of, want[of.Kind()])
	}
	switch of.Kind() {
	case reflect.Slice:
		wantType(t, d, pointer+"/items", of.Elem())
	case reflect.Struct:
		wantObject(t, d, pointer, of, true)
	}
}

func listOf(v any) []any { l, _ := v.([]any); return l }

// The error about an unknown parameter or field lists the known ones. Catches a list that differs from openapi.yaml.
func TestUnknownFieldErrorListsDescribedFields(t *testing.T) {
	s, _ := certifying(t)
	s.Console = true
	s.start(t)
	for _, op := range document(t).Operations {
		given, ours := asked[op.ID]
		if !ours {
			continue
		}
		var query, body []string
		if given != nil {
			for _, f := range fieldsOf(reflect.TypeOf(given)) {
				body = append(body, f.name)
				if slices.Contains(op.Query, f.name) {
					query = append(query, f.name)
				}
			}
		}
		bearer := adminBearer
		if op.Path == turnPath {
			bearer = controlPlaneToken(t, s)
		}
		var p api.Problem
		got := s.do(t, op.Method, pathOf(op)+"?unheardOf=1", bearer, "", map[string]string{"certificate": nodeCSR(t, "worker-3")}[op.ID])
		if err := json.Unmarshal([]byte(got.body), &p); err != nil || got.status != 400 {
			t.Errorf("%s: %d %s", op.ID, got.status, got.body)
		}
		if want := "known: " + words(query); !strings.HasSuffix(p.Detail, want) {
			t.Errorf("%s: %q, want %q at the end", op.ID, p.Detail, want)
		}
		if op.Method == http.MethodGet || op.ID == "certificate" {
			continue
		}
		got = s.do(t, op.Method, pathOf(op), bearer, "application/json", `{"unheardOf":1}`)
		if err := json.Unmarshal([]byte(got.body), &p); err != nil || got.status != 400 {
			t.Errorf("%s: %d %s", op.ID, got.status, got.body)
		}
		if want := "known: " + words(body); !strings.HasSuffix(p.Detail, want) {
			t.Errorf("%s: %q, want %q at the end", op.ID, p.Detail, want)
		}
	}
}

func words(names []string) string {
	switch len(names) {
	case 0:
		return "none"
	case 1:
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}
