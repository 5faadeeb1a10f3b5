// Command chart renders the Helm chart of kubejoin as 'helm template' does. It prints what it rendered, or writes one
// file for each template. 'make manifests' writes deploy/manifests with it.
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

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	dir := flag.String("chart", "deploy/chart/kubejoin", "folder of the chart")
	values := flag.String("values", "", "file of values (default: those of the chart)")
	version := flag.String("app-version", "", "version of kubejoin, which is the tag of the image (default: that of the chart)")
	only := flag.String("only", "", "name of the only template to render (default: all)")
	static := flag.Bool("static", false, "render only "+staticFile+", the admission policy as kube-apiserver reads it from a file")
	out := flag.String("out", "", "folder to write files to (default: standard output)")
	flag.Parse()
	if err := run(*dir, *values, *version, *only, *static, *out); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

func run(dir, file, version, only string, static bool, out string) error {
	c, err := loader.LoadDir(dir)
	if err != nil {
		return err
	}
	if version != "" {
		c.Metadata.AppVersion = version
	}
	values := map[string]any{"createNamespace": true}
	if file != "" {
		if values, err = chartutil.ReadValuesFile(file); err != nil {
			return err
		}
	}
	files, err := manifests(c, values)
	if err != nil {
		return err
	}
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

// release is what the chart is rendered for.
var release = chartutil.ReleaseOptions{Name: "kubejoin", Namespace: "kubejoin-system", Revision: 1, IsInstall: true}

// newest is the Kubernetes version that the chart is rendered for.
var newest = chartutil.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}

// render checks the values and renders all templates of a chart.
func render(c *chart.Chart, values map[string]any, to chartutil.ReleaseOptions, client engine.ClientProvider) (map[string]string, error) {
	caps := chartutil.DefaultCapabilities.Copy()
	caps.KubeVersion = newest
	all, err := chartutil.ToRenderValues(c, values, to, caps)
	if err != nil {
		return nil, err
	}
	rendered := map[string]string{}
	var text map[string]string
	if client == nil {
		text, err = engine.Render(c, all)
	} else {
		text, err = engine.RenderWithClientProvider(c, all, client)
	}
	for name, content := range text {
		rendered[filepath.Base(name)] = content
	}
	return rendered, err
}

// manifests renders a chart as files for kubectl apply. They do not claim that Helm manages the objects.
func manifests(c *chart.Chart, values map[string]any) (map[string][]byte, error) {
	rendered, err := render(c, values, release, nil)
	if err != nil {
		return nil, err
	}
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
	return files, nil
}

// staticFile is the file of [staticPolicy].
const staticFile = "static-admission.yaml"

var policyName = regexp.MustCompile(`(?m)^  (name|policyName): .*`)

// staticPolicy returns a rendered admission policy in the form that kube-apiserver reads from a file. Names end in
// .static.k8s.io. No comment is a document of its own: kube-apiserver refuses a document without a kind.
func staticPolicy(rendered []byte) []byte {
	return policyName.ReplaceAll(bytes.Replace(rendered, []byte("---\n"), nil, 1), []byte("$0.static.k8s.io"))
}
