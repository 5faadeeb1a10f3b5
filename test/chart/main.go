// Command chart renders the Helm chart of kubejoin like 'helm template' of Helm 4. It prints the result, or writes one file
// for each template. 'make manifests' uses it to write deploy/manifests.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
)

func main() {
	dir := flag.String("chart", "deploy/chart/kubejoin", "folder of the chart")
	values := flag.String("values", "", "file of values (default: those of the chart)")
	only := flag.String("only", "", "name of the only template to render (default: all)")
	static := flag.Bool("static", false, "render only "+staticFile+", the admission policy as kube-apiserver reads it from a file")
	out := flag.String("out", "", "folder to write files to (default: standard output)")
	flag.Parse()
	if err := run(*dir, *values, *only, *static, *out); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(dir, file, only string, static bool, out string) error {
	values, err := common.Values{"createNamespace": true}, error(nil)
	if file != "" {
		if values, err = common.ReadValuesFile(file); err != nil {
			return err
		}
	}
	rendered, err := render(dir, namespace, values, nil)
	if err != nil {
		return err
	}
	files := manifests(rendered)
	if static {
		files = map[string][]byte{staticFile: staticPolicy(files["admission.yaml"])}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if only != "" && name != only {
			continue
		}
		if out == "" {
			_, err = os.Stdout.Write(files[name])
		} else {
			err = os.WriteFile(filepath.Join(out, name), files[name], 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Release name and namespace for the rendered chart.
const releaseName, namespace = "kubejoin", "kubejoin-system"

// newest is the Kubernetes version for the rendered chart.
var newest = common.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}

// render checks the values and renders all templates of a chart.
func render(dir, namespace string, values map[string]any, client engine.ClientProvider) (map[string]string, error) {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	caps := common.DefaultCapabilities.Copy()
	caps.KubeVersion = newest
	to := common.ReleaseOptions{Name: releaseName, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values, to, caps)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return byBase(engine.Render(c, all))
	}
	return byBase(engine.RenderWithClientProvider(c, all, client))
}

// byBase returns rendered templates by their base names instead of paths.
func byBase(text map[string]string, err error) (map[string]string, error) {
	files := map[string]string{}
	for name, content := range text {
		files[filepath.Base(name)] = content
	}
	return files, err
}

// manifests returns rendered templates as files for kubectl apply. It removes labels that say that Helm manages the objects.
func manifests(rendered map[string]string) map[string][]byte {
	files := map[string][]byte{}
	for name, text := range rendered {
		if !strings.HasSuffix(name, ".yaml") || strings.TrimSpace(text) == "" {
			continue
		}
		var file bytes.Buffer
		file.WriteString("# Rendered from deploy/chart/kubejoin by 'make manifests'.\n")
		for line := range strings.Lines(strings.TrimSpace(text)) {
			if line = strings.TrimRight(line, " \n"); line != "" && !strings.Contains(line, "app.kubernetes.io/managed-by: ") {
				file.WriteString(line + "\n")
			}
		}
		files[name] = file.Bytes()
	}
	return files
}

// staticFile is the name of the file with the result of [staticPolicy].
const staticFile = "static-admission.yaml"

var policyName = regexp.MustCompile(`(?m)^  (name|policyName): .*`)

// staticPolicy returns a rendered admission policy in the form that kube-apiserver reads from a file. The names of objects
// end in .static.k8s.io. It leaves no document that has only comments, because kube-apiserver refuses a document without a
// kind.
func staticPolicy(rendered []byte) []byte {
	return policyName.ReplaceAll(bytes.Replace(rendered, []byte("---\n"), nil, 1), []byte("$0.static.k8s.io"))
}
