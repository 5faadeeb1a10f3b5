package main

import (
	"maps"
	"strings"
	"testing"

	loader3 "helm.sh/helm/v3/pkg/chart/loader"
	chartutil3 "helm.sh/helm/v3/pkg/chartutil"
	engine3 "helm.sh/helm/v3/pkg/engine"
	lint3 "helm.sh/helm/v3/pkg/lint"
	support3 "helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/engine"
)

// helms has one render function for each major version of Helm.
var helms = map[string]func(dir, namespace string, values map[string]any, client engine.ClientProvider) (map[string]string, error){
	"Helm 3": render3, "Helm 4": render,
}

// render3 is like [render], but with Helm 3.
func render3(dir, namespace string, values map[string]any, client engine.ClientProvider) (map[string]string, error) {
	c, err := loader3.LoadDir(dir)
	if err != nil {
		return nil, err
	}
	caps := chartutil3.DefaultCapabilities.Copy()
	caps.KubeVersion = chartutil3.KubeVersion{Version: newest.Version, Major: newest.Major, Minor: newest.Minor}
	to := chartutil3.ReleaseOptions{Name: releaseName, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := chartutil3.ToRenderValues(c, values, to, caps)
	if err != nil {
		return nil, err
	}
	if client == nil {
		return byBase(engine3.Render(c, all))
	}
	return byBase(engine3.RenderWithClientProvider(c, all, client))
}

// both renders the chart with values in YAML. All versions of Helm must render the same objects.
func both(t *testing.T, values string, client engine.ClientProvider) map[string]string {
	t.Helper()
	v := the(common.ReadValues([]byte(values)))(t)
	files3, files4 := the(render3(folder, namespace, v, client))(t), the(render(folder, namespace, v, client))(t)
	if !maps.Equal(files3, files4) {
		t.Errorf("values %q: Helm 3 renders\n%q\nHelm 4 renders\n%q", values, files3, files4)
	}
	return files4
}

// refuses tests that each version of Helm refuses to render the chart.
func refuses(t *testing.T, namespace, values, want string) {
	t.Helper()
	v := the(common.ReadValues([]byte(values)))(t)
	for name, render := range helms {
		if _, err := render(folder, namespace, v, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s, namespace %s, values %q: got %v, want an error with %q", name, namespace, values, err, want)
		}
	}
}

// The same check as 'helm lint --strict', which also fails on warnings.
func TestLintsWithoutWarnings(t *testing.T) {
	for _, m := range lint3.All(folder, map[string]any{}, namespace, true).Messages {
		if m.Severity > support3.InfoSev {
			t.Errorf("Helm 3: %v", m)
		}
	}
	for _, m := range lint.RunAll(folder, map[string]any{}, namespace).Messages {
		if m.Severity > support.InfoSev {
			t.Errorf("Helm 4: %v", m)
		}
	}
}
