package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// objects are rendered objects, by kind and name.
type objects map[string][]byte

// rendered renders the chart with values in YAML.
func rendered(t *testing.T, values string) objects {
	t.Helper()
	all := objects{}
	for name, text := range both(t, values, nil) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for document := range strings.SplitSeq(text, "---\n") {
			var object metav1.PartialObjectMetadata
			if err := yaml.Unmarshal([]byte(document), &object); err != nil {
				t.Fatalf("%s: %v\n%s", name, err, document)
			}
			if object.Kind != "" {
				all[object.Kind+" "+object.Name] = []byte(document)
			}
		}
	}
	return all
}

// TestServerSideApplyAcceptsEveryObject catches two equal keys in a map, and two entries with one key in a list, for
// example of environment variables. Helm 4 uses server-side apply, which refuses such objects.
func TestServerSideApplyAcceptsEveryObject(t *testing.T) {
	converter := applyconfigurations.NewTypeConverter(scheme.Scheme)
	apply := func(document []byte) error {
		var object unstructured.Unstructured
		if err := yaml.UnmarshalStrict(document, &object.Object); err != nil {
			return err
		}
		_, err := converter.ObjectToTyped(&object)
		return err
	}
	all := string(read(t, everything))
	for _, values := range []string{"createNamespace: true", all, withoutCA, strings.Replace(all, "kind: Deployment", "kind: DaemonSet", 1), "flags: {cluster-signing-key-url: 'unix:///sock'}"} {
		documents := rendered(t, values)
		for name, document := range documents {
			if strings.HasPrefix(name, "ServiceMonitor ") || strings.HasPrefix(name, "PrometheusRule ") {
				continue // TestMonitoringObjectsHaveKnownFields checks these
			}
			if err := apply(document); err != nil {
				t.Errorf("values %q, %s: %v", values, name, err)
			}
		}
		if len(documents) < 15 {
			t.Errorf("values %q: %d objects, want more", values, len(documents))
		}
	}
	const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, %s}]}"
	for list, want := range map[string]string{
		"env: [{name: A, value: a}, {name: B}]": "",
		"env: [{name: A, value: a}, {name: A}]": `duplicate entries for key [name="A"]`,
		"image: a, image: b":                    `key "image" already set`,
	} {
		if err := apply(fmt.Appendf(nil, pod, list)); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want an error with %q", list, err, want)
		}
	}
}

// as decodes an object.
func as[T any](t *testing.T, all objects, name string) T {
	t.Helper()
	var object T
	if all[name] == nil {
		t.Fatalf("there is no %s", name)
	}
	if err := yaml.UnmarshalStrict(all[name], &object); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return object
}

func podOf(t *testing.T, values string) corev1.PodSpec {
	t.Helper()
	all := rendered(t, values)
	if all["DaemonSet kubejoin"] != nil {
		return as[appsv1.DaemonSet](t, all, "DaemonSet kubejoin").Spec.Template.Spec
	}
	return as[appsv1.Deployment](t, all, "Deployment kubejoin").Spec.Template.Spec
}

func TestRunsOnEveryControlPlaneByDefault(t *testing.T) {
	pod := podOf(t, "")
	if pod.NodeSelector["node-role.kubernetes.io/control-plane"] != "" || len(pod.NodeSelector) != 1 {
		t.Errorf("node selector %v, want control planes", pod.NodeSelector)
	}
	if len(pod.Tolerations) != 1 || pod.Tolerations[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists}) {
		t.Errorf("tolerations %v, want all", pod.Tolerations)
	}
	if pod.PriorityClassName != "system-cluster-critical" {
		t.Errorf("priority class %q", pod.PriorityClassName)
	}
}

// Catches a pod that needs a pod network, cluster DNS or kube-proxy.
func TestNeedsNoPodNetwork(t *testing.T) {
	pod := podOf(t, "")
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault {
		t.Errorf("host network %t and DNS policy %s, want the host's", pod.HostNetwork, pod.DNSPolicy)
	}
	env := map[string]corev1.EnvVar{}
	for _, e := range pod.Containers[0].Env {
		env[e.Name] = e
	}
	if from := env["KUBERNETES_SERVICE_HOST"].ValueFrom; from == nil || from.FieldRef.FieldPath != "status.hostIP" {
		t.Errorf("KUBERNETES_SERVICE_HOST %v, want the host's address", env["KUBERNETES_SERVICE_HOST"])
	}
	if env["KUBERNETES_SERVICE_PORT"].Value != "6443" {
		t.Errorf("KUBERNETES_SERVICE_PORT %v, want 6443", env["KUBERNETES_SERVICE_PORT"])
	}
	for _, e := range podOf(t, "apiServer: {host: api.example.com, port: 443}").Containers[0].Env {
		if want := map[string]string{"KUBERNETES_SERVICE_HOST": "api.example.com", "KUBERNETES_SERVICE_PORT": "443"}[e.Name]; e.Value != want {
			t.Errorf("%v, want %s", e, want)
		}
	}
}

func TestPodHasNoPrivileges(t *testing.T) {
	for name, c := range map[string]struct {
		values string
		user   int64
	}{
		"hostPath": {"", 0},
		"secret":   {"ca: {source: secret, secret: a}", 65532},
		"none": {`{ca: {source: none}, flags: {controllers: [token-cleaner], tls-cert-file: a, tls-private-key-file: b}}`,
			65532},
	} {
		pod := podOf(t, c.values)
		s := pod.Containers[0].SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.Capabilities.Add != nil || s.Privileged != nil {
			t.Errorf("%s: container has %v", name, s)
		}
		if *pod.SecurityContext.RunAsUser != c.user || pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: pod has %v, want user %d", name, pod.SecurityContext, c.user)
		}
		if c.user != 0 && (!*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.FSGroup != c.user) {
			t.Errorf("%s: pod has %v, want a group that can read Secrets", name, pod.SecurityContext)
		}
		for _, m := range pod.Containers[0].VolumeMounts {
			if !m.ReadOnly {
				t.Errorf("%s: %s is writable", name, m.Name)
			}
		}
		if r := pod.Containers[0].Resources; r.Requests.Cpu().IsZero() || r.Requests.Memory().IsZero() || r.Limits.Memory().IsZero() {
			t.Errorf("%s: resources %v", name, r)
		}
	}
}

func TestMountsTheCAReadOnly(t *testing.T) {
	pod := podOf(t, "")
	if v := pod.Volumes; len(v) != 1 || v[0].HostPath == nil || v[0].HostPath.Path != "/etc/kubernetes/pki" || *v[0].HostPath.Type != corev1.HostPathDirectory {
		t.Errorf("volumes %v, want the folder of the host", v)
	}
	wantArgs(t, pod, "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt", "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key")
	pod = podOf(t, "ca: {source: secret, secret: cluster-ca, keyFile: ca.key}")
	if v := pod.Volumes; len(v) != 1 || v[0].Secret == nil || v[0].Secret.SecretName != "cluster-ca" || *v[0].Secret.DefaultMode != 0o440 {
		t.Errorf("volumes %v, want the Secret", v)
	}
	wantArgs(t, pod, "--cluster-signing-cert-file=/etc/kubejoin/ca/tls.crt", "--cluster-signing-key-file=/etc/kubejoin/ca/ca.key")
	pod = podOf(t, "flags: {cluster-signing-key-url: 'unix:///run/kubejoin-signer/sock'}")
	wantArgs(t, pod, "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt", "--cluster-signing-key-url=unix:///run/kubejoin-signer/sock")
	if slices.ContainsFunc(pod.Containers[0].Args, func(arg string) bool { return strings.HasPrefix(arg, "--cluster-signing-key-file") }) {
		t.Errorf("args %q, want no key file beside a signer process", pod.Containers[0].Args)
	}
}

// With a signer process, the pod runs as root and must not reach the key of the CA.
func TestMountsNoKeyBesideASignerProcess(t *testing.T) {
	pod := podOf(t, "flags: {cluster-signing-key-url: 'unix:///run/kubejoin-signer/sock'}")
	const cert = "/etc/kubernetes/pki/ca.crt"
	if v := pod.Volumes; len(v) != 1 || v[0].HostPath == nil || v[0].HostPath.Path != cert || *v[0].HostPath.Type != corev1.HostPathFile || pod.Containers[0].VolumeMounts[0].MountPath != cert {
		t.Errorf("volumes %v, mounts %v, want the certificate alone", v, pod.Containers[0].VolumeMounts)
	}
	pod = podOf(t, "{ca: {source: secret, secret: cluster-ca, certFile: ca.crt}, flags: {cluster-signing-key-url: 'https://signer:9444'}}")
	if v := pod.Volumes; len(v) != 1 || v[0].Secret == nil || !slices.Equal(v[0].Secret.Items, []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}) {
		t.Errorf("volumes %v, want the certificate alone", v)
	}
	wantArgs(t, pod, "--cluster-signing-cert-file=/etc/kubejoin/ca/ca.crt")
}

func wantArgs(t *testing.T, pod corev1.PodSpec, want ...string) {
	t.Helper()
	for _, arg := range want {
		if !slices.Contains(pod.Containers[0].Args, arg) {
			t.Errorf("args %q, want %s", pod.Containers[0].Args, arg)
		}
	}
}

func TestProbesAskKubejoin(t *testing.T) {
	c := podOf(t, "port: 8443").Containers[0]
	for name, probe := range map[string]struct {
		*corev1.Probe
		path string
	}{"startup": {c.StartupProbe, "/healthz"}, "liveness": {c.LivenessProbe, "/healthz"}, "readiness": {c.ReadinessProbe, "/readyz"}} {
		if get := probe.HTTPGet; get.Path != probe.path || get.Scheme != corev1.URISchemeHTTPS || get.Port.StrVal != "https" {
			t.Errorf("%s probe: %v, want https and %s", name, get, probe.path)
		}
	}
	if p := c.Ports; len(p) != 1 || p[0].Name != "https" || p[0].ContainerPort != 8443 || p[0].HostPort != 8443 {
		t.Errorf("ports %v, want https at 8443", p)
	}
}

func TestKinds(t *testing.T) {
	for _, c := range []struct{ values, want, not string }{
		{"", "DaemonSet kubejoin", "Deployment kubejoin"},
		// A disruption budget for a DaemonSet cannot work: the API server cannot count the expected pods.
		{"", "DaemonSet kubejoin", "PodDisruptionBudget kubejoin"},
		{"kind: Deployment", "Deployment kubejoin", "DaemonSet kubejoin"},
		{"kind: Deployment", "PodDisruptionBudget kubejoin", "Namespace kubejoin-system"},
		{"{kind: Deployment, podDisruptionBudget: {enabled: false}}", "Deployment kubejoin", "PodDisruptionBudget kubejoin"},
		// With one replica, a disruption budget would block a drain.
		{"{kind: Deployment, replicas: 1}", "Deployment kubejoin", "PodDisruptionBudget kubejoin"},
		{"kind: None", "ClusterRole kubejoin", "DaemonSet kubejoin"},
		{"kind: None", "ClusterRole kubejoin", "Deployment kubejoin"},
		{"", "Service kubejoin", "NetworkPolicy kubejoin"},
		{"", "ServiceAccount kubejoin", "ServiceMonitor kubejoin"},
		{"", "ValidatingAdmissionPolicy kubejoin-secrets", "PrometheusRule kubejoin"},
		{"", "ClusterRole kubejoin:join-issuer", "ClusterRoleBinding kubejoin:join-issuer"},
		{"service: {enabled: false}", "DaemonSet kubejoin", "Service kubejoin"},
		{"networkPolicy: {enabled: true}", "NetworkPolicy kubejoin", "ConfigMap kubejoin"},
		{"serviceMonitor: {enabled: true}", "ServiceMonitor kubejoin", "PrometheusRule kubejoin"},
		{"prometheusRule: {enabled: true}", "PrometheusRule kubejoin", "ServiceMonitor kubejoin"},
		{"", "Service kubejoin", "ConfigMap kubejoin-dashboard"},
		{"grafanaDashboard: {enabled: true}", "ConfigMap kubejoin-dashboard", "PrometheusRule kubejoin"},
		{"createNamespace: true", "Namespace kubejoin-system", "ConfigMap kubejoin"},
		// The right to patch Nodes is off by default, and never without its policy.
		{"", "Service kubejoin", "ClusterRole kubejoin:node-properties"},
		{"nodeProperties: true", "ClusterRoleBinding kubejoin:node-properties", "ValidatingAdmissionPolicy kubejoin-joining"},
		{"nodeProperties: true", "ValidatingAdmissionPolicyBinding kubejoin-node-properties", "ValidatingAdmissionPolicyBinding kubejoin-joining"},
		{"", "Service kubejoin", "ValidatingAdmissionPolicy kubejoin-claims"},
		{"claimsPolicy: {enabled: true}", "ValidatingAdmissionPolicyBinding kubejoin-claims", "ValidatingAdmissionPolicy kubejoin-joining"},
	} {
		all := rendered(t, c.values)
		if all[c.want] == nil || all[c.not] != nil {
			t.Errorf("values %q: got %q, want %s and no %s", c.values, keysOf(all), c.want, c.not)
		}
	}
}

func keysOf(all objects) (names []string) {
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Pods on the host network need the same port. So an update that starts the new pod before it stops the old one never ends.
func TestUpdatesFreeThePortFirst(t *testing.T) {
	daemon := as[appsv1.DaemonSet](t, rendered(t, ""), "DaemonSet kubejoin").Spec.UpdateStrategy.RollingUpdate
	deployment := as[appsv1.Deployment](t, rendered(t, "kind: Deployment"), "Deployment kubejoin").Spec.Strategy.RollingUpdate
	if daemon.MaxSurge.IntVal != 0 || daemon.MaxUnavailable.IntVal != 1 || deployment.MaxSurge.IntVal != 0 || deployment.MaxUnavailable.IntVal != 1 {
		t.Errorf("got %v and %v, want no surge", daemon, deployment)
	}
}

func TestServiceSelectsThePods(t *testing.T) {
	all := rendered(t, "{port: 8443, service: {port: 443}}")
	service, daemon := as[corev1.Service](t, all, "Service kubejoin"), as[appsv1.DaemonSet](t, all, "DaemonSet kubejoin")
	for name, value := range service.Spec.Selector {
		if daemon.Spec.Template.Labels[name] != value || daemon.Spec.Selector.MatchLabels[name] != value {
			t.Errorf("the Service selects %s=%s, which no pod has", name, value)
		}
	}
	if p := service.Spec.Ports[0]; p.Port != 443 || p.TargetPort.IntVal != 8443 {
		t.Errorf("ports %v", p)
	}
	wantArgs(t, daemon.Spec.Template.Spec, "--tls-san=kubejoin.kubejoin-system.svc")
}

func TestNetworkPolicyAllowsThePortsInUse(t *testing.T) {
	policy := as[networkingv1.NetworkPolicy](t, rendered(t, "{port: 8443, apiServer: {port: 443}, networkPolicy: {enabled: true, from: [10.0.0.0/8]}}"), "NetworkPolicy kubejoin").Spec
	in, out := policy.Ingress[0], policy.Egress[0]
	if in.Ports[0].Port.IntVal != 8443 || in.From[0].IPBlock.CIDR != "10.0.0.0/8" {
		t.Errorf("policy %v", policy)
	}
	for _, port := range []int32{443, 10250, 2379} { // the API server, and servers whose CA a rotation replaces
		if !slices.ContainsFunc(out.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.IntVal == port }) {
			t.Errorf("no egress to port %d: %v", port, out)
		}
	}
}

func TestAccessBindsRoles(t *testing.T) {
	all := rendered(t, "access: {joinIssuers: [{kind: ServiceAccount, name: installer, namespace: default}], viewers: [{kind: Group, name: staff}]}")
	for role, subject := range map[string]rbacv1.Subject{
		"kubejoin:join-issuer": {Kind: "ServiceAccount", Name: "installer", Namespace: "default"},
		"kubejoin:viewer":      {Kind: "Group", Name: "staff", APIGroup: rbacv1.GroupName},
	} {
		b := as[rbacv1.ClusterRoleBinding](t, all, "ClusterRoleBinding "+role)
		if b.RoleRef.Name != role || !slices.Equal(b.Subjects, []rbacv1.Subject{subject}) {
			t.Errorf("%s: %v", role, b)
		}
	}
}

// kubejoin itself must accept the arguments. A kubeconfig replaces the service account of a pod.
func TestKubejoinAcceptsTheArguments(t *testing.T) {
	program := filepath.Join(t.TempDir(), "kubejoin")
	output(t, "go", "build", "-o", mustAbs(t, program), "./cmd/kubejoin")
	for name, values := range map[string]string{"default": "", "everything": string(read(t, everything)), "without CA": withoutCA} {
		pod := podOf(t, values)
		missing := filepath.Join(t.TempDir(), "missing.conf")
		cmd := exec.CommandContext(t.Context(), program, append(pod.Containers[0].Args, "--kubeconfig="+missing)...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), missing) {
			t.Errorf("values %s: exit code %d, want 1 and an error about the kubeconfig only\n%q\n%s", name, cmd.ProcessState.ExitCode(), pod.Containers[0].Args, out)
		}
	}
}

const withoutCA = `
ca: {source: none}
flags: {controllers: ["*", -csr-signer], tls-cert-file: /etc/kubejoin/tls/tls.crt, tls-private-key-file: /etc/kubejoin/tls/tls.key}
mounts: [{path: /etc/kubejoin/tls, secret: serving}]
`

func mustAbs(t *testing.T, path string) string {
	t.Helper()
	abs := the(filepath.Abs(path))(t)
	return abs
}

func TestRefusesImpossibleValues(t *testing.T) {
	for values, want := range map[string]string{
		"ca: {source: secret}":                                                     "ca.secret is missing, want the name of a Secret",
		"ca: {secret: a}":                                                          "ca.secret is given, but ca.source is hostPath",
		"ca: {source: none}":                                                       "flags.tls-cert-file or flags.tls-private-key-file is missing",
		"flags: {leader-elect: false}":                                             "flags.leader-elect is false, but several replicas may run",
		"{kind: Deployment, flags: {leader-elect: false}}":                         "flags.leader-elect is false, but several replicas may run",
		"mounts: [{path: /a}]":                                                     "mounts[0] has 0 volumes, want one of",
		"mounts: [{path: /a, secret: a, configMap: b}]":                            "mounts[0] has 2 volumes, want one of",
		"mounts: [{path: /a, secret: a, writable: true}]":                          "mounts[0] is writable",
		"mounts: [{path: /a, secret: a}, {path: /a, secret: b}]":                   "mounts[1] has path /a, where mounts[0] is",
		"mounts: [{path: /etc/kubernetes/pki, secret: a}]":                         "mounts[0] has path /etc/kubernetes/pki, where ca is",
		"{signerConfig: a, mounts: [{path: /etc/kubejoin/config, secret: a}]}":     "mounts[0] has path /etc/kubejoin/config, where signerConfig is",
		"podLabels: {app.kubernetes.io/name: a}":                                   "podLabels has app.kubernetes.io/name, which the chart sets",
		"{service: {enabled: false}, serviceMonitor: {enabled: true}}":             "a ServiceMonitor needs the Service",
		"extraArgs: [--listen=:1]":                                                 "extraArgs has --listen, which the chart sets: use the value port",
		"{flags: {user-qps: 1}, extraArgs: [--user-qps=2]}":                        "use the value flags.user-qps",
		"{signerConfig: a, extraArgs: [--signer-config=b]}":                        "use the value signerConfig",
		"{tokenLimits: a, extraArgs: [--token-limits=b]}":                          "use the value tokenLimits",
		"{tokenLimits: a, mounts: [{path: /etc/kubejoin/config, secret: a}]}":      "mounts[0] has path /etc/kubejoin/config, where tokenLimits is",
		"access: {viewers: [{kind: ServiceAccount, name: a}]}":                     `ServiceAccount "a" has no namespace`,
		"{ca: {source: none}, flags: {tls-cert-file: a, tls-private-key-file: b}}": "csr-signer has no CA",
		// refused by the schema
		"advertize: a:1":                    "advertize",
		"advertise: join.example.com":       "advertise",
		"flags: {listen: a}":                "listen",
		"flags: {serving-allowed-cidr: a}":  "serving-allowed-cidr",
		"flags: {verbosity: 9}":             "verbosity",
		"image: {digest: a}":                "digest",
		"kind: StatefulSet":                 "kind",
		"port: 0":                           "port",
		"replicas: 0":                       "replicas",
		"terminationGracePeriodSeconds: 10": "terminationGracePeriodSeconds",
		"ca: {hostPath: pki}":               "hostPath",
		"imagePullSecrets: [a, a]":          "imagePullSecrets",
	} {
		refuses(t, namespace, values, want)
	}
	refuses(t, "default", "", `namespace "default" given, want kubejoin-system`)
	for _, values := range []string{
		"{kind: Deployment, replicas: 1, flags: {leader-elect: false}}", withoutCA,
		"{signerConfig: a, mounts: [{path: /etc/kubejoin/ca, secret: a}]}", "{ca: {source: secret, secret: a}, mounts: [{path: /etc/kubejoin/config, secret: a}]}",
	} {
		rendered(t, values) // must render: the chart must not refuse more than necessary
	}
}

// managers is a fake API server with pods of kube-controller-manager.
type managers []string

func (m managers) GetClientFor(string, string) (dynamic.NamespaceableResourceInterface, bool, error) {
	var pods []runtime.Object
	for i, command := range m {
		pods = append(pods, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{"name": fmt.Sprint("kube-controller-manager-", i+1), "namespace": "kube-system", "labels": map[string]any{"component": "kube-controller-manager"}},
			"spec":     map[string]any{"containers": []any{map[string]any{"command": words(command)}}},
		}})
	}
	pods = append(pods, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "other", "namespace": "kube-system"},
	}})
	resource := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	client := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{resource: "PodList"}, pods...)
	return client.Resource(resource), true, nil
}

func words(s string) (list []any) {
	for w := range strings.FieldsSeq(s) {
		list = append(list, w)
	}
	return list
}

func TestNotesWarnWhileKubeControllerManagerSigns(t *testing.T) {
	const (
		on  = "kube-controller-manager --controllers=*,bootstrapsigner,tokencleaner"
		off = on + " --controllers=-certificatesigningrequest-approving-controller,-certificatesigningrequest-signing-controller"
	)
	for _, c := range []struct {
		managers managers
		want     string // empty for no warning
	}{
		{nil, "WARNING: kube-controller-manager may still approve and sign"},
		{managers{on}, "WARNING: kube-controller-manager-1 still approves and signs"},
		{managers{off, on}, "WARNING: kube-controller-manager-2 still approves and signs"},
		{managers{on, on}, "WARNING: kube-controller-manager-1, kube-controller-manager-2 still"},
		{managers{off}, ""},
		{managers{on + ",-csrsigning", off}, ""},
		{managers{on + " --cluster-signing-cert-file=/a --cluster-signing-cert-file="}, ""},
		{managers{on + " --cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt"}, "still approves"},
	} {
		if notes := both(t, "", c.managers)["NOTES.txt"]; c.want == "" && strings.Contains(notes, "WARNING") || !strings.Contains(notes, c.want) {
			t.Errorf("%q: want %q in\n%s", c.managers, c.want, notes)
		}
	}
}

func TestNotesNameTheAddressOfKubejoin(t *testing.T) {
	for values, want := range map[string]string{
		"":                                 "https://HOST:9443/v1/token/print-join-command",
		"advertise: join.example.com:8443": "https://join.example.com:8443/v1/token/print-join-command",
		"kind: None":                       "Start it as a static pod or with systemd",
	} {
		if notes := both(t, values, nil)["NOTES.txt"]; !strings.Contains(notes, want) {
			t.Errorf("values %q: want %q in\n%s", values, want, notes)
		}
	}
}

// Catches a difference between the static pod and the pod of the chart.
func TestStaticPodIsLikeThePodOfTheChart(t *testing.T) {
	var static corev1.Pod
	must(t, yaml.UnmarshalStrict(output(t, "go", "run", "./cmd/kubejoin", "manifest", "static-pod"), &static))
	all := rendered(t, "service: {enabled: false}")
	want := as[appsv1.DaemonSet](t, all, "DaemonSet kubejoin").Spec.Template
	for _, p := range []*corev1.PodSpec{&static.Spec, &want.Spec} {
		// Remove the intended differences. A static pod has a kubeconfig instead of a service account. It has no node
		// selector, because the kubelet ignores it.
		p.ServiceAccountName, p.NodeSelector = "", nil
		p.Priority, p.PriorityClassName = nil, ""
		c := &p.Containers[0]
		c.Image, c.Env = "", nil
		c.Args = slices.DeleteFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--kubeconfig=") })
		p.Volumes = slices.DeleteFunc(p.Volumes, func(v corev1.Volume) bool { return v.Name == "kubeconfig" })
		c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == "kubeconfig" })
		p.Volumes[0].Name, c.VolumeMounts[0].Name = "ca", "ca"
	}
	got, wanted := mustYAML(t, static.Spec), mustYAML(t, want.Spec)
	if got != wanted {
		t.Errorf("the static pod is\n%s\nthe pod of the chart is\n%s", got, wanted)
	}
	for _, name := range []string{"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component"} {
		if static.Labels[name] != want.Labels[name] {
			t.Errorf("label %s is %q, want %q, or the Service does not select the pod", name, static.Labels[name], want.Labels[name])
		}
	}
}

func mustYAML(t *testing.T, object any) string {
	t.Helper()
	text := the(yaml.Marshal(object))(t)
	return string(text)
}
