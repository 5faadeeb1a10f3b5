package caobserver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"

	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/internal/kube/fakeclient"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/rotation"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// Ports of servers. For API servers, an EndpointSlice with ports takes precedence.
const (
	kubeletPort   = 10250
	apiServerPort = 6443
	etcdPort      = 2379
)

// controlPlaneLabel marks the Nodes of control planes. The admission plugin NodeRestriction prevents kubelets from setting it.
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// A host has the fields of a Node that an observation needs.
type host struct {
	name                string
	address             string // the first InternalIP; empty if it is not connectable
	port                int32  // port of its kubelet
	ready, controlPlane bool
	files               []rotation.File // from its report; nil unless the host has applied the present stage
	reported            []rotation.Observation
}

// file returns a file of the host's report; the zero File if the report lacks it.
func (h *host) file(name string) rotation.File {
	if h == nil {
		return rotation.File{}
	}
	at := slices.IndexFunc(h.files, func(f rotation.File) bool { return f.Name == name })
	if at < 0 {
		return rotation.File{}
	}
	return h.files[at]
}

// page is the maximum number of objects in a page of a list.
const page = 500

// each calls do for each object of a paged list. It keeps at most two pages in memory.
func each[L, T runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, do func(T)) error {
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	p.FullListIfExpired, p.PageBufferSize = false, 0
	if p.PageSize = page; options.Limit > 0 {
		p.PageSize = options.Limit
	}
	return p.EachListItem(ctx, options, func(object runtime.Object) error {
		one, ok := object.(T)
		if !ok {
			return fmt.Errorf("the API server returned a %T", object)
		}
		do(one)
		return nil
	})
}

// listHosts reads the Nodes. It skips workers for the front-proxy CA and the etcd CA, which only control planes use.
func (l *look) listHosts(ctx context.Context) error {
	// A Node may have 256 KiB of annotations and a list of images, so the pages of Nodes are smaller.
	return each(ctx, l.Client.CoreV1().Nodes().List, metav1.ListOptions{Limit: page / 5}, func(node *corev1.Node) {
		if h := l.hostOf(node); l.CA == rotation.Cluster || h.controlPlane {
			l.hosts = append(l.hosts, h)
		}
	})
}

func (l *look) hostOf(node *corev1.Node) host {
	_, controlPlane := node.Labels[controlPlaneLabel]
	h := host{name: node.Name, port: node.Status.DaemonEndpoints.KubeletEndpoint.Port, controlPlane: controlPlane}
	for _, c := range node.Status.Conditions {
		h.ready = h.ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP && h.address == "" && connectable(a.Address) {
			h.address = a.Address
		}
	}
	text := node.Annotations[rotation.Annotation(l.CA)]
	h.reported = l.FromReport(node.Name, text)
	if p, err := rotation.DecodeReport(text); err == nil && p.ID == l.ID && p.CA == l.CA && p.Stage == l.Stage && p.Since.Equal(l.Since) {
		h.files = p.Files
	}
	return h
}

// connectable reports whether kubejoin connects to an address that a Node claims to have.
//
// A kubelet can write any address and port into the status of its Node. With that, a stolen node could make kubejoin connect to
// servers that the node itself cannot reach. Therefore kubejoin connects only to IP addresses, never to names, and only to the
// ports of kubelets, API servers and etcd. It never connects to loopback addresses, nor to link-local addresses, where clouds
// serve metadata. For members of etcd, it also connects to the names and ports in the flags of control planes and in
// kubeadm-config, which workers cannot change. It sends a TLS handshake without a credential and closes the connection. The
// result is in the status of the rotation, which nodes cannot read.
func connectable(address string) bool {
	ip, err := netip.ParseAddr(address)
	ip = ip.Unmap()
	return err == nil && ip.Zone() == "" && ip.IsValid() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && !ip.IsMulticast() && !ip.IsUnspecified()
}

// target returns a server on a host. If name is empty, the address is the name.
func (l *look) target(h *host, kind rotation.Kind, name string, port uint16, certFile string) target {
	t := target{
		Observation: rotation.Observation{Kind: kind, Name: name, Node: h.name, Next: on(h.name, l.CA.Command("apply"))},
		host:        h, caFile: caFile[l.CA], certFile: certFile,
	}
	if ip, err := netip.ParseAddr(h.address); err == nil {
		t.address = netip.AddrPortFrom(ip, port).String()
	} else {
		t.refused = "its Node has no InternalIP that kubejoin connects to"
	}
	t.Name = cmp.Or(name, t.address, h.name)
	return t
}

// kubelets observes the kubelets.
func (l *look) kubelets(ctx context.Context) {
	var all []target
	for i := range l.hosts {
		h := &l.hosts[i]
		if !h.ready {
			l.add(rotation.Observation{Kind: rotation.KindKubelet, Name: h.name, Node: h.name, Off: true, Next: "kubectl describe node " + h.name})
			continue
		}
		t := l.target(h, rotation.KindKubelet, h.name, kubeletPort, "/var/lib/kubelet/pki/kubelet-server-current.pem")
		if h.port != kubeletPort {
			t.refused = fmt.Sprintf("its kubelet has port %d, and kubejoin connects only to %d", h.port, kubeletPort)
		}
		all = append(all, t)
	}
	l.probeAll(ctx, all)
}

// caFile is the file with the certificates of a CA on control planes, below /etc/kubernetes.
var caFile = map[rotation.CA]string{
	rotation.Cluster: "pki/ca.crt", rotation.FrontProxy: "pki/front-proxy-ca.crt", rotation.Etcd: "pki/etcd/ca.crt",
}

// apiServers observes the API servers: at the published addresses, on control planes, and in the kubeconfig. An API server that
// is down publishes no address.
func (l *look) apiServers(ctx context.Context) {
	port, published := uint16(apiServerPort), []string(nil)
	slice, err := l.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	switch {
	case err == nil:
		if len(slice.Ports) > 0 && slice.Ports[0].Port != nil {
			port = uint16(*slice.Ports[0].Port)
		}
		for _, e := range slice.Endpoints {
			published = append(published, e.Addresses...)
		}
	case !apierrors.IsNotFound(err):
		l.failed(rotation.KindAPIServer, "addresses", "get on endpointslices in default", err)
	}
	l.staticPods(ctx, rotation.KindAPIServer, "kube-apiserver")
	var all []target
	for i := range l.hosts {
		if h := &l.hosts[i]; h.controlPlane {
			all = append(all, l.target(h, rotation.KindAPIServer, "", port, "pki/apiserver.crt"))
		}
	}
	for _, address := range published { // trustworthy: API servers publish these addresses, not kubelets
		t := l.target(&host{address: address}, rotation.KindAPIServer, "", port, "")
		t.host, t.Next = nil, "kubectl -n default get endpointslice kubernetes -o yaml"
		all = append(all, t)
	}
	if own := l.ownAPIServer(); own != "" {
		all = append(all, target{
			Observation: rotation.Observation{Kind: rotation.KindAPIServer, Name: own, Next: labelControlPlane("NODE") + " # each control plane"},
			address:     own, own: true, spare: len(all) > 0,
		})
	}
	all = once(all)
	for i := range all {
		all[i].clientOnly = l.CA == rotation.FrontProxy
	}
	l.probeAll(ctx, all)
}

// ownAPIServer returns the address of the API server in the kubeconfig; empty if its URL is not https. The operator chose it,
// so a DNS name or an address of this host is allowed.
func (l *look) ownAPIServer() string {
	if fakeclient.Is(l.Client.CoreV1()) {
		return ""
	}
	u := l.Client.CoreV1().RESTClient().Get().URL()
	if u.Scheme != "https" {
		return ""
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
}

// once removes servers with an address that occurs earlier in the list.
func once(all []target) []target {
	known := map[string]bool{}
	return slices.DeleteFunc(all, func(t target) bool {
		again := known[t.address]
		known[t.address] = t.address != ""
		return again
	})
}

// labelControlPlane returns the command that marks the Node of a control plane.
func labelControlPlane(node string) string {
	return "kubectl label node " + safetext.Quote(node) + " " + controlPlaneLabel + "="
}

// servers observes kubejoin itself. The report of kubejoin's host shows which CAs its files contain. kubejoin has no
// permission to list its pods, so it does not find its other replicas.
func (l *look) servers(ctx context.Context) {
	var all []target
	others := rotation.Observation{
		Kind: rotation.KindServer, Name: "other replicas", Unseen: "the address of --advertise shows only one", Optional: true,
		Next: "curl -vk https://HOST:9443/readyz # on each host of kubejoin",
	}
	if len(l.Servers) == 0 {
		others.Name, others.Unseen = "replicas", "their addresses are not known here"
	}
	l.add(others)
	for _, address := range l.Servers {
		all = append(all, target{Observation: rotation.Observation{Kind: rotation.KindServer, Name: address, Next: "curl -vk https://" + safetext.Quote(address) + "/readyz?verbose"}, address: address})
	}
	l.probeAll(ctx, all)
}

// etcd observes the members of etcd: static pods, and the members in the flags of kube-apiserver and in kubeadm-config.
func (l *look) etcd(ctx context.Context) {
	pods := l.staticPods(ctx, rotation.KindEtcd, "etcd")
	var external []string
	config, err := kubeadmcerts.ReadConfiguration(ctx, l.Client)
	switch {
	case err == nil && config.Etcd.External != nil:
		external = config.Etcd.External.Endpoints
	case err != nil && !apierrors.IsNotFound(err):
		l.failed(rotation.KindEtcd, "members in kubeadm-config", "get on configmap kubeadm-config in kube-system", err)
	}
	flags := doctor.EtcdServers(l.controlPlanes(), pods)
	hosts := l.hosts
	if len(hosts) == 0 {
		// No hosts seen: check the endpoints in kubeadm-config; the host of a loopback endpoint is then unknown.
		hosts = []host{{ready: true}}
	}
	var all []target
	for i := range hosts {
		h := &hosts[i]
		if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == h.name && p.Labels["component"] == "etcd" }) {
			all = append(all, l.target(h, rotation.KindEtcd, "", etcdPort, "pki/etcd/server.crt"))
		}
		for _, server := range slices.Concat(flags[h.name], external) {
			all = append(all, l.member(server, h))
		}
	}
	l.probeAll(ctx, once(all))
}

// member returns the member of etcd at a URL. client is the host whose kube-apiserver connects to the member. A loopback URL
// means a member on this host. Unlike the address of a Node, the URL may contain a DNS name, because workers cannot choose
// it. The host's report about its files says nothing about this member.
func (l *look) member(server string, client *host) target {
	t := target{Observation: rotation.Observation{
		Kind: rotation.KindEtcd, Name: "member of " + cmp.Or(client.name, "kube-apiserver"), Node: client.name,
		Next: "kubectl -n kube-system get configmap kubeadm-config -o yaml # and the flag --etcd-servers of kube-apiserver",
	}}
	u, err := url.Parse(server)
	if err != nil || u.Hostname() == "" || unusable(u.Hostname()) { // for example the URL of a Unix socket
		t.refused = "kubejoin connects only to URLs such as https://192.0.2.1:2379"
		return t
	}
	name, port := u.Hostname(), cmp.Or(u.Port(), "443")
	at := slices.IndexFunc(l.hosts, func(h host) bool { return name == h.address || name == h.name })
	if at >= 0 {
		client = &l.hosts[at]
	}
	switch {
	case at < 0 && name != "localhost" && !loopback(name):
		t.Node = ""
	case !connectable(client.address):
		t.refused = "its Node has no InternalIP that kubejoin connects to"
		return t
	default:
		name, t.Node, t.host = client.address, client.name, client
	}
	t.address = net.JoinHostPort(name, port)
	t.Name = safetext.Text(t.address, safetext.MaxName)
	t.Next = "openssl s_client -connect " + safetext.Quote(t.address) + " # shows the client CAs that etcd read from --trusted-ca-file"
	return t
}

func loopback(name string) bool {
	ip, err := netip.ParseAddr(name)
	return err == nil && ip.Unmap().IsLoopback()
}

// unusable reports whether name is an IP address to which kubejoin never connects. It returns false for loopback addresses.
func unusable(name string) bool {
	_, err := netip.ParseAddr(name)
	return err == nil && !loopback(name) && !connectable(name)
}

// reports observes what hosts reported. A host whose Node is not ready cannot report. For the cluster CA, the
// observation of the host's kubelet already shows this.
func (l *look) reports(context.Context) {
	for i := range l.hosts {
		h := &l.hosts[i]
		switch off := l.InProgress() && !h.ready; {
		case off && l.CA == rotation.Cluster:
		case off:
			l.add(rotation.Observation{Kind: rotation.KindFile, Name: caFile[l.CA] + " on " + h.name, Node: h.name, Off: true, Next: "kubectl describe node " + h.name})
		default:
			l.add(h.reported...)
		}
	}
}

// controllerManagers observes whether kube-controller-manager signs certificates. With two certificates in its CA file,
// kube-controller-manager stops signing, and does not start if its flags tell it to sign.
func (l *look) controllerManagers(ctx context.Context) {
	pods, err := l.controlPlanePods(ctx)
	if err != nil {
		l.failed(rotation.KindSigner, "kube-controller-manager", "list on pods in kube-system", err)
		return
	}
	controlPlanes := l.controlPlanes()
	for _, p := range pods { // include Nodes without the label of control planes
		if node := p.Spec.NodeName; p.Labels["component"] == "kube-controller-manager" && static(p) && !slices.Contains(controlPlanes, node) {
			controlPlanes = append(controlPlanes, node)
		}
	}
	signing, unseen := doctor.OtherSigners(controlPlanes, pods)
	for _, f := range signing {
		l.add(rotation.Observation{
			Kind: rotation.KindSigner, Name: "kube-controller-manager on " + f.Machine, Node: f.Machine,
			Unseen: "signs certificates, and will fail to sign once its CA file has two certificates", Next: on(f.Machine, f.Command),
		})
	}
	// kubejoin cannot see the flags of a kube-controller-manager that is not a static pod, so this observation is optional. If
	// that process signs, it does not start again in stage trust, and 'kubejoin ca apply' on its host waits.
	hidden := rotation.Observation{
		Kind: rotation.KindSigner, Name: "kube-controller-manager", Unseen: "it has no static pod that shows its flags", Optional: true,
		Next: "ps -o args= -C kube-controller-manager # --controllers needs -csrsigning",
	}
	for _, node := range unseen {
		o := hidden
		o.Name, o.Node, o.Next = o.Name+" on "+node, node, on(node, o.Next)
		l.add(o)
	}
	if len(controlPlanes) == 0 {
		l.add(hidden)
	}
}

// controlPlanes returns the names of the Nodes of control planes.
func (l *look) controlPlanes() (names []string) {
	for _, h := range l.hosts {
		if h.controlPlane {
			names = append(names, h.name)
		}
	}
	return names
}

// static reports whether a pod is the mirror pod of a static pod.
func static(p corev1.Pod) bool { return p.Annotations[corev1.MirrorPodAnnotationKey] != "" }

// staticPods returns the pods of control planes. For each static pod of a component on a Node without the control plane
// label, it adds an observation.
func (l *look) staticPods(ctx context.Context, kind rotation.Kind, component string) []corev1.Pod {
	pods, err := l.controlPlanePods(ctx)
	if err != nil {
		l.failed(kind, component, "list on pods in kube-system", err)
	}
	for _, p := range pods {
		if node := p.Spec.NodeName; p.Labels["component"] == component && static(p) && !slices.Contains(l.controlPlanes(), node) {
			l.add(rotation.Observation{Kind: kind, Name: p.Name, Node: node, Unseen: "its Node has no label " + controlPlaneLabel, Next: labelControlPlane(node)})
		}
	}
	return pods
}

func (l *look) controlPlanePods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := l.Client.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{LabelSelector: "component in (kube-apiserver,kube-controller-manager,etcd)"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
