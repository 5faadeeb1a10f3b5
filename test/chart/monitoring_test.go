package main

import (
	"encoding/json"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestServiceMonitorAuthenticates catches a ServiceMonitor that uses a deprecated field by default, or whose CA or server
// name does not match kubejoin's serving certificate. The test in test/monitoring scrapes with the same settings.
func TestServiceMonitorAuthenticates(t *testing.T) {
	endpoint := func(values string) monitoring.Endpoint {
		t.Helper()
		m := as[monitoring.ServiceMonitor](t, rendered(t, values), "ServiceMonitor kubejoin")
		if len(m.Spec.Endpoints) != 1 {
			t.Fatalf("got %d endpoints, want 1", len(m.Spec.Endpoints))
		}
		return m.Spec.Endpoints[0]
	}
	e := endpoint("serviceMonitor: {enabled: true}")
	if e.Authorization == nil || e.Authorization.Credentials == nil || e.Authorization.Credentials.Name != "kubejoin-metrics" || e.Authorization.Credentials.Key != "token" || e.BearerTokenFile != "" {
		t.Errorf("got authorization %v and file %q, want the Secret kubejoin-metrics only", e.Authorization, e.BearerTokenFile)
	}
	ca := e.TLSConfig.CA.ConfigMap
	if ca == nil || ca.Name != "kube-root-ca.crt" || ca.Key != "ca.crt" || *e.TLSConfig.ServerName != "kubejoin.kubejoin-system.svc" || e.TLSConfig.CAFile != "" {
		t.Errorf("got TLS %v, want the cluster CA and the name of the Service", e.TLSConfig)
	}
	e = endpoint("serviceMonitor: {enabled: true, bearerTokenFile: /token}")
	if e.BearerTokenFile != "/token" || e.Authorization != nil {
		t.Errorf("got authorization %v and file %q, want the file only", e.Authorization, e.BearerTokenFile)
	}
}

// TestLabelsOfMonitoringWin catches labels with two equal keys. The labels of monitoring must replace labels of the chart,
// because a Prometheus may select by such a label.
func TestLabelsOfMonitoringWin(t *testing.T) {
	const labels = "{enabled: true, labels: {app.kubernetes.io/part-of: a, team: b}}"
	all := rendered(t, "{serviceMonitor: "+labels+", prometheusRule: "+labels+", grafanaDashboard: "+labels+"}")
	for _, name := range []string{"ServiceMonitor kubejoin", "PrometheusRule kubejoin", "ConfigMap kubejoin-dashboard"} {
		object := as[unstructured.Unstructured](t, all, name)
		got := object.GetLabels()
		if got["app.kubernetes.io/part-of"] != "a" || got["team"] != "b" || got["app.kubernetes.io/name"] != "kubejoin" {
			t.Errorf("%s: labels %v, want those of the chart, a and b", name, got)
		}
	}
}

func TestDashboardIsForTheSidecarOfGrafana(t *testing.T) {
	c := as[corev1.ConfigMap](t, rendered(t, "grafanaDashboard: {enabled: true}"), "ConfigMap kubejoin-dashboard")
	if c.Labels["grafana_dashboard"] != "1" || c.Namespace != namespace {
		t.Errorf("got labels %v in %s, want grafana_dashboard=1", c.Labels, c.Namespace)
	}
	if text := c.Data["kubejoin.json"]; !json.Valid([]byte(text)) || text+"\n" != string(read(t, folder+"/files/dashboard.json")) {
		t.Errorf("the ConfigMap does not have files/dashboard.json:\n%.200s", text)
	}
}
