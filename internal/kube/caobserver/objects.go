package caobserver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/fakeclient"
	"github.com/kubejoin/kubejoin/internal/kube/imagetag"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

// bundle returns an observation of something with CA certificates in PEM.
func (l *look) bundle(kind rotation.Kind, name, next string, pem []byte) rotation.Observation {
	o := rotation.Observation{Kind: kind, Name: name, Next: next}
	if certs, err := pemfile.Certificates(pem); err != nil {
		o.Unseen = "its CA certificates are malformed: " + safetext.Text(err.Error(), maxWhy)
	} else {
		o.Trusts = new(l.In(certs))
	}
	return o
}

// clusterInfo observes the CAs in cluster-info, from which joining machines get their CAs.
func (l *look) clusterInfo(ctx context.Context) {
	o := rotation.Observation{Kind: rotation.KindClusterInfo, Name: clusterinfo.Namespace + "/" + clusterinfo.Name, Next: "kubectl -n kube-public get configmap cluster-info -o yaml"}
	m, err := l.Client.CoreV1().ConfigMaps(clusterinfo.Namespace).Get(ctx, clusterinfo.Name, metav1.GetOptions{})
	if err != nil {
		l.failed(o.Kind, o.Name, "get on configmap cluster-info in kube-public", err)
		return
	}
	_, cas, err := clusterinfo.ParseKubeconfig([]byte(m.Data[clusterinfo.KubeconfigKey]))
	if err != nil {
		o.Unseen = safetext.Text(err.Error(), maxWhy)
	} else {
		o.Trusts = new(l.In(cas))
	}
	l.add(o)
}

// rootCAs observes the CAs that Pods get, in each namespace. kube-controller-manager writes them.
func (l *look) rootCAs(ctx context.Context) {
	const name = "kube-root-ca.crt"
	known := map[[sha256.Size]byte]rotation.Observation{} // cache by content: nearly all ConfigMaps are equal
	var system *corev1.ConfigMap                          // ConfigMap of kube-system, if it has the CAs that the stage requires
	selector := fields.OneTermEqualSelector("metadata.name", name).String()
	err := each(ctx, l.Client.CoreV1().ConfigMaps("").List, metav1.ListOptions{FieldSelector: selector}, func(m *corev1.ConfigMap) {
		content := []byte(m.Data["ca.crt"])
		sum := sha256.Sum256(content)
		o, found := known[sum]
		if !found {
			o = l.bundle(rotation.KindRootCA, "", "", content)
			known[sum] = o
		}
		o.Name, o.Next = m.Namespace+"/"+name, "kubectl -n "+m.Namespace+" get configmap "+name+" -o yaml"
		if m.Immutable != nil && *m.Immutable { // kube-controller-manager updates only mutable ConfigMaps
			o.Next = "kubectl -n " + m.Namespace + " delete configmap " + name + " # it is immutable, and kube-controller-manager creates it again"
		}
		l.add(o)
		if m.Namespace == metav1.NamespaceSystem && !l.behind(o) {
			system = m
		}
	})
	if err != nil {
		l.failed(rotation.KindRootCA, name, "list on configmaps "+name, err)
	}
	if system != nil {
		l.readers(ctx, system)
	}
}

// addOns are kubeadm's pods that read kube-root-ca.crt, by their label k8s-app. From version rereads on, they have
// client-go 0.36 or later, which re-reads the file. kubejoin cannot see the version of client-go in other pods.
var addOns = map[string]struct{ rereads, restart string }{
	"kube-proxy": {"1.36", "kubectl -n kube-system rollout restart daemonset/kube-proxy"},
	"kube-dns":   {"1.15", "kubectl -n kube-system rollout restart deployment/coredns"},
}

// readers observes the pods of add-ons that are older than the present CAs in kube-root-ca.crt. The API server sets both times,
// so the clocks of hosts do not matter.
func (l *look) readers(ctx context.Context, root *corev1.ConfigMap) {
	changed := l.Trusting
	// In the other stages, only the order of the CAs changes, so pods need not re-read them. The stage before has already
	// checked the pods, except on hosts that were off.
	if same := l.Stage == rotation.Switch && !l.Aborting || l.Stage == rotation.Trust && l.Aborting; !same {
		for _, f := range root.ManagedFields {
			if f.Time != nil && f.Time.After(changed) {
				changed = f.Time.Time
			}
		}
	}
	ready := map[string]bool{}
	for _, h := range l.hosts {
		ready[h.name] = h.ready
	}
	selector := "k8s-app in (" + strings.Join(slices.Sorted(maps.Keys(addOns)), ",") + ")"
	err := each(ctx, l.Client.CoreV1().Pods(metav1.NamespaceSystem).List, metav1.ListOptions{LabelSelector: selector}, func(p *corev1.Pod) {
		a, known := addOns[p.Labels["k8s-app"]]
		if known && p.Status.Phase == corev1.PodRunning && mounts(p, root.Name) && imagetag.Before(p.Spec.Containers[0].Image, a.rereads) && !p.CreationTimestamp.After(changed) {
			l.add(rotation.Observation{Kind: rotation.KindProcess, Name: p.Name + " on " + p.Spec.NodeName, Node: p.Spec.NodeName, Off: !ready[p.Spec.NodeName], Next: a.restart})
		}
	})
	if err != nil {
		l.failed(rotation.KindRootCA, "pods of kube-proxy and CoreDNS", "list on pods in kube-system", err)
	}
}

// mounts reports whether a pod has a ConfigMap in the projected volume of its service account token. A static pod has
// no such volume.
func mounts(p *corev1.Pod, name string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ConfigMap != nil && s.ConfigMap.Name == name
		})
	})
}

// authentication observes the CAs that API servers publish for aggregated API servers. API servers add CAs to the ConfigMap,
// and remove only expired ones. To remove the old CA, the last step deletes the ConfigMap, and API servers create it again.
func (l *look) authentication(ctx context.Context) {
	const name = clusterstore.Merged
	key := map[rotation.CA]string{rotation.Cluster: "client-ca-file", rotation.FrontProxy: "requestheader-client-ca-file"}[l.CA]
	m, err := l.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && m.Data[key] == "":
		return
	case err != nil:
		l.failed(rotation.KindMerged, "configmap "+name, "get on configmap "+name+" in kube-system", err)
		return
	}
	o := l.bundle(rotation.KindMerged, "configmap "+name, "kubectl -n kube-system get configmap "+name+" -o yaml", []byte(m.Data[key]))
	if t := o.Trusts; t != nil && (t.Old && !l.TrustsOld() || t.New && !l.TrustsNew()) {
		o.Next = "kubectl -n kube-system delete configmap " + name + " # it has a CA that is not trusted now, and kube-apiserver creates it again"
	}
	l.add(o)
}

// caBundles observes the CAs of webhooks, aggregated API servers and ClusterTrustBundles. It skips bundles without a CA of
// the rotation.
func (l *look) caBundles(ctx context.Context) {
	for _, resource := range []struct{ kind, group, versions string }{
		{"validatingwebhookconfiguration", "admissionregistration.k8s.io", "v1"},
		{"mutatingwebhookconfiguration", "admissionregistration.k8s.io", "v1"},
		{"apiservice", "apiregistration.k8s.io", "v1"},
		{"customresourcedefinition", "apiextensions.k8s.io", "v1"},
		{"clustertrustbundle", "certificates.k8s.io", "v1 v1beta1 v1alpha1"}, // v1 needs Kubernetes 1.37
	} {
		var err error
		for version := range strings.FieldsSeq(resource.versions) {
			if err = l.rawBundles(ctx, resource.kind, "/apis/"+resource.group+"/"+version+"/"+resource.kind+"s"); !apierrors.IsNotFound(err) {
				break
			}
		}
		// Only ClusterTrustBundles may be missing: an API server need not serve any version of them.
		if err != nil && (resource.versions == "v1" || !apierrors.IsNotFound(err)) {
			l.failed(rotation.KindCABundle, resource.kind+"s", "list on "+resource.kind+"s", err)
		}
	}
}

// bundlesPage is the page size for lists of objects with a caBundle. CustomResourceDefinitions are large, because
// they contain schemas.
const bundlesPage = 50

// A bundled is the part of a webhook that contains its CA bundle.
type bundled struct {
	ClientConfig admissionregistration.WebhookClientConfig `json:"clientConfig"`
}

// rawBundles reads the CA bundles in all objects of a kind. client-go lacks the types of APIServices and
// CustomResourceDefinitions, and the oldest supported version of Kubernetes lacks ClusterTrustBundles.
func (l *look) rawBundles(ctx context.Context, kind, path string) error {
	if fakeclient.Is(l.Client.CoreV1()) {
		return errors.New("a fake client has no " + kind)
	}
	for next := ""; ; {
		body, err := l.Client.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").
			Param("limit", strconv.Itoa(bundlesPage)).Param("continue", next).DoRaw(ctx)
		if err != nil {
			return err
		}
		var list struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []struct {
				Metadata metav1.ObjectMeta `json:"metadata"`
				Webhooks []bundled         `json:"webhooks"`
				Spec     struct {
					CABundle    []byte `json:"caBundle"`
					TrustBundle string `json:"trustBundle"`
					Conversion  struct {
						Webhook bundled `json:"webhook"`
					} `json:"conversion"`
				} `json:"spec"`
			} `json:"items"`
		}
		if err := json.Unmarshal(body, &list); err != nil {
			return err
		}
		for _, item := range list.Items {
			all := [][]byte{item.Spec.CABundle, []byte(item.Spec.TrustBundle)}
			for _, w := range append(item.Webhooks, item.Spec.Conversion.Webhook) {
				all = append(all, w.ClientConfig.CABundle)
			}
			l.addBundles(kind, item.Metadata.Name, all)
		}
		if next = list.Metadata.Continue; next == "" {
			return nil
		}
	}
}

// addBundles adds an observation of an object if one of its bundles contains a CA of the rotation.
func (l *look) addBundles(kind, name string, bundles [][]byte) {
	next := "kubectl edit " + kind + " " + safetext.Quote(name)
	if kind == "clustertrustbundle" && strings.HasPrefix(name, "kubernetes.io:kube-apiserver-serving:") {
		// kube-controller-manager reverts edits. It reads its CA only when it starts.
		next = on("each control plane", "pkill -x kube-controller # the kubelet starts kube-controller-manager again")
	}
	all, ours := rotation.Trusted{New: true}, false
	for _, pem := range bundles {
		if len(pem) == 0 {
			continue // an empty bundle means the CAs of the API server's machine
		}
		o := l.bundle(rotation.KindCABundle, kind+" "+name, next, pem)
		if o.Trusts == nil { // kube-apiserver refuses malformed bundles of webhooks
			l.add(o)
			return
		}
		if t := *o.Trusts; t.Old || t.New {
			all, ours = rotation.Trusted{Old: all.Old || t.Old, New: all.New && t.New}, true
		}
	}
	if ours {
		l.add(rotation.Observation{Kind: rotation.KindCABundle, Name: kind + " " + name, Next: next, Trusts: &all})
	}
}
