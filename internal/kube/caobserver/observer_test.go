package caobserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	nodesPath     = "/api/v1/nodes"
	podsPath      = "/api/v1/namespaces/kube-system/pods"
	rootCAsPath   = "/api/v1/configmaps"
	secretsPath   = "/api/v1/namespaces/kube-system/secrets"
	validating    = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	mutating      = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	apiServices   = "/apis/apiregistration.k8s.io/v1/apiservices"
	definitions   = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	trustBundles  = "/apis/certificates.k8s.io/v1/clustertrustbundles"
	endpointSlice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes"
	infoPath      = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
	authPath      = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
)

func configMap(namespace, name, key, value string) corev1.ConfigMap {
	return corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{key: value}}
}

// controllerManager returns the mirror pod of kube-controller-manager on a node.
func controllerManager(on string, flags ...string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-controller-manager-" + on, Labels: map[string]string{"component": "kube-controller-manager"}, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "0"}},
		Spec:       corev1.PodSpec{NodeName: on, Containers: []corev1.Container{{Name: "kube-controller-manager", Command: flags}}},
	}
}

// objects returns the fields of each object as the API server sends them.
func objects(t testing.TB, all ...any) []any {
	t.Helper()
	fields := make([]any, len(all))
	for i, one := range all {
		fields[i] = object(t, one)
	}
	return fields
}

// If an API is not found, a proxy may have blocked it, so its objects must be unseen. For ClusterTrustBundles, an API server
// may serve only an earlier version.
func TestObjectsOfMissingAPIAreUnseen(t *testing.T) {
	server := &apiServer{}
	o, old := server.start(t, &network{}), certtest.CA(t, "old")
	delete(server.lists, definitions)
	server.lists["/apis/certificates.k8s.io/v1beta1/clustertrustbundles"] = objects(t, map[string]any{"metadata": map[string]any{"name": "beta"}, "spec": map[string]any{"trustBundle": bundleOf(old)}})
	seen := must.Value(o.Observe(t.Context(), begun(t, rotation.Trust, old, certtest.CA(t, "new"))))(t)
	var behind []string
	for _, s := range seen {
		if s.Kind == rotation.KindCABundle {
			behind = append(behind, s.Name)
		}
	}
	if want := []string{"clustertrustbundle beta", "customresourcedefinitions"}; !slices.Equal(behind, want) {
		t.Errorf("got %q behind, want %q", behind, want)
	}
}

// TestObserveShowsWhatIsBehind observes a cluster in stage trust in which half of the objects and servers have the new CA.
func TestObserveShowsWhatIsBehind(t *testing.T) {
	old, fresh, other := certtest.CA(t, "kubernetes"), certtest.CA(t, "kubernetes 2"), certtest.CA(t, "another")
	r := begun(t, rotation.Trust, old, fresh)
	controlPlane := func(name, address string) *corev1.Node {
		n := node(name, address)
		n.Labels[controlPlaneLabel] = ""
		return n
	}
	trusts := func(o, n bool) rotation.File {
		return rotation.File{Name: "pki/ca.crt", Trusts: &rotation.Trusted{Old: o, New: n}}
	}
	off, closed := node("w-off", "192.0.2.24"), node("w-port", "192.0.2.23")
	off.Status.Conditions[0].Status = corev1.ConditionUnknown
	reported(t, off, r)
	closed.Status.DaemonEndpoints.KubeletEndpoint.Port = 22
	metadata := node("w-metadata", "169.254.169.254")
	foreign := node("w-foreign", "192.0.2.25")
	foreign.Annotations[rotation.Annotation(rotation.Cluster)] = `{"id":"0123456789abcdef","ca":"cluster","files":[{"name":"pki/ca.crt","trusts":{"old":true,"new":true}}]}`

	oldInfo := must.Value(clusterinfo.Kubeconfig("https://192.0.2.11:6443", r.Old))(t)
	webhook := func(bundles ...string) (all []admissionregistration.ValidatingWebhook) {
		for _, b := range bundles {
			all = append(all, admissionregistration.ValidatingWebhook{ClientConfig: admissionregistration.WebhookClientConfig{CABundle: []byte(b)}})
		}
		return all
	}
	immutable := configMap("y", "kube-root-ca.crt", "ca.crt", bundleOf(old))
	immutable.Immutable = new(bool)
	*immutable.Immutable = true
	port := int32(6443)
	server := &apiServer{
		lists: map[string][]any{
			nodesPath: objects(t, reported(t, controlPlane("cp-1", "192.0.2.11"), r, trusts(true, true)), controlPlane("cp-2", "192.0.2.12"),
				reported(t, node("w-1", "192.0.2.21"), r, trusts(true, false)), closed, off, metadata, foreign),
			podsPath:    objects(t, controllerManager("cp-1", "kube-controller-manager", "--cluster-signing-cert-file=/ca.crt"), controllerManager("w-1", "kube-controller-manager", "--cluster-signing-cert-file=/ca.crt")),
			rootCAsPath: objects(t, configMap("default", "kube-root-ca.crt", "ca.crt", bundleOf(old)), configMap("kube-system", "kube-root-ca.crt", "ca.crt", bundleOf(old, fresh)), configMap("default", "other", "ca.crt", "x"), configMap("x", "kube-root-ca.crt", "ca.crt", "x"), immutable),
			apiServices: objects(t, map[string]any{"metadata": map[string]any{"name": "v1.apps"}}, map[string]any{"metadata": map[string]any{"name": "v1.metrics"}, "spec": map[string]any{"caBundle": base64.StdEncoding.EncodeToString([]byte(bundleOf(old, fresh)))}}),
			definitions: objects(t, map[string]any{"metadata": map[string]any{"name": "things"}, "spec": map[string]any{"conversion": map[string]any{"webhook": map[string]any{"clientConfig": map[string]any{"caBundle": base64.StdEncoding.EncodeToString([]byte(bundleOf(old)))}}}}}),
			trustBundles: objects(t, map[string]any{"metadata": map[string]any{"name": "kubernetes.io:kube-apiserver-serving:x"}, "spec": map[string]any{"trustBundle": bundleOf(old)}},
				map[string]any{"metadata": map[string]any{"name": "example.com:a:b"}, "spec": map[string]any{"trustBundle": bundleOf(old)}}),
			validating: objects(t, admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "half"}, Webhooks: webhook(bundleOf(old, fresh), bundleOf(old), bundleOf(other), "")}, admissionregistration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Webhooks: webhook(bundleOf(other))}),
		},
		objects: map[string]any{
			endpointSlice: discovery.EndpointSlice{Ports: []discovery.EndpointPort{{Port: &port}}, Endpoints: []discovery.Endpoint{{Addresses: []string{"192.0.2.11"}}, {Addresses: []string{"192.0.2.13"}}}},
			infoPath:      configMap("kube-public", "cluster-info", clusterinfo.KubeconfigKey, string(oldInfo)),
			authPath:      configMap("kube-system", "extension-apiserver-authentication", "client-ca-file", bundleOf(old, fresh)),
		},
		forbidden: map[string]bool{mutating: true},
	}
	n := &network{}
	n.listen("192.0.2.11:6443", serve(t, tlsConfig(t, old, old, fresh, other)))
	n.listen("192.0.2.13:6443", serve(t, tlsConfig(t, old, old, other)))
	n.listen("192.0.2.11:10250", serve(t, tlsConfig(t, old, old, fresh)))
	n.listen("192.0.2.12:10250", serve(t, tlsConfig(t, old, old, fresh)))
	n.listen("192.0.2.21:10250", serve(t, tlsConfig(t, other, old)))
	n.listen("192.0.2.25:10250", serve(t, tlsConfig(t, other, old, fresh)))
	n.listen("kubejoin:9443", serve(t, tlsConfig(t, old)))
	o := server.start(t, n)
	o.Servers, o.NoRecord = []string{"kubejoin:9443"}, "grep PIN FILE"
	token := must.Value(tokens.New("abcdef", "0123456789abcdeg"))(t)
	o.Tokens = func(context.Context) ([]tokens.Record, error) {
		return []tokens.Record{tokens.NewRecord(token, time.Hour, time.Now())}, nil
	}

	want := strings.Split(strings.TrimSpace(`
api-server 192.0.2.11:6443 @cp-1 trusts:old,new from:old
api-server 192.0.2.12:6443 @cp-2 unseen:dial 192.0.2.12:6443: no route next:on cp-2: kubejoin ca apply
api-server 192.0.2.13:6443 trusts:old from:old next:kubectl -n default get endpointslice kubernetes -o yaml
ca-bundle apiservice v1.metrics trusts:old,new
ca-bundle clustertrustbundle example.com:a:b trusts:old next:kubectl edit clustertrustbundle example.com:a:b
ca-bundle clustertrustbundle kubernetes.io:kube-apiserver-serving:x trusts:old next:on each control plane: pkill -x kube-controller # the kubelet starts kube-controller-manager again
ca-bundle customresourcedefinition things trusts:old next:kubectl edit customresourcedefinition things
ca-bundle mutatingwebhookconfigurations unseen:need list on mutatingwebhookconfigurations next:apply the manifests or the chart of this version of kubejoin
ca-bundle validatingwebhookconfiguration half trusts:old next:kubectl edit validatingwebhookconfiguration half
certificate issuance record unseen:it cannot be searched from here optional next:grep PIN FILE
cluster-info kube-public/cluster-info trusts:old next:kubectl -n kube-public get configmap cluster-info -o yaml
file pki/ca.crt on cp-1 @cp-1 trusts:old,new
file pki/ca.crt on w-1 @w-1 trusts:old next:on w-1: kubejoin ca apply
file report of cp-1 @cp-1
file report of cp-2 @cp-2 unseen:'kubejoin ca apply' has not run there next:on cp-2: kubejoin ca apply
file report of w-1 @w-1
file report of w-foreign @w-foreign unseen:it is about another rotation next:on w-foreign: kubejoin ca apply
file report of w-metadata @w-metadata unseen:'kubejoin ca apply' has not run there next:on w-metadata: kubejoin ca apply
file report of w-port @w-port unseen:'kubejoin ca apply' has not run there next:on w-port: kubejoin ca apply
kubejoin kubejoin:9443 from:old
kubejoin other replicas unseen:the address of --advertise shows only one optional next:curl -vk https://HOST:9443/readyz # on each host of kubejoin
kubelet cp-1 @cp-1 trusts:old,new from:old
kubelet cp-2 @cp-2 trusts:old,new from:old
kubelet w-1 @w-1 trusts:old from:other next:on w-1: kubejoin ca apply
kubelet w-foreign @w-foreign trusts:old,new from:other
kubelet w-metadata @w-metadata unseen:its Node has no InternalIP that kubejoin connects to next:on w-metadata: kubejoin ca apply
kubelet w-off @w-off off next:kubectl describe node w-off
kubelet w-port @w-port unseen:its kubelet has port 22, and kubejoin connects only to 10250 next:on w-port: kubejoin ca apply
merged configmap extension-apiserver-authentication trusts:old,new
other-signer kube-controller-manager on cp-1 @cp-1 unseen:signs certificates, and will fail to sign once its CA file has two certificates next:on cp-1: sed …
other-signer kube-controller-manager on cp-2 @cp-2 unseen:it has no static pod that shows its flags optional next:on cp-2: ps -o args= -C kube-controller-manager # --controllers needs -csrsigning
other-signer kube-controller-manager on w-1 @w-1 unseen:signs certificates, and will fail to sign once its CA file has two certificates next:on w-1: sed …
root-ca default/kube-root-ca.crt trusts:old next:kubectl -n default get configmap kube-root-ca.crt -o yaml
root-ca kube-system/kube-root-ca.crt trusts:old,new
root-ca x/kube-root-ca.crt unseen:its CA certificates are malformed: no certificate found: want a PEM block of type CERTIFICATE next:kubectl -n x get configmap kube-root-ca.crt -o yaml
root-ca y/kube-root-ca.crt trusts:old next:kubectl -n y delete configmap kube-root-ca.crt # it is immutable, and kube-controller-manager creates it again
token abcdef trusts:old
`), "\n")
	for range 2 { // the result must be stable
		got := lines(must.Value(o.Observe(t.Context(), r))(t))
		for i, text := range got {
			if command, _, found := strings.Cut(text, ": sed"); found {
				got[i] = command + ": sed …"
			}
		}
		for _, text := range want {
			if !slices.Contains(got, text) {
				t.Errorf("missing: %s", text)
			}
		}
		for _, text := range got {
			if !slices.Contains(want, text) {
				t.Errorf("not wanted: %s", text)
			}
		}
		if !t.Failed() && !slices.Equal(got, want) {
			t.Errorf("order: %s", strings.Join(got, "\n"))
		}
	}
	for _, address := range n.dialed {
		if strings.HasSuffix(address, ":22") || strings.HasPrefix(address, "169.254.") {
			t.Errorf("connected to %s, which a Node named", address)
		}
	}

	r.Ended, n.dialed = time.Now(), nil
	want = []string{
		"file report of cp-1 @cp-1 unseen:'kubejoin ca apply' has not completed the rotation there next:on cp-1: kubejoin ca apply",
		"file report of w-1 @w-1 unseen:'kubejoin ca apply' has not completed the rotation there next:on w-1: kubejoin ca apply",
		"file report of w-off @w-off unseen:'kubejoin ca apply' has not completed the rotation there next:on w-off: kubejoin ca apply",
	}
	if got := lines(must.Value(o.Observe(t.Context(), r))(t)); !slices.Equal(got, want) || len(n.dialed) > 0 {
		t.Errorf("after an abort: got %q, want %q; connected to %q", got, want, n.dialed)
	}
	r.Stage = rotation.Finish
	want = append([]string{
		"api-server 192.0.2.11:6443 @cp-1 trusts:old,new from:old next:on cp-1: kubejoin ca apply",
		"api-server 192.0.2.12:6443 @cp-2 unseen:dial 192.0.2.12:6443: no route optional next:on cp-2: kubejoin ca apply",
		"api-server 192.0.2.13:6443 trusts:old from:old next:kubectl -n default get endpointslice kubernetes -o yaml",
	}, want...)
	got := lines(must.Value(o.Observe(t.Context(), r))(t))
	if toOthers := slices.ContainsFunc(n.dialed, func(address string) bool { return !strings.HasSuffix(address, ":6443") }); !slices.Equal(got, want) || toOthers {
		t.Errorf("after the end: got %q, want %q; connected to %q", got, want, n.dialed)
	}
}

// TestEachFailureKeepsFinishFromBeginning catches a source that fails, and whose missing observations let stage finish begin.
func TestEachFailureKeepsFinishFromBeginning(t *testing.T) {
	old, fresh := certtest.CA(t, "kubernetes"), certtest.CA(t, "kubernetes 2")
	r := begun(t, rotation.Switch, old, fresh)
	info := must.Value(clusterinfo.Kubeconfig("https://192.0.2.11:6443", []*x509.Certificate{old.Leaf, fresh.Leaf}))(t)
	network := &network{}
	network.listen("192.0.2.11:6443", serve(t, tlsConfig(t, fresh, old, fresh)))
	network.listen("192.0.2.11:10250", serve(t, tlsConfig(t, fresh, old, fresh)))
	controlPlane := reported(t, node("cp-1", "192.0.2.11"), r, rotation.File{Name: "pki/ca.crt", Trusts: &rotation.Trusted{Old: true, New: true}})
	controlPlane.Labels[controlPlaneLabel] = ""
	pending := func(r rotation.Rotation, forbidden string) []string {
		server := &apiServer{
			lists:     map[string][]any{nodesPath: objects(t, controlPlane), podsPath: objects(t, controllerManager("cp-1")), apiServices: {}, definitions: {}, rootCAsPath: objects(t, configMap("kube-system", "kube-root-ca.crt", "ca.crt", bundleOf(old, fresh)))},
			objects:   map[string]any{infoPath: configMap("kube-public", "cluster-info", clusterinfo.KubeconfigKey, string(info))},
			forbidden: map[string]bool{forbidden: true},
		}
		var all []string
		for _, b := range r.Pending(must.Value(server.start(t, network).Observe(t.Context(), r))(t)) {
			all = append(all, b.Why)
		}
		return all
	}
	if all := pending(r, "none"); len(all) > 0 {
		t.Fatalf("got %q, want a cluster that is ready", all)
	}
	for _, path := range []string{podsPath, rootCAsPath, secretsPath, validating, mutating, apiServices, definitions, trustBundles, endpointSlice, infoPath, authPath} {
		want := []string{" was not seen: need "}
		if path == podsPath {
			want = []string{"api-server kube-apiserver was not seen: need ", " could not be checked: need ", want[0]}
		}
		if all := pending(r, path); !slices.EqualFunc(all, want, strings.Contains) {
			t.Errorf("without %s: got %q", path, all)
		}
	}
	// Once its CA file has two CAs, a kube-controller-manager that signs stops working and cannot restart.
	want := []string{"api-server kube-apiserver was not seen: need ", "report of cp-1 was not seen: it is about another rotation", "other-signer kube-controller-manager could not be checked: need list on pods"}
	if all := pending(begun(t, rotation.Prepare, old, fresh), podsPath); !slices.EqualFunc(all, want, strings.Contains) {
		t.Errorf("trust without pods: got %q, want %q", all, want)
	}
}

// TestEachStepNeedsAnAPIServer catches a switch that begins although no API server was observed. Here, API servers publish no
// address, and no Node has the label of control planes.
func TestEachStepNeedsAnAPIServer(t *testing.T) {
	old, fresh, other := certtest.CA(t, "kubernetes"), certtest.CA(t, "kubernetes 2"), certtest.CA(t, "of a proxy")
	r := begun(t, rotation.Trust, old, fresh)
	pod := controllerManager("cp-1")
	pod.Name, pod.Labels = "kube-apiserver-cp-1", map[string]string{"component": "kube-apiserver"}
	labelled := node("cp-1", "192.0.2.11")
	labelled.Labels[controlPlaneLabel] = ""
	port := int32(6443)
	slice := discovery.EndpointSlice{Ports: []discovery.EndpointPort{{Port: &port}}, Endpoints: []discovery.Endpoint{{Addresses: []string{"192.0.2.11"}}}}
	const label, proxy = " next:kubectl label node NODE node-role.kubernetes.io/control-plane= # each control plane", "unseen:its handshake names no CA of this rotation: a proxy may have answered"
	const seen = "api-server 192.0.2.11:6443 @cp-1 trusts:old,new from:old"
	for name, test := range map[string]struct {
		own        *tls.Config
		node       *corev1.Node
		pods       []any
		slice      any
		frontProxy bool
		want       []string
	}{
		"none":                     {want: []string{"api-server addresses unseen:no API server was seen: no Node has the label node-role.kubernetes.io/control-plane, and EndpointSlice default/kubernetes has no address" + label}},
		"own":                      {own: tlsConfig(t, old, old, fresh), want: []string{"api-server own trusts:old,new from:old"}},
		"own, behind":              {own: tlsConfig(t, old, old), want: []string{"api-server own trusts:old from:old" + label}},
		"own, of front-proxy":      {own: tlsConfig(t, other, old, fresh), frontProxy: true, want: []string{"api-server own trusts:old,new"}},
		"proxy":                    {own: tlsConfig(t, old), want: []string{"api-server own " + proxy + label}},
		"proxy of another CA":      {own: tlsConfig(t, other, other), want: []string{"api-server own " + proxy + label}},
		"proxy before one":         {own: tlsConfig(t, other), node: labelled, want: []string{seen, "api-server own " + proxy + " optional" + label}},
		"published one of a Node":  {node: labelled, slice: slice, want: []string{seen}},
		"static pod without label": {pods: objects(t, pod), want: []string{"api-server kube-apiserver-cp-1 @cp-1 unseen:its Node has no label node-role.kubernetes.io/control-plane next:kubectl label node cp-1 node-role.kubernetes.io/control-plane="}},
		"static pod of a Node":     {node: labelled, pods: objects(t, pod), want: []string{seen}},
	} {
		t.Run(name, func(t *testing.T) {
			r, n, server := r, &network{}, &apiServer{tls: test.own, lists: map[string][]any{podsPath: test.pods}, objects: map[string]any{}}
			n.listen("192.0.2.11:6443", serve(t, tlsConfig(t, old, old, fresh)))
			if test.node != nil {
				server.lists[nodesPath] = objects(t, test.node)
			}
			if test.slice != nil {
				server.objects[endpointSlice] = test.slice
			}
			if test.frontProxy {
				r.CA = rotation.FrontProxy
			}
			o := server.start(t, n)
			var got []string
			for _, text := range lines(must.Value(o.Observe(t.Context(), r))(t)) {
				if strings.HasPrefix(text, "api-server ") {
					got = append(got, strings.ReplaceAll(text, o.Client.CoreV1().RESTClient().Get().URL().Host, "own"))
				}
			}
			if slices.Sort(got); !slices.Equal(got, test.want) {
				t.Errorf("got %q\nwant %q", got, test.want)
			}
		})
	}
}

// TestObservesEachMemberOfEtcd catches a stage switch that begins although an external etcd would refuse kube-apiserver's new
// certificate.
func TestObservesEachMemberOfEtcd(t *testing.T) {
	old, fresh := certtest.CA(t, "etcd-ca"), certtest.CA(t, "etcd-ca 2")
	r := begun(t, rotation.Trust, old, fresh)
	r.CA = rotation.Etcd
	controlPlane := func(name, address string) *corev1.Node {
		n := node(name, address)
		n.Labels[controlPlaneLabel] = ""
		// The report says nothing about members that are not static pods.
		return reported(t, n, r, rotation.File{Name: "pki/etcd/ca.crt", Trusts: &rotation.Trusted{Old: true, New: true}})
	}
	pod := func(on, component string, command, args []string) corev1.Pod {
		p := controllerManager(on)
		p.Name, p.Labels = component+"-"+on, map[string]string{"component": component}
		p.Spec.Containers = []corev1.Container{{Name: component, Command: command, Args: args}}
		return p
	}
	const configPath = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config"
	config := func(etcd string) corev1.ConfigMap {
		return configMap("kube-system", "kubeadm-config", "ClusterConfiguration", "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd: "+etcd)
	}
	cp1, cp2, onlyOld := controlPlane("cp-1", "192.0.2.11"), controlPlane("cp-2", "192.0.2.12"), tlsConfig(t, old, old)
	const behind = " trusts:old from:old next:openssl s_client -connect "
	const shows = " next:kubectl -n kube-system get configmap kubeadm-config -o yaml # and the flag --etcd-servers of kube-apiserver"
	const refused = " unseen:kubejoin connects only to URLs such as https://192.0.2.1:2379" + shows
	const note = " # shows the client CAs that etcd read from --trusted-ca-file"
	const missing = "etcd members unseen:no member was seen: no Node with the label node-role.kubernetes.io/control-plane has a static pod of etcd or kube-apiserver, and kubeadm-config has no etcd.external next:kubectl label node NODE node-role.kubernetes.io/control-plane= # each control plane"
	for name, test := range map[string]struct {
		nodes, pods []any
		config      any
		forbidden   bool
		want        []string
	}{
		"none":            {want: []string{missing}},
		"local":           {config: config("{local: {}}"), want: []string{missing}},
		"of kubeadm":      {config: config("{external: {endpoints: [https://etcd.example.com:2379]}}"), want: []string{"etcd etcd.example.com:2379" + behind + "etcd.example.com:2379" + note}},
		"malformed":       {config: config("{external: 1}"), want: []string{"etcd members in kubeadm-config unseen:ClusterConfiguration in ConfigMap kube-system/kubeadm-config: malformed YAML next:kubejoin ca status --ca etcd"}},
		"not readable":    {forbidden: true, want: []string{"etcd members in kubeadm-config unseen:need get on configmap kubeadm-config in kube-system next:retry with a kubeconfig of cluster-admin"}},
		"without a Node":  {config: config(`{external: {endpoints: ["https://127.0.0.1:2379"]}}`), want: []string{"etcd member of kube-apiserver unseen:its Node has no InternalIP that kubejoin connects to" + shows}},
		"link-local":      {config: config(`{external: {endpoints: ["https://169.254.169.254:2379"]}}`), want: []string{"etcd member of kube-apiserver" + refused}},
		"flags of others": {nodes: objects(t, node("w-1", "192.0.2.21")), pods: objects(t, pod("w-1", "kube-apiserver", []string{"kube-apiserver", "--etcd-servers=https://etcd.example.com:2379"}, nil)), want: []string{missing}},
		"flags": {
			nodes: objects(t, cp1, cp2),
			pods: objects(t,
				pod("cp-1", "etcd", nil, nil),
				pod("cp-1", "kube-apiserver", []string{"kube-apiserver", "--etcd-servers=https://127.0.0.1:2379,,https://etcd.example.com"}, []string{"--etcd-servers-overrides", "/events#https://192.0.2.31:2379;https://cp-2:2381"}),
				pod("cp-2", "kube-apiserver", []string{"kube-apiserver", "--etcd-servers", "https://localhost:2379,unix:///run/etcd.sock"}, nil)),
			config: config("{external: {endpoints: [https://192.0.2.31:2379]}}"),
			want: []string{
				"etcd 192.0.2.11:2379 @cp-1 trusts:old,new from:old",
				"etcd 192.0.2.12:2379 @cp-2 trusts:old,new from:old",
				"etcd 192.0.2.12:2381 @cp-2 unseen:dial 192.0.2.12:2381: no route next:openssl s_client -connect 192.0.2.12:2381" + note,
				"etcd 192.0.2.31:2379" + behind + "192.0.2.31:2379" + note,
				"etcd etcd.example.com:443" + behind + "etcd.example.com:443" + note,
				"etcd member of cp-2 @cp-2" + refused,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := &network{}
			for _, address := range []string{"192.0.2.31:2379", "etcd.example.com:2379", "etcd.example.com:443"} {
				n.listen(address, serve(t, onlyOld))
			}
			for _, address := range []string{"192.0.2.11:2379", "192.0.2.12:2379"} {
				n.listen(address, serve(t, tlsConfig(t, old, old, fresh)))
			}
			server := &apiServer{lists: map[string][]any{nodesPath: test.nodes, podsPath: test.pods}, objects: map[string]any{}, forbidden: map[string]bool{configPath: test.forbidden}}
			if test.config != nil {
				server.objects[configPath] = test.config
			}
			seen := must.Value(server.start(t, n).Observe(t.Context(), r))(t)
			got := slices.DeleteFunc(lines(seen), func(text string) bool {
				return !strings.HasPrefix(text, "etcd ") || strings.HasPrefix(text, "etcd kube-apiserver-w-1")
			})
			if !slices.Equal(got, test.want) {
				t.Errorf("got %s\nwant %s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if len(r.Pending(seen)) == 0 {
				t.Error("stage switch may begin")
			}
		})
	}
}

// TestOnlyReportsOfThePresentStageCount catches an observer that uses a report from before an abort in place of a handshake.
func TestOnlyReportsOfThePresentStageCount(t *testing.T) {
	r := begun(t, rotation.Trust, certtest.CA(t, "old"), certtest.CA(t, "new"))
	for name, change := range map[string]func(*rotation.Rotation){
		"present":       func(*rotation.Rotation) {},
		"other stage":   func(r *rotation.Rotation) { r.Stage = rotation.Switch },
		"same, earlier": func(r *rotation.Rotation) { r.Since = r.Since.Add(-time.Second) },
		"another":       func(r *rotation.Rotation) { r.ID = "0123456789abcdef" },
	} {
		about := r
		change(&about)
		n := reported(t, node("worker-1", "192.0.2.21"), about, rotation.File{Name: "pki/ca.crt", Trusts: &rotation.Trusted{Old: true, New: true}})
		h := (&look{Rotation: r}).hostOf(n)
		if got := h.file("pki/ca.crt").Trusts != nil; got != (name == "present") {
			t.Errorf("%s: counts: %t", name, got)
		}
	}
}

// TestNamesAddOnsWithTheOldCA catches a kube-proxy or CoreDNS that can no longer connect to the API server in stage finish,
// because it has not re-read its CAs.
func TestNamesAddOnsWithTheOldCA(t *testing.T) {
	old, fresh := certtest.CA(t, "kubernetes"), certtest.CA(t, "kubernetes 2")
	changed := metav1.NewTime(time.Now().Add(-time.Minute).Truncate(time.Second))
	root := configMap("kube-system", "kube-root-ca.crt", "ca.crt", bundleOf(old, fresh))
	root.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &changed}, {Time: &metav1.Time{Time: changed.Add(-time.Hour)}}}
	pod := func(name, app, image string, after time.Duration, change func(*corev1.Pod)) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"k8s-app": app}, CreationTimestamp: metav1.NewTime(changed.Add(after))}}
		p.Spec = corev1.PodSpec{NodeName: "worker-1", Containers: []corev1.Container{{Image: "registry.k8s.io/" + image}}, Volumes: []corev1.Volume{{}, {VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}, {ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: root.Name}}}}},
		}}}}
		p.Status.Phase = corev1.PodRunning
		if change != nil {
			change(&p)
		}
		return p
	}
	const proxy, dns, before = "kube-proxy:v1.35.4", "coredns/coredns:v1.14.6", -time.Minute
	off := node("worker-2", "192.0.2.22")
	off.Status.Conditions[0].Status = corev1.ConditionUnknown
	server := &apiServer{lists: map[string][]any{
		nodesPath: objects(t, node("worker-1", "192.0.2.21"), off),
		podsPath: objects(t,
			pod("proxy-old", "kube-proxy", proxy, before, nil),
			pod("proxy-off", "kube-proxy", proxy, 3*before, func(p *corev1.Pod) { p.Spec.NodeName = "worker-2" }),
			pod("proxy-same-second", "kube-proxy", proxy, 0, nil),
			pod("proxy-later", "kube-proxy", proxy, time.Second, nil),
			pod("proxy-rereads", "kube-proxy", "kube-proxy:v1.36.0", before, nil),
			pod("proxy-starts", "kube-proxy", proxy, before, func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }),
			pod("proxy-static", "kube-proxy", proxy, before, func(p *corev1.Pod) { p.Spec.Volumes = nil }),
			pod("coredns-old", "kube-dns", dns, before, nil),
			pod("coredns-rereads", "kube-dns", "coredns/coredns:v1.15.0", before, nil),
			pod("other", "metrics-server", "metrics-server:v0.1.0", before, nil),
		),
		rootCAsPath: objects(t, root, configMap("x", root.Name, "ca.crt", bundleOf(old, fresh))),
	}}
	restart := func(name, command string) string {
		return "process " + name + " next:kubectl -n kube-system rollout restart " + command
	}
	isOff := restart("proxy-off on worker-2 @worker-2 off", "daemonset/kube-proxy")
	all := []string{
		restart("coredns-old on worker-1 @worker-1", "deployment/coredns"), isOff,
		restart("proxy-old on worker-1 @worker-1", "daemonset/kube-proxy"), restart("proxy-same-second on worker-1 @worker-1", "daemonset/kube-proxy"),
	}
	for _, test := range []struct {
		stage    rotation.Stage
		aborting bool
		want     []string
	}{
		{rotation.Trust, false, all},
		{rotation.Switch, false, []string{isOff}}, // only the order of the CAs has changed
		{rotation.Finish, false, nil},             // kube-root-ca.crt has not changed yet, so a restart would be too early
		{rotation.Switch, true, all},
		{rotation.Trust, true, []string{isOff}},
	} {
		r := begun(t, test.stage, old, fresh)
		r.Trusting, r.Aborting = changed.Add(2*before), test.aborting
		got := lines(must.Value(server.start(t, &network{}).Observe(t.Context(), r))(t))
		got = slices.DeleteFunc(got, func(text string) bool { return !strings.HasPrefix(text, "process ") })
		if !slices.Equal(got, test.want) {
			t.Errorf("%s, aborting %t: got %s\nwant %s", test.stage, test.aborting, strings.Join(got, "\n"), strings.Join(test.want, "\n"))
		}
	}
}
