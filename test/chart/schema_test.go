package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/yannh/kubeconform/pkg/validator"
	"sigs.k8s.io/yaml"
)

// supported are the oldest and the newest Kubernetes that kubejoin supports.
var supported = []string{"1.35.4", "1.37.2"}

// Catches a field that Kubernetes does not have, or whose type differs. The schemas come from the Go module of Kubernetes,
// so the test needs no other network access than the module proxy.
func TestObjectsConformToTheOldestAndNewestKubernetes(t *testing.T) {
	for _, version := range supported {
		schemas := t.TempDir()
		writeSchemas(t, schemas, version)
		conform := the(validator.New([]string{schemas + "/{{.ResourceKind}}{{.KindSuffix}}.json"}, validator.Opts{
			Strict: true, KubernetesVersion: version, SkipKinds: map[string]struct{}{"ServiceMonitor": {}, "PrometheusRule": {}},
		}))(t)
		for name, values := range map[string]string{"default": "createNamespace: true", "everything": string(read(t, everything))} {
			checked := 0
			for file, content := range manifests(both(t, values, nil)) {
				for _, r := range conform.Validate(file, io.NopCloser(bytes.NewReader(content))) {
					switch r.Status {
					case validator.Error, validator.Invalid:
						t.Errorf("Kubernetes %s, values %s: %s: %v", version, name, file, r.Err)
					case validator.Valid:
						checked++
					}
				}
			}
			if checked < 20 {
				t.Errorf("Kubernetes %s, values %s: %d objects checked, want more", version, name, checked)
			}
		}
		broken := "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {port: 1}\n"
		if r := conform.Validate("broken", io.NopCloser(strings.NewReader(broken))); len(r) != 1 || r[0].Status != validator.Invalid {
			t.Errorf("Kubernetes %s: a Service with an unknown field is %v, want invalid", version, r)
		}
	}
}

// writeSchemas writes one schema for each kind of a Kubernetes version, from the API description in its module.
func writeSchemas(t *testing.T, dir, version string) {
	t.Helper()
	var module struct{ Dir string }
	must(t, json.Unmarshal(output(t, "go", "mod", "download", "-json", "k8s.io/kubernetes@v"+version), &module))
	var api struct{ Definitions map[string]map[string]any }
	must(t, json.Unmarshal(read(t, filepath.Join(module.Dir, "api/openapi-spec/swagger.json")), &api))
	for _, definition := range api.Definitions {
		kinds, _ := definition["x-kubernetes-group-version-kind"].([]any)
		if len(kinds) != 1 { // ignore types such as DeleteOptions
			continue
		}
		kind := kinds[0].(map[string]any)
		suffix := "-" + kind["version"].(string)
		if group, _, _ := strings.Cut(kind["group"].(string), "."); group != "" {
			suffix = "-" + group + suffix
		}
		content := the(json.Marshal(resolve(api.Definitions, definition, nil)))(t)
		must(t, os.WriteFile(filepath.Join(dir, strings.ToLower(kind["kind"].(string))+suffix+".json"), content, 0o600))
	}
}

// resolve replaces references by the referenced types, and makes objects refuse unknown fields. A recursive reference, for
// example in JSONSchemaProps, allows any value.
func resolve(definitions map[string]map[string]any, part any, around []string) any {
	switch part := part.(type) {
	case []any:
		list := make([]any, len(part))
		for i, p := range part {
			list[i] = resolve(definitions, p, around)
		}
		return list
	case map[string]any:
		if ref, found := part["$ref"].(string); found {
			if strings.HasSuffix(ref, ".Quantity") { // the API description allows only the form that the API server writes
				return map[string]any{"type": []string{"string", "number"}}
			}
			if slices.Contains(around, ref) {
				return map[string]any{}
			}
			return resolve(definitions, definitions[strings.TrimPrefix(ref, "#/definitions/")], append(slices.Clip(around), ref))
		}
		if part["format"] == "int-or-string" {
			return map[string]any{"type": []string{"string", "integer"}}
		}
		object := map[string]any{}
		for name, p := range part {
			object[name] = resolve(definitions, p, around)
		}
		if _, found := part["properties"].(map[string]any); found && part["type"] == "object" {
			object["additionalProperties"] = false
		}
		return object
	}
	return part
}

// It catches a field that the Prometheus Operator does not have.
func TestMonitoringObjectsHaveKnownFields(t *testing.T) {
	files := manifests(both(t, string(read(t, everything)), nil))
	documents := bytes.Split(files["monitoring.yaml"], []byte("---\n"))
	if len(documents) != 4 {
		t.Fatalf("got %d documents, want a comment, a ServiceMonitor, a PrometheusRule and a ConfigMap", len(documents))
	}
	var monitor monitoring.ServiceMonitor
	var rule monitoring.PrometheusRule
	for i, object := range []any{&monitor, &rule} {
		if err := yaml.UnmarshalStrict(documents[i+1], object); err != nil {
			t.Error(err)
		}
	}
	groups := map[string]bool{}
	for _, g := range rule.Spec.Groups {
		groups[g.Name] = true // Name is the key of the list for server-side apply
	}
	if len(groups) != len(rule.Spec.Groups) || len(monitor.Spec.Endpoints) != 1 || len(rule.Spec.Groups) == 0 || len(rule.Spec.Groups[0].Rules) == 0 {
		t.Errorf("got %v and %v, want an endpoint, rules, and groups with different names", monitor.Spec, rule.Spec)
	}
}
