package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	root   = "../.."
	folder = root + "/deploy/chart/kubejoin"
)

func read(t *testing.T, file string) []byte {
	t.Helper()
	content := the(os.ReadFile(file))(t)
	return content
}

// output runs a command in the root of the repository.
func output(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = root
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, errs.String())
	}
	return out
}

func TestManifestsAreRenderedFromTheChart(t *testing.T) {
	want := manifests(both(t, "createNamespace: true", nil))
	found := the(filepath.Glob(root + "/deploy/manifests/*"))(t)
	for _, file := range found {
		name := filepath.Base(file)
		if !bytes.Equal(read(t, file), want[name]) {
			t.Errorf("deploy/manifests/%s differs from the chart: run make manifests", name)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("deploy/manifests lacks %q: run make manifests", slices.Collect(maps.Keys(want)))
	}
}

// Catches a file of an option that is older than the chart.
func TestOptionsAreRenderedFromTheChart(t *testing.T) {
	want := manifests(both(t, string(read(t, "testdata/options.yaml")), nil))
	for _, file := range []string{"revocation.yaml", "node-properties.yaml", "joining-policy.yaml", "claims-policy.yaml"} {
		if got := read(t, "../../deploy/"+file); len(got) == 0 || !bytes.Equal(got, want[file]) {
			t.Errorf("deploy/%s differs from the chart: run make manifests", file)
		}
	}
}

// Catches a deploy/static-admission.yaml that is older than the chart, or that kube-apiserver refuses to read.
func TestStaticAdmissionPolicyIsRenderedFromTheChart(t *testing.T) {
	files := manifests(both(t, "", nil))
	got := read(t, "../../deploy/"+staticFile)
	if !bytes.Equal(got, staticPolicy(files["admission.yaml"])) {
		t.Errorf("deploy/%s differs from the chart: run make manifests", staticFile)
	}
	kinds := map[string]int{}
	for document := range bytes.SplitSeq(got, []byte("---\n")) {
		var object struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				PolicyName          string
				ParamKind, ParamRef any
			}
		}
		must(t, yaml.Unmarshal(document, &object))
		kinds[object.Kind]++
		for _, name := range []string{object.Metadata.Name, object.Spec.PolicyName} {
			if name != "" && name != "kubejoin-secrets.static.k8s.io" {
				t.Errorf("%s: name %q, want kubejoin-secrets.static.k8s.io", object.Kind, name)
			}
		}
		if object.Spec.ParamKind != nil || object.Spec.ParamRef != nil {
			t.Errorf("%s has parameters, which a file must not have", object.Kind)
		}
	}
	if want := map[string]int{"ValidatingAdmissionPolicy": 1, "ValidatingAdmissionPolicyBinding": 1}; !maps.Equal(kinds, want) {
		t.Errorf("got documents %v, want %v", kinds, want)
	}
}

func TestReadmeIsWrittenFromTheValues(t *testing.T) {
	if got := output(t, "go", "run", "github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2", "--chart-search-root=deploy/chart", "--dry-run", "--log-level=error"); !bytes.Equal(bytes.TrimSpace(got), bytes.TrimSpace(read(t, folder+"/README.md"))) {
		t.Error("README.md of the chart differs from values.yaml: run make manifests")
	}
}

// everything is a file of values that fills each list and switches on every option.
const everything = "testdata/everything.yaml"

// byValue maps flags to the chart value that sets them, if its name differs.
var byValue = map[string]string{
	"listen": "port", "advertise": "advertise", "signer-config": "signerConfig", "token-limits": "tokenLimits",
	"cluster-signing-cert-file": "ca", "cluster-signing-key-file": "ca",
}

// byArgs are the flags that only extraArgs can set, with the reason.
var byArgs = map[string]string{
	"kubeconfig":                      "the pod has a service account",
	"leader-elect-resource-name":      "any name of kubejoin does",
	"leader-elect-resource-namespace": "the RBAC rules are for kubejoin-system",
	"token-store":                     "a file store needs one replica and a volume, and etcd a volume for credentials",
	"data-dir":                        "same",
	"etcd-servers":                    "same",
	"etcd-cafile":                     "same",
	"etcd-certfile":                   "same",
	"etcd-keyfile":                    "same",
	"etcd-prefix":                     "same",
	"issuance-retention":              "same",
	"webhook-audience":                "same",
	"help":                            "prints help and exits",
}

var helpFlag = regexp.MustCompile(`(?m)^ +(?:-\w, |    )--([a-z-]+)( \w+)?  `)

// Catches a new flag of 'kubejoin serve' that the chart lacks, and a flag in the chart that serve no longer has.
func TestChartHasEveryFlagOfServe(t *testing.T) {
	help := output(t, "go", "run", "./cmd/kubejoin", "serve", "--help")
	types := map[string]string{}
	for _, m := range helpFlag.FindAllSubmatch(help, -1) {
		types[string(m[1])] = strings.TrimSpace(string(m[2]))
	}
	if len(types) < 40 {
		t.Fatalf("found %d flags in the help, want more", len(types))
	}
	var schema struct {
		Properties struct {
			Flags struct {
				Properties map[string]struct{ Type string }
			}
		}
	}
	must(t, json.Unmarshal(read(t, folder+"/values.schema.json"), &schema))
	inSchema := map[string]string{"": "boolean", "string": "string", "strings": "array", "int": "integer", "float": "number", "float32": "number", "duration": "string"}
	values := schema.Properties.Flags.Properties
	for name, kind := range types {
		value, found := values[name]
		switch places := btoi(found) + btoi(byValue[name] != "") + btoi(byArgs[name] != ""); {
		case places != 1:
			t.Errorf("--%s is in %d of flags in values.schema.json, byValue and byArgs, want 1", name, places)
		case found && value.Type != "" && value.Type != inSchema[kind]:
			t.Errorf("flags.%s has type %s in values.schema.json, want %s", name, value.Type, inSchema[kind])
		}
	}
	for _, names := range []map[string]bool{keys(values), keys(byValue), keys(byArgs)} {
		for name := range names {
			if _, found := types[name]; !found {
				t.Errorf("the chart has --%s, and 'kubejoin serve' has not", name)
			}
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func keys[V any](m map[string]V) map[string]bool {
	set := map[string]bool{}
	for k := range m {
		set[k] = true
	}
	return set
}

// Catches an object in the schema that accepts misspelt values. A map such as podLabels must have a type for its values.
func TestSchemaAcceptsNoUnknownValues(t *testing.T) {
	var schema any
	must(t, json.Unmarshal(read(t, folder+"/values.schema.json"), &schema))
	objects := 0
	var check func(path string, part any)
	check = func(path string, part any) {
		switch part := part.(type) {
		case []any:
			for _, p := range part {
				check(path, p)
			}
		case map[string]any:
			if part["type"] == "object" {
				objects++
				if more, isSchema := part["additionalProperties"].(map[string]any); part["additionalProperties"] != false && (!isSchema || more["type"] == nil) {
					t.Errorf("%s in values.schema.json accepts unknown values", path)
				}
			}
			for name, p := range part {
				check(path+"."+name, p)
			}
		}
	}
	check("", schema)
	if objects < 15 {
		t.Errorf("found %d objects in values.schema.json, want more", objects)
	}
}
