package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/kube/failedwrites"
	"github.com/kubejoin/kubejoin/internal/kube/leader"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
)

// noon is the time of all facts. Real signers check the CA against the real clock.
var noon = time.Now().UTC().Truncate(time.Second)

func newCA(t *testing.T, lifetime time.Duration) *x509.Certificate {
	t.Helper()
	ca := must.Value(signer.GenerateCA("kubernetes", noon, lifetime))(t)
	return ca.Certificate()
}

func constrainedCA(t *testing.T, domain string) *x509.Certificate {
	t.Helper()
	template := *newCA(t, 3650*24*time.Hour)
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), crand.Reader))(t)
	template.PublicKey, template.PermittedDNSDomains = key.Public(), []string{domain}
	der := must.Value(x509.CreateCertificate(crand.Reader, &template, &template, key.Public(), key))(t)
	return must.Value(x509.ParseCertificate(der))(t)
}

func staticPod(component, machine string, flags ...string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: component + "-" + machine, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "0"}},
		Spec:       corev1.PodSpec{NodeName: machine, Containers: []corev1.Container{{Name: component, Command: append([]string{component}, flags...)}}},
	}
}

func clusterBinding(name, role string, groups ...string) rbacv1.ClusterRoleBinding {
	b := rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role}}
	for _, group := range groups {
		b.Subjects = append(b.Subjects, rbacv1.Subject{Kind: "Group", Name: group})
	}
	return b
}

const (
	kubeadmClient        = "--kubelet-client-certificate=/etc/kubernetes/pki/apiserver-kubelet-client.crt"
	kubeletClientBinding = "kubeadm:apiserver-kubelet-client"
)

func userBinding(name, role, user string) rbacv1.ClusterRoleBinding {
	b := clusterBinding(name, role)
	b.Subjects = []rbacv1.Subject{{Kind: "User", Name: user}}
	return b
}

// impersonator adds a role and its binding.
func (f *Facts) impersonator(group, resource, verb, name string, groups ...string) {
	role := clusterRole("impersonator", group, resource, verb)
	if name != "" {
		role.Rules[0].ResourceNames = []string{name}
	}
	f.ClusterRoles = append(f.ClusterRoles, role)
	f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("tool", "impersonator", groups...))
}

func clusterRole(name, group, resource string, verbs ...string) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}}}
}

// sign sets a cluster-info with these CAs and the signatures of all tokens.
func (f *Facts) sign(t *testing.T, cas ...*x509.Certificate) {
	t.Helper()
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://api.example.com:6443", cas))(t)
	f.ClusterInfo = map[string]string{clusterinfo.KubeconfigKey: string(kubeconfig)}
	for _, r := range f.Tokens {
		f.ClusterInfo[clusterinfo.SignatureKey(r.Token.ID())] = must.Value(clusterinfo.Sign(kubeconfig, r.Token))(t)
	}
}

// healthy returns facts about a cluster that has no findings.
func healthy(t *testing.T) *Facts {
	t.Helper()
	ca := newCA(t, 3650*24*time.Hour)
	f := &Facts{
		Unread: map[Fact]string{}, Version: "v1.2.0", Local: noon.Add(2 * time.Second), Time: noon, KubernetesVersion: "v1.36.3",
		Host: "https://api.example.com:6443", CAs: []*x509.Certificate{ca}, Anonymous: http.StatusOK, Pins: []string{clusterinfo.Pin(ca)},
		ControlPlane: []corev1.Pod{
			staticPod(kubeControllerManager, "cp-1", "--controllers=*,-csrapproving,-csrsigning", "--cluster-signing-cert-file=/ca.crt", "--cluster-signing-key-file=/ca.key"),
			staticPod(kubeAPIServer, "cp-1", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true", "--kubelet-certificate-authority=/etc/kubernetes/pki/ca.crt", kubeadmClient),
			staticPod(kubeScheduler, "cp-1"),
		},
		ClusterRoles: []rbacv1.ClusterRole{
			clusterRole("nodeclient", certificatesGroup, nodeClient, "create"), clusterRole("selfnodeclient", certificatesGroup, selfNodeClient, "create"),
			clusterRole("system:node-bootstrapper", certificatesGroup, "certificatesigningrequests", "create"), clusterRole("kubeadm:get-nodes", "", "nodes", "get"),
			clusterRole("cluster-admin", "*", "*", "*"), clusterRole("system:kubelet-api-admin", "", "nodes/proxy", "*"),
		},
		ClusterRoleBindings: []rbacv1.ClusterRoleBinding{
			clusterBinding("first", "nodeclient", tokens.DefaultGroup), clusterBinding("renewals", "selfnodeclient", nodesGroup),
			clusterBinding("bootstrap", "system:node-bootstrapper", tokens.DefaultGroup), clusterBinding("nodes", "kubeadm:get-nodes", tokens.DefaultGroup),
			clusterBinding("admins", "cluster-admin", "system:masters", "kubeadm:cluster-admins"), userBinding(kubeletClientBinding, "system:kubelet-api-admin", "kube-apiserver-kubelet-client"),
		},
		Lease: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr("one"), LeaseDurationSeconds: ptr(int32(15)), RenewTime: &metav1.MicroTime{Time: noon.Add(-5 * time.Second)},
		}},
		Discovery: &Endpoint{Address: "api.example.com:6443"},
		Nodes: []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Time{Time: noon.Add(-time.Hour)}},
		}}}},
	}
	f.addControlPlane("cp-1")
	for role, name := range map[string]string{"kubeadm:nodes-kubeadm-config": "kubeadm-config", "kubeadm:kubelet-config": "kubelet-config"} {
		at := metav1.ObjectMeta{Namespace: "kube-system", Name: role}
		f.Roles = append(f.Roles, rbacv1.Role{ObjectMeta: at, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{name}, Verbs: []string{"get"}}}})
		f.RoleBindings = append(f.RoleBindings, rbacv1.RoleBinding{
			ObjectMeta: at, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: role}, Subjects: []rbacv1.Subject{{Kind: "Group", Name: nodesGroup}, {Kind: "Group", Name: tokens.DefaultGroup}},
		})
	}
	f.JoinConfig = map[string]map[string]string{}
	for _, c := range joinConfigs {
		f.JoinConfig[c.name] = map[string]string{c.key: "apiVersion: " + c.apiVersions[0] + "\nkind: " + c.kind + "\n"}
	}
	// Grant the rights of the manifests.
	for i, r := range manifests().rights {
		rule := rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{r.resource}, Verbs: []string{r.verb}}
		if r.name != "" {
			rule.ResourceNames = []string{r.name}
		}
		name, subjects := fmt.Sprint("right-", i), []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: kubejoinNamespace, Name: kubejoinAccount}}
		if r.namespace == "" {
			f.ClusterRoles = append(f.ClusterRoles, rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}})
			f.ClusterRoleBindings = append(f.ClusterRoleBindings, rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: name}, Subjects: subjects})
			continue
		}
		at := metav1.ObjectMeta{Namespace: r.namespace, Name: name}
		f.Roles = append(f.Roles, rbacv1.Role{ObjectMeta: at, Rules: []rbacv1.PolicyRule{rule}})
		f.RoleBindings = append(f.RoleBindings, rbacv1.RoleBinding{ObjectMeta: at, RoleRef: rbacv1.RoleRef{Kind: "Role", Name: name}, Subjects: subjects})
	}
	f.addToken(t, tokens.Generate())
	f.sign(t, ca)
	return f
}

func (f *Facts) addToken(t *testing.T, token tokens.Token) *tokens.Record {
	t.Helper()
	r := tokens.NewRecord(token, time.Hour, noon)
	r.Created = noon.Add(-time.Minute)
	f.Tokens = append(f.Tokens, r)
	return &f.Tokens[len(f.Tokens)-1]
}

func picked(t *testing.T, secret string) tokens.Token {
	t.Helper()
	return must.Value(tokens.New("picked", secret))(t)
}

// controlPlane replaces the pod of a component on cp-1.
func (f *Facts) controlPlane(component string, flags ...string) {
	f.ControlPlane = slices.DeleteFunc(f.ControlPlane, func(p corev1.Pod) bool { return p.Spec.Containers[0].Name == component })
	f.ControlPlane = append(f.ControlPlane, staticPod(component, "cp-1", flags...))
}

// addControlPlane adds the Node of a control plane.
func (f *Facts) addControlPlane(name string) {
	node := *f.Nodes[0].DeepCopy()
	node.Name, node.Labels = name, map[string]string{controlPlaneLabel: ""}
	f.Nodes = append(f.Nodes, node)
}

func (f *Facts) unbind(name string) {
	f.ClusterRoleBindings = slices.DeleteFunc(f.ClusterRoleBindings, func(b rbacv1.ClusterRoleBinding) bool { return b.Name == name })
}

func request(signerName string, created time.Time, conditions ...certificates.RequestConditionType) certificates.CertificateSigningRequest {
	r := certificates.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "8f0b", CreationTimestamp: metav1.Time{Time: created}},
		Spec:       certificates.CertificateSigningRequestSpec{SignerName: signerName, Username: "system:bootstrap:abcdef"},
	}
	for _, c := range conditions {
		r.Status.Conditions = append(r.Status.Conditions, certificates.CertificateSigningRequestCondition{Type: c})
	}
	return r
}

var (
	signing = []string{"--cluster-signing-cert-file=/ca.crt", "--cluster-signing-key-file=/ca.key"}
	secure  = []string{"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth", "--kubelet-certificate-authority=/ca.crt"}
)

// diagnoses are changes of a healthy cluster and the expected findings: "ID" or "ID: part of the message or command".
var diagnoses = map[string]struct {
	change func(*testing.T, *Facts)
	want   []string
}{
	"healthy": {func(*testing.T, *Facts) {}, nil},

	"default flags of kubeadm": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, append(signing, "--controllers=*,bootstrapsigner,tokencleaner")...)
	}, []string{"kcm-signs: on cp-1", "kcm-approves", "kcm-signs-cluster-info", "kcm-cleans-tokens"}},
	"no --controllers":     {func(_ *testing.T, f *Facts) { f.controlPlane(kubeControllerManager, signing...) }, []string{"kcm-signs", "kcm-approves"}},
	"no CA for the signer": {func(_ *testing.T, f *Facts) { f.controlPlane(kubeControllerManager) }, []string{"kcm-approves"}},
	"long names, second list": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, append(signing, "--controllers=*", "--controllers=-certificatesigningrequest-approving-controller,-certificatesigningrequest-signing-controller")...)
	}, nil},
	"first name counts": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, append(signing, "--controllers=*,csrsigning", "--controllers=-csrsigning,-csrapproving")...)
	}, []string{"kcm-signs"}},
	"list without *": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, append(signing, "--controllers=tokencleaner")...)
	}, []string{"kcm-cleans-tokens"}},
	"files of one signer alone": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, append(signing, "--controllers=*,-csrapproving", "--cluster-signing-cert-file=", "--cluster-signing-key-file=", "--cluster-signing-kubelet-serving-cert-file=/ca.crt", "--cluster-signing-kubelet-serving-key-file=/ca.key")...)
	}, nil},
	"own files for nodes": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, "--controllers=*,-csrapproving", "--cluster-signing-kubelet-client-cert-file", "/ca.crt", "--cluster-signing-kubelet-client-key-file", "/ca.key")
	}, []string{"kcm-signs"}},

	"bootstrap tokens off": {func(_ *testing.T, f *Facts) { f.controlPlane(kubeAPIServer, append(secure[:2:2], secure[3])...) }, []string{"apiserver-bootstrap-tokens-off"}},
	"bootstrap tokens false": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(secure[:4:4], "--enable-bootstrap-token-auth=false")...)
	}, []string{"apiserver-bootstrap-tokens-off"}},
	"tokens by webhook": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(append(secure[:2:2], secure[3]), "--authentication-token-webhook-config-file=/x")...)
	}, []string{"unknown bootstrap-tokens: the webhook in /x"}},
	"any kubelet":           {func(_ *testing.T, f *Facts) { f.controlPlane(kubeAPIServer, secure[:3]...) }, []string{"apiserver-trusts-any-kubelet"}},
	"no authorization mode": {func(_ *testing.T, f *Facts) { f.controlPlane(kubeAPIServer, secure[1:]...) }, []string{"apiserver-always-allow"}},
	"always allow": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(secure[1:], "--authorization-mode=Node,AlwaysAllow")...)
	}, []string{"apiserver-always-allow"}},
	"no Node authorizer": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(secure[1:], "--authorization-mode=RBAC,Webhook")...)
	}, []string{"apiserver-node-authorizer-off: --authorization-mode=Node,RBAC,Webhook"}},
	"value for a shell": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(secure[1:], "--authorization-mode=RBAC,'$(id)'")...)
	}, []string{"apiserver-node-authorizer-off: --authorization-mode=Node,RBAC|"}},
	"rotation in a stage for days":     {func(_ *testing.T, f *Facts) { f.Rotations = rotated(maxStage+time.Second, time.Time{}) }, []string{"ca-rotation-stuck: kubejoin ca status --ca cluster"}},
	"another state for hosts":          {func(_ *testing.T, f *Facts) { f.RotationCopy = errors.New("it differs") }, []string{"ca-rotation-edited: kubectl -n kube-public get configmap kubejoin-ca"}},
	"rotation in progress":             {func(_ *testing.T, f *Facts) { f.Rotations = rotated(maxStage, time.Time{}) }, nil},
	"rotation that ended":              {func(_ *testing.T, f *Facts) { f.Rotations = rotated(2*maxStage, noon) }, nil},
	"no rotation":                      {func(_ *testing.T, f *Facts) { f.Rotations = []rotation.Rotation{{}} }, nil},
	"revoked, and nothing enforces it": {func(_ *testing.T, f *Facts) { f.Revoked = 1 }, []string{"revocations-not-enforced: kubejoin authorization-config"}},
	"revocations nearly full":          {func(_ *testing.T, f *Facts) { f.RevocationsFill = 0.8 }, []string{"revocations-nearly-full: kubejoin revoke list"}},
	"revocations not nearly full":      {func(_ *testing.T, f *Facts) { f.RevocationsFill = 0.79 }, nil},
	"revoked, with the policy":         {func(_ *testing.T, f *Facts) { f.Revoked, f.RevocationPolicy = 1, true }, nil},
	"revoked, with a file of authorizers": {func(_ *testing.T, f *Facts) {
		f.Revoked = 1
		f.controlPlane(kubeAPIServer, append(secure[1:], "--authorization-config=/x")...)
	}, []string{"unknown authorizers: cp-1 reads its authorizers from /x", "unknown revocations: /x, which may lack kubejoin"}},
	"nothing revoked, with a file of authorizers": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(secure[1:], "--authorization-config=/x")...)
	}, []string{"unknown authorizers"}},
	"a file of authorizers on one control plane": {func(_ *testing.T, f *Facts) {
		f.Revoked = 1
		f.controlPlane(kubeAPIServer, append(secure[1:], "--authorization-config=/x")...)
		f.addMachine("cp-2", secure[1:]...)
	}, []string{"unknown authorizers: on cp-1", "apiserver-always-allow: on cp-2", "unknown revocations: on cp-1", "revocations-not-enforced: on cp-2"}},

	"mirror pods of a worker": {func(_ *testing.T, f *Facts) { f.ControlPlane = append(f.ControlPlane, f.roguePods("worker-1")...) }, nil},
	"mirror pods of a worker make no finding": {func(_ *testing.T, f *Facts) {
		f.ControlPlane = append(f.ControlPlane, staticPod(kubeAPIServer, "worker-1"), staticPod(kubeControllerManager, "worker-1", signing...))
	}, nil},
	"mirror pods of a worker hide no finding": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, secure[1:]...)
		f.ControlPlane = append(f.roguePods("worker-1"), f.ControlPlane...)
	}, []string{"apiserver-always-allow: on cp-1"}},
	"mirror pods of a worker alone": {func(_ *testing.T, f *Facts) { f.ControlPlane = f.roguePods("worker-1") }, unseenOn("cp-1")},
	"mirror pods without a Node":    {func(_ *testing.T, f *Facts) { f.ControlPlane = f.roguePods("") }, unseenOn("cp-1")},
	"Pods that no kubelet posted": {func(_ *testing.T, f *Facts) {
		for i := range f.ControlPlane {
			f.ControlPlane[i].Annotations = nil
		}
	}, unseenOn("cp-1")},
	"managed control plane": {func(_ *testing.T, f *Facts) { f.Nodes, f.ControlPlane = f.Nodes[:1], nil }, unseenOn("no Node has the label node-role.kubernetes.io/control-plane")},
	"control plane without visible pods": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, secure[1:]...)
		f.addControlPlane("cp-2")
	}, append(unseenOn("on cp-2"), "apiserver-always-allow: on cp-1")},
	"finding on the second control plane": {func(_ *testing.T, f *Facts) { f.addMachine("cp-2", secure[1:]...) }, []string{"apiserver-always-allow: on cp-2"}},
	"no visible scheduler": {func(_ *testing.T, f *Facts) {
		f.ControlPlane = slices.DeleteFunc(f.ControlPlane, func(p corev1.Pod) bool { return p.Spec.Containers[0].Name == kubeScheduler })
	}, []string{"unknown feature-gates: kube-scheduler has no visible static Pod on cp-1"}},

	"no NodeRestriction": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(append(secure[:1:1], secure[2:]...), "--enable-admission-plugins=AlwaysPullImages")...)
	}, []string{"apiserver-node-restriction-off: --enable-admission-plugins=AlwaysPullImages,NodeRestriction"}},
	"NodeRestriction disabled": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(secure[:4:4], "--disable-admission-plugins=ServiceAccount,NodeRestriction")...)
	}, []string{"apiserver-node-restriction-off: --disable-admission-plugins=ServiceAccount|"}},

	"approval for everybody": {func(_ *testing.T, f *Facts) {
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("it's wide", "nodeclient", tokens.DefaultGroup, "system:authenticated"))
	}, []string{`nodeclient-too-wide: 'it'\''s wide' --type=json -p '[{"op":"test","path":"/subjects/1/name","value":"system:authenticated"},{"op":"remove","path":"/subjects/1"}]'`}},
	"two wrong subjects": {func(_ *testing.T, f *Facts) {
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("two", "nodeclient", "system:bootstrappers:a", tokens.DefaultGroup, "system:authenticated"))
	}, []string{"nodeclient-other: /subjects/2\"},{\"op\":\"test\",\"path\":\"/subjects/0/name", "nodeclient-too-wide: /subjects/2\"},{\"op\":\"test\",\"path\":\"/subjects/0/name"}},
	"approval for nodes": {func(_ *testing.T, f *Facts) {
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("n", "nodeclient", nodesGroup))
	}, []string{"nodeclient-too-wide"}},
	"approval for anonymous": {func(_ *testing.T, f *Facts) {
		b := clusterBinding("n", "nodeclient")
		b.Subjects = []rbacv1.Subject{{Kind: "User", Name: "system:anonymous"}}
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, b)
	}, []string{"nodeclient-too-wide"}},
	"approval for all tokens": {func(_ *testing.T, f *Facts) {
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("t", "nodeclient", tokens.BootstrappersGroup))
	}, []string{"nodeclient-other"}},
	"approval for another group": {func(_ *testing.T, f *Facts) {
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("t", "nodeclient", "system:bootstrappers:edge"))
	}, []string{"nodeclient-other: system:bootstrappers:edge"}},
	"renewals for everybody": {func(_ *testing.T, f *Facts) {
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("r", "selfnodeclient", "system:authenticated"))
	}, []string{"selfnodeclient-too-wide"}},
	"no approval":               {func(_ *testing.T, f *Facts) { f.unbind("first") }, []string{"nodeclient-missing: kubectl create clusterrolebinding kubeadm:node-autoapprove-bootstrap"}},
	"binding of a missing role": {func(_ *testing.T, f *Facts) { f.ClusterRoles = f.ClusterRoles[1:] }, []string{"nodeclient-missing"}},
	"no approval of renewals":   {func(_ *testing.T, f *Facts) { f.unbind("renewals") }, []string{"selfnodeclient-missing"}},
	"no requests":               {func(_ *testing.T, f *Facts) { f.unbind("bootstrap") }, []string{"join-rights-missing: may not create certificatesigningrequests"}},
	"no right to read its Node": {func(_ *testing.T, f *Facts) { f.unbind("nodes") }, []string{"join-rights-missing: may not get nodes"}},

	"tokens may not read kubeadm-config": {func(_ *testing.T, f *Facts) {
		f.Roles = slices.DeleteFunc(f.Roles, func(r rbacv1.Role) bool { return r.Name == "kubeadm:nodes-kubeadm-config" })
	}, []string{"join-rights-missing: role kubeadm:nodes-kubeadm-config --verb=get --resource=configmaps --resource-name=kubeadm-config"}},
	"tokens may not read kubelet-config": {func(_ *testing.T, f *Facts) {
		for i, b := range f.RoleBindings {
			if b.Name == "kubeadm:kubelet-config" {
				f.RoleBindings[i].Subjects = b.Subjects[:1]
			}
		}
	}, []string{"join-rights-missing: may not get configmaps/kubelet-config in kube-system"}},
	"no ConfigMaps of kubeadm": {func(_ *testing.T, f *Facts) { f.JoinConfig = nil },
		[]string{"join-config-missing: kubeadm init phase upload-config kubeadm", "join-config-missing: kubeadm init phase upload-config kubelet"}},
	"no kube-proxy":        {func(_ *testing.T, f *Facts) { delete(f.JoinConfig, "kube-proxy") }, nil},
	"no key":               {func(_ *testing.T, f *Facts) { f.JoinConfig["kubeadm-config"] = nil }, []string{"join-config-malformed: kubeadm-config is malformed, so 'kubeadm join' fails or ignores it: it lacks the key ClusterConfiguration"}},
	"empty kubelet-config": {func(_ *testing.T, f *Facts) { f.JoinConfig["kubelet-config"]["kubelet"] = "" }, []string{"join-config-malformed: kubelet is empty"}},
	"no YAML":              {func(_ *testing.T, f *Facts) { f.JoinConfig["kubelet-config"]["kubelet"] = "a: b: c" }, []string{"join-config-malformed: kubelet: error converting YAML"}},
	"no object":            {func(_ *testing.T, f *Facts) { f.JoinConfig["kubelet-config"]["kubelet"] = "text" }, []string{"join-config-malformed: kubelet: "}},
	"malformed kube-proxy": {func(_ *testing.T, f *Facts) { f.JoinConfig["kube-proxy"]["config.conf"] += "---\n{" }, []string{"join-config-malformed: phase addon kube-proxy"}},
	"two documents": {func(_ *testing.T, f *Facts) {
		f.JoinConfig["kubelet-config"]["kubelet"] += "---\napiVersion: example.com/v1\nkind: Other\n"
	}, nil},
	"a document without a kind": {func(_ *testing.T, f *Facts) {
		f.JoinConfig["kubelet-config"]["kubelet"] += "---\napiVersion: example.com/v1\n"
	}, []string{`join-config-malformed: a document with apiVersion "example.com/v1" and kind ""`}},
	"a document without a group": {func(_ *testing.T, f *Facts) {
		f.JoinConfig["kubelet-config"]["kubelet"] += "---\napiVersion: v1\nkind: Pod\n"
	}, []string{"join-config-malformed"}},
	"another kind": {func(_ *testing.T, f *Facts) {
		f.JoinConfig["kubeadm-config"]["ClusterConfiguration"] = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n"
	}, []string{`join-config-malformed: ClusterConfiguration has apiVersion "kubeadm.k8s.io/v1beta4" and kind "InitConfiguration", want kubeadm.k8s.io/v1beta4 or kubeadm.k8s.io/v1beta3 and ClusterConfiguration`}},
	"another apiVersion": {func(_ *testing.T, f *Facts) {
		f.JoinConfig["kubelet-config"]["kubelet"] = "apiVersion: kubelet.config.k8s.io/v1alpha1\nkind: KubeletConfiguration\n"
	}, []string{"join-config-malformed: want kubelet.config.k8s.io/v1beta1"}},
	"v1beta3 for kubeadm 1.36": {func(_ *testing.T, f *Facts) { f.kubeadmVersion("v1.36.3", "v1beta3") }, nil},
	"v1beta3 for kubeadm 1.37": {func(_ *testing.T, f *Facts) { f.kubeadmVersion("v1.37.2", "v1beta3") }, []string{"join-config-malformed"}},
	"v1 for kubeadm 1.36":      {func(_ *testing.T, f *Facts) { f.kubeadmVersion("v1.36.3", "v1") }, []string{"join-config-malformed"}},
	"v1 for kubeadm 1.37":      {func(_ *testing.T, f *Facts) { f.kubeadmVersion("v1.37.2", "v1") }, nil},

	"no binding for the kubelet client": {func(_ *testing.T, f *Facts) { f.unbind(kubeletClientBinding) },
		[]string{"kubelet-client-rights-missing: kubectl create clusterrolebinding kubeadm:apiserver-kubelet-client --clusterrole=system:kubelet-api-admin --user=kube-apiserver-kubelet-client"}},
	"binding of another user": {func(_ *testing.T, f *Facts) {
		f.unbind(kubeletClientBinding)
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, userBinding("other", "system:kubelet-api-admin", "other"))
	}, []string{"kubelet-client-rights-missing"}},
	"kubelet client may only read": {func(_ *testing.T, f *Facts) {
		f.unbind(kubeletClientBinding)
		f.ClusterRoles = append(f.ClusterRoles, clusterRole("reader", "", "nodes/proxy", "get"))
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, userBinding("reader", "reader", "kube-apiserver-kubelet-client"))
	}, []string{"kubelet-client-rights-missing: may not create nodes/proxy"}},
	"kubelet client bound by another name": {func(_ *testing.T, f *Facts) {
		f.unbind(kubeletClientBinding)
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, userBinding("own", "system:kubelet-api-admin", "kube-apiserver-kubelet-client"))
	}, nil},
	"kubelet client not of kubeadm": {func(_ *testing.T, f *Facts) {
		f.unbind(kubeletClientBinding)
		f.controlPlane(kubeAPIServer, append(secure[:4:4], "--kubelet-client-certificate=/x/client-kube-apiserver.crt")...)
	}, nil},

	"impersonates any group": {func(_ *testing.T, f *Facts) { f.impersonator("", "groups", "impersonate", "", "tools") },
		[]string{`impersonates-nodes: kubectl patch clusterrolebinding tool --type=json -p '[{"op":"test","path":"/subjects/0/name","value":"tools"},{"op":"remove","path":"/subjects/0"}]'`}},
	"impersonates system:nodes":          {func(_ *testing.T, f *Facts) { f.impersonator("", "groups", "impersonate", nodesGroup, "tools") }, []string{"impersonates-nodes: Group tools"}},
	"impersonates by every verb":         {func(_ *testing.T, f *Facts) { f.impersonator("", "groups", "*", "", "tools") }, []string{"impersonates-nodes"}},
	"impersonates on every resource":     {func(_ *testing.T, f *Facts) { f.impersonator("*", "*", "impersonate", "", "tools") }, []string{"impersonates-nodes"}},
	"impersonates another group":         {func(_ *testing.T, f *Facts) { f.impersonator("", "groups", "impersonate", "developers", "tools") }, nil},
	"impersonates users without a group": {func(_ *testing.T, f *Facts) { f.impersonator("", "users", "impersonate", "", "tools") }, nil},
	"impersonates any node": {func(_ *testing.T, f *Facts) {
		f.impersonator("authentication.k8s.io", "nodes", "impersonate:arbitrary-node", "", "tools")
	}, []string{"impersonates-nodes"}},
	"impersonates one node": {func(_ *testing.T, f *Facts) {
		f.impersonator("authentication.k8s.io", "nodes", "impersonate:arbitrary-node", "worker-1", "tools")
	}, []string{"impersonates-nodes"}},
	"impersonates its own node": {func(_ *testing.T, f *Facts) {
		f.impersonator("authentication.k8s.io", "nodes", "impersonate:associated-node", "", "tools", "more")
	}, []string{"impersonates-nodes: Group tools, Group more"}},
	"impersonators are many": {func(_ *testing.T, f *Facts) { f.impersonator("", "groups", "impersonate", "", "a", "b", "c", "d") }, []string{"impersonates-nodes: Group a, Group b, Group c and 1 more impersonate"}},
	"impersonates other users, constrained": {func(_ *testing.T, f *Facts) {
		f.impersonator("authentication.k8s.io", "users", "impersonate:user-info", "", "tools")
	}, nil},
	"administrators impersonate": {func(_ *testing.T, f *Facts) {
		f.impersonator("", "groups", "impersonate", "", "system:masters")
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, clusterBinding("more", "cluster-admin", "admins"))
	}, nil},

	"removed feature gates": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeAPIServer, append(secure[:4:4], kubeadmClient, "--feature-gates=JobSuccessPolicy=true,AllAlpha=false,kube:SidecarContainers=true")...)
		f.controlPlane(kubeScheduler, "--feature-gates=SchedulerQueueingHints=true")
	}, []string{
		"feature-gate-removed: kube-apiserver on cp-1 sets --feature-gates=JobSuccessPolicy, SidecarContainers, which Kubernetes 1.37 lacks",
		"feature-gate-removed: - --feature-gates=|",
	}},
	"other gates stay": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, "--controllers=*,-csrapproving", "--feature-gates=JobSuccessPolicy=true", "--feature-gates=AllAlpha=false,AllBeta=true")
	}, []string{"feature-gate-removed: - --feature-gates=AllAlpha=false,AllBeta=true|"}},
	"gates of a later minor": {func(_ *testing.T, f *Facts) {
		f.controlPlane(kubeControllerManager, "--controllers=*,-csrapproving", "--feature-gates=JobManagedBy=true,MemoryManager=true")
	}, nil},
	"gates of this minor": {func(_ *testing.T, f *Facts) {
		f.KubernetesVersion = "v1.37.2"
		f.controlPlane(kubeControllerManager, "--controllers=*,-csrapproving", "--feature-gates=JobManagedBy=true")
	}, []string{"feature-gate-removed: Kubernetes 1.38"}},

	"no namespace":       {func(_ *testing.T, f *Facts) { f.Missing = []string{"Namespace kubejoin-system"} }, []string{"namespace-missing: kubectl create namespace kubejoin-system"}},
	"no service account": {func(_ *testing.T, f *Facts) { f.Missing = []string{"ServiceAccount kubejoin"} }, []string{"service-account-missing"}},
	"no policy": {func(_ *testing.T, f *Facts) {
		f.Missing = []string{"ValidatingAdmissionPolicy kubejoin-secrets", "ValidatingAdmissionPolicyBinding kubejoin-secrets"}
	}, []string{"admission-policy-missing", "admission-policy-missing"}},
	"no policy of Nodes, and no right": {func(_ *testing.T, f *Facts) {
		f.Missing = []string{"ValidatingAdmissionPolicyBinding " + nodePolicy}
		f.Lease.Annotations = map[string]string{leader.NodePropertiesAnnotation: "true"} // it runs as an administrator
	}, nil},
	"no policy of Nodes": {func(_ *testing.T, f *Facts) {
		f.Missing = []string{"ValidatingAdmissionPolicy " + nodePolicy, "ValidatingAdmissionPolicyBinding " + nodePolicy}
		f.ClusterRoles = append(f.ClusterRoles, rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "patcher"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"patch"}}}})
		f.ClusterRoleBindings = append(f.ClusterRoleBindings, rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "patcher"}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "patcher"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: kubejoinNamespace, Name: kubejoinAccount}},
		})
	}, []string{"node-policy-missing: kubectl apply -f deploy/node-properties.yaml"}},
	"no rights": {func(_ *testing.T, f *Facts) { f.RoleBindings = nil }, []string{"rights-missing: more", "join-rights-missing", "join-rights-missing"}},
	"one right missing": {func(_ *testing.T, f *Facts) {
		f.Roles = slices.DeleteFunc(f.Roles, func(r rbacv1.Role) bool { return r.Namespace == "kubejoin-system" && r.Rules[0].Verbs[0] == "update" })
	}, []string{"rights-missing: may not update leases in kubejoin-system"}},
	"right on one object alone": {func(_ *testing.T, f *Facts) {
		for i, r := range f.Roles {
			if r.Namespace == "kube-system" && r.Rules[0].Verbs[0] == "delete" {
				f.Roles[i].Rules[0].ResourceNames = []string{"one"}
			}
		}
	}, []string{"rights-missing: may not delete secrets in kube-system"}},
	"need not create cluster-info": {func(_ *testing.T, f *Facts) {
		f.Roles = slices.DeleteFunc(f.Roles, func(r rbacv1.Role) bool { return r.Namespace == "kube-public" && r.Rules[0].Verbs[0] == "create" })
	}, nil},

	"no Lease":      {func(_ *testing.T, f *Facts) { f.Lease = nil }, []string{"kubejoin-not-running: there is none"}},
	"old Lease":     {func(_ *testing.T, f *Facts) { f.Lease.Spec.RenewTime.Time = noon.Add(-time.Minute) }, []string{"kubejoin-not-running: nobody renews it"}},
	"Lease is free": {func(_ *testing.T, f *Facts) { f.Lease.Spec.HolderIdentity = ptr("") }, []string{"kubejoin-not-running"}},
	"no Lease, but a kubejoin": {func(_ *testing.T, f *Facts) {
		f.Lease, f.Kubejoin = nil, &Kubejoin{URL: "https://k:9443", Version: "v1.3.0", Time: noon, Local: noon, Pins: f.Pins}
	}, nil},
	"failed writes": {func(_ *testing.T, f *Facts) {
		f.Lease.Annotations = map[string]string{failedwrites.Annotation: `[{"verb":"update","resource":"secrets","namespace":"kube-system","at":"` + noon.Format(time.RFC3339) + `","message":"failed calling webhook \"x\""},` +
			`{"verb":"create","resource":"leases","at":"2020-01-01T00:00:00Z","message":"long ago"}]`}
		f.Refused = []failedwrites.Write{{Verb: "create", Resource: "leases", Namespace: "kubejoin-system", Message: "failed calling webhook \"y\""}}
	}, []string{`writes-fail: kubejoin could not update secrets in kube-system, last at `, `writes-fail: kubejoin cannot create leases in kubejoin-system, as a dry run shows: failed calling webhook "y"`}},
	"failed write, without a dry run": {func(_ *testing.T, f *Facts) {
		f.Lease.Annotations = map[string]string{failedwrites.Annotation: `[{"verb":"update","resource":"secrets","at":"` + noon.Format(time.RFC3339) + `","message":"x"}]`}
		f.Unread[factDryRun] = "need create on secrets"
	}, []string{"writes-fail: kubejoin could not update secrets, last at ", "unknown writes: need create on secrets"}},
	"failed writes of a kubejoin": {func(_ *testing.T, f *Facts) {
		f.Lease, f.Kubejoin = nil, &Kubejoin{URL: "https://k:9443", Version: "v1.3.0", Time: noon, Local: noon, Pins: f.Pins, Writes: "kubejoin cannot update secrets"}
	}, []string{"writes-fail: https://k:9443: kubejoin cannot update secrets"}},
	"unreachable kubejoin": {func(_ *testing.T, f *Facts) {
		f.Kubejoin = &Kubejoin{URL: "https://k:9443", Unreachable: "refused\x1b[31m"}
	}, []string{"kubejoin-unreachable: refused\ufffd[31m"}},
	"unready kubejoin": {func(_ *testing.T, f *Facts) {
		f.Kubejoin = &Kubejoin{URL: "https://k:9443", Failing: []string{"claims failed: no"}}
	}, []string{"kubejoin-not-ready: claims failed"}},
	"old kubejoin": {func(_ *testing.T, f *Facts) {
		f.Kubejoin = &Kubejoin{URL: "https://k:9443", Version: "v1.1.9-3-gabcdef0"}
	}, []string{"kubejoin-older"}},
	"slow kubejoin": {func(_ *testing.T, f *Facts) {
		f.Kubejoin = &Kubejoin{URL: "https://k:9443", Local: noon, Time: noon.Add(-2 * time.Minute)}
	}, []string{"clock-skew: 2m0s ahead of that of https://k:9443"}},
	"pin of kubejoin": {func(_ *testing.T, f *Facts) {
		f.Kubejoin = &Kubejoin{URL: "https://k:9443", Pins: []string{"sha256:00"}}
	}, []string{"pin-mismatch: https://k:9443"}},

	"unread pins of kubejoin": {func(_ *testing.T, f *Facts) {
		f.Kubejoin = &Kubejoin{URL: "https://k:9443", PinsUnread: "404"}
	}, []string{"unknown pins: https://k:9443: 404"}},

	"upload missing": {func(_ *testing.T, f *Facts) {
		f.Tokens[0].Limits.Role, f.UploadMissing = tokens.RoleControlPlane, true
	}, []string{"upload-missing: token create --print-join-command --control-plane"}},
	"upload missing, spent": {func(_ *testing.T, f *Facts) {
		f.Tokens[0].Limits, f.Tokens[0].Nodes, f.UploadMissing = tokens.Limits{MaxNodes: 1, Role: tokens.RoleControlPlane}, []string{"cp-2"}, true
	}, nil},
	"upload missing, worker": {func(_ *testing.T, f *Facts) { f.UploadMissing = true }, nil},
	"token without end":      {func(_ *testing.T, f *Facts) { f.Tokens[0].Expires = time.Time{} }, []string{"token-never-expires: token renew"}},
	"published token": {func(_ *testing.T, f *Facts) {
		r := &f.Tokens[0]
		_, r.Problem = tokens.New("abcdef", "0123456789abcdef")
	}, []string{"token-guessable: public documentation"}},
	"picked token": {func(t *testing.T, f *Facts) {
		f.addToken(t, picked(t, "kubernetes123456"))
		f.sign(t, f.CAs...)
	}, []string{"token-guessable: picked by hand"}},
	"expired picked token": {func(t *testing.T, f *Facts) { f.addToken(t, picked(t, "kubernetes123456")).Expires = noon }, nil},
	"malformed token":      {func(_ *testing.T, f *Facts) { f.Tokens[0].Problem = errors.New("no secret\nin it") }, []string{"token-malformed: no secret; in it"}},
	"malformed limits":     {func(_ *testing.T, f *Facts) { f.Tokens[0].Limits.Problem = errors.New("max-nodes") }, []string{"token-malformed: limits"}},

	"no cluster-info": {func(_ *testing.T, f *Facts) { f.ClusterInfo, f.Discovery, f.Pins = nil, nil, nil }, []string{"cluster-info-missing: --api-server https://api.example.com:6443"}},
	"malformed cluster-info": {func(_ *testing.T, f *Facts) {
		f.ClusterInfo[clusterinfo.KubeconfigKey] = "?"
	}, []string{"cluster-info-malformed", "cluster-info-unsigned"}},
	"unsigned": {func(_ *testing.T, f *Facts) { delete(f.ClusterInfo, clusterinfo.SignatureKey(f.Tokens[0].Token.ID())) }, []string{"cluster-info-unsigned"}},
	"unsigned spent token": {func(_ *testing.T, f *Facts) {
		delete(f.ClusterInfo, clusterinfo.SignatureKey(f.Tokens[0].Token.ID()))
		f.Tokens[0].Limits.MaxNodes, f.Tokens[0].Nodes, f.Tokens[0].Created = 1, []string{"worker-1"}, f.Time.Add(-spentDelay)
	}, nil},
	"unsigned token that counts nodes by a rule of kubejoin": {func(_ *testing.T, f *Facts) {
		delete(f.ClusterInfo, clusterinfo.SignatureKey(f.Tokens[0].Token.ID()))
		f.Tokens[0].Limits.MaxNodes, f.Tokens[0].Nodes, f.Tokens[0].Created = 0, []string{"worker-1"}, f.Time.Add(-spentDelay)
	}, nil},
	"unsigned spent token, created a moment ago": {func(_ *testing.T, f *Facts) {
		delete(f.ClusterInfo, clusterinfo.SignatureKey(f.Tokens[0].Token.ID()))
		f.Tokens[0].Limits.MaxNodes, f.Tokens[0].Nodes, f.Tokens[0].Created = 1, []string{"worker-1"}, f.Time.Add(1-spentDelay)
	}, []string{"cluster-info-unsigned"}},
	"unsigned spent token, created a moment ago, whose nodes have left": {func(_ *testing.T, f *Facts) {
		delete(f.ClusterInfo, clusterinfo.SignatureKey(f.Tokens[0].Token.ID()))
		f.Tokens[0].Limits.MaxNodes, f.Tokens[0].Nodes, f.Tokens[0].Created = 1, []string{"worker-1"}, f.Time.Add(1-spentDelay)
		f.Tokens[0].Marks = map[string]string{"worker-1": "-"}
	}, nil},
	"unsigned spent token, created a moment ago, one of whose nodes has left": {func(_ *testing.T, f *Facts) {
		delete(f.ClusterInfo, clusterinfo.SignatureKey(f.Tokens[0].Token.ID()))
		f.Tokens[0].Limits.MaxNodes, f.Tokens[0].Nodes, f.Tokens[0].Created = 2, []string{"worker-1", "worker-2"}, f.Time.Add(1-spentDelay)
		f.Tokens[0].Marks = map[string]string{"worker-1": "-"}
	}, []string{"cluster-info-unsigned"}},
	"wrong signature of a spent token": {func(_ *testing.T, f *Facts) {
		f.ClusterInfo[clusterinfo.SignatureKey(f.Tokens[0].Token.ID())] = "e30..e30"
		f.Tokens[0].Limits.MaxNodes, f.Tokens[0].Nodes = 1, []string{"worker-1"}
	}, []string{"cluster-info-unsigned"}},
	"unsigned new token": {func(_ *testing.T, f *Facts) {
		f.ClusterInfo = map[string]string{clusterinfo.KubeconfigKey: f.ClusterInfo[clusterinfo.KubeconfigKey]}
		f.Tokens[0].Created = noon
	}, nil},
	"signature of another": {func(t *testing.T, f *Facts) {
		f.Tokens[0].Token = picked(t, "s3fk29dls0w8fjq2")
		f.ClusterInfo[clusterinfo.SignatureKey("picked")] = "e30..e30"
	}, []string{"cluster-info-unsigned: picked"}},
	"needs no signature":       {func(t *testing.T, f *Facts) { f.addToken(t, picked(t, "s3fk29dls0w8fjq2")).Signing = false }, nil},
	"other CA":                 {func(t *testing.T, f *Facts) { f.CAs = []*x509.Certificate{newCA(t, 3650*24*time.Hour)} }, []string{"cluster-info-other-ca"}},
	"kubeconfig without a CA":  {func(_ *testing.T, f *Facts) { f.CAs = nil }, []string{"unknown cluster-info: no CA to compare"}},
	"unreachable API server":   {func(_ *testing.T, f *Facts) { f.Discovery.Unreachable = "refused" }, []string{"cluster-info-server-unreachable: refused"}},
	"no connection tried":      {func(_ *testing.T, f *Facts) { f.Discovery = nil }, nil},
	"untrusted API server":     {func(_ *testing.T, f *Facts) { f.Discovery.Untrusted = "unknown authority" }, []string{"cluster-info-server-untrusted: unknown authority"}},
	"not public":               {func(_ *testing.T, f *Facts) { f.Anonymous = http.StatusForbidden }, []string{"cluster-info-not-public: kubectl apply"}},
	"anonymous off":            {func(_ *testing.T, f *Facts) { f.Anonymous = http.StatusUnauthorized }, []string{"cluster-info-not-public: --advertise"}},
	"advertised and public":    {func(_ *testing.T, f *Facts) { f.advertise() }, []string{"cluster-info-public", "anonymous-on"}},
	"advertised and anonymous": {func(_ *testing.T, f *Facts) { f.advertise(); f.Anonymous = http.StatusForbidden }, []string{"anonymous-on"}},
	"advertised":               {func(_ *testing.T, f *Facts) { f.advertise(); f.Anonymous = http.StatusUnauthorized }, nil},
	"public, but unreachable":  {func(_ *testing.T, f *Facts) { f.advertise(); f.Advertise.Unreachable = "refused" }, []string{"advertise-unreachable"}},
	"public, but untrusted":    {func(_ *testing.T, f *Facts) { f.advertise(); f.Advertise.Untrusted = "unknown" }, []string{"advertise-untrusted"}},
	"public, but another":      {func(_ *testing.T, f *Facts) { f.advertise(); f.Advertise.Kubeconfig = "another" }, []string{"advertise-other-cluster"}},
	"public, but loopback":     {func(_ *testing.T, f *Facts) { f.advertise(); f.Advertise.Address = "localhost:9443" }, []string{"loopback-address"}},
	"advertised, unreachable":  {func(_ *testing.T, f *Facts) { f.advertise(); f.Anonymous, f.Advertise.Unreachable = 401, "refused" }, []string{"advertise-unreachable: refused"}},
	"advertised, untrusted":    {func(_ *testing.T, f *Facts) { f.advertise(); f.Anonymous, f.Advertise.Untrusted = 401, "unknown" }, []string{"advertise-untrusted: unknown"}},
	"advertised, another":      {func(_ *testing.T, f *Facts) { f.advertise(); f.Anonymous, f.Advertise.Kubeconfig = 401, "another" }, []string{"advertise-other-cluster"}},
	"loopback in cluster-info": {func(_ *testing.T, f *Facts) { f.Discovery.Address = "127.0.0.1:6443" }, []string{"loopback-address: cluster-info names 127.0.0.1:6443"}},
	"advertised loopback":      {func(_ *testing.T, f *Facts) { f.advertise(); f.Anonymous, f.Advertise.Address = 401, "localhost:9443" }, []string{"loopback-address: join commands name localhost:9443"}},
	"wrong pin":                {func(_ *testing.T, f *Facts) { f.Pins = []string{"sha256:00"} }, []string{"pin-mismatch: sha256:00"}},

	"CA ends soon":       {func(t *testing.T, f *Facts) { f.rotate(t, newCA(t, 20*24*time.Hour)) }, []string{"ca-expires-soon: within 30 days"}},
	"CA ends in 80 days": {func(t *testing.T, f *Facts) { f.rotate(t, newCA(t, 80*24*time.Hour)) }, []string{"ca-expires-soon: within 90 days"}},
	"CA of a signer ends soon": {func(_ *testing.T, f *Facts) {
		f.Kubejoin = &Kubejoin{URL: "https://k:9443", Signers: "signer example.com/a: the CA expires"}
	}, []string{"signer-ca: example.com/a: the CA expires"}},
	"CA has ended": {func(t *testing.T, f *Facts) {
		f.rotate(t, newCA(t, 8*time.Hour))
		f.Time, f.Local = noon.Add(8*time.Hour), noon.Add(8*time.Hour)
		f.Lease = nil
		f.Kubejoin = &Kubejoin{}
	}, []string{"ca-expired"}},
	"CA that permits no name of a Node": {func(t *testing.T, f *Facts) {
		f.Nodes[0].Status.Addresses = append(f.Nodes[0].Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalDNS, Address: "worker-1.example.org."}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "no host"})
		f.rotate(t, constrainedCA(t, "example.com"))
	}, []string{"ca-not-trusted: worker-1.example.org"}},
	"CA that permits the names of Nodes": {func(t *testing.T, f *Facts) {
		f.Nodes[0].Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "worker-1.example.org"}}
		f.rotate(t, constrainedCA(t, "example.org"))
	}, nil},
	"one of two CAs": {func(t *testing.T, f *Facts) { f.rotate(t, newCA(t, 8*time.Hour), newCA(t, 3650*24*time.Hour)) }, nil},
	"clock ahead":    {func(_ *testing.T, f *Facts) { f.Local = noon.Add(90 * time.Second) }, []string{"clock-skew: 1m30s ahead of"}},
	"clock behind":   {func(_ *testing.T, f *Facts) { f.Local = noon.Add(-90 * time.Second) }, []string{"clock-skew: 1m30s behind"}},
	"clock differs":  {func(_ *testing.T, f *Facts) { f.Local = noon.Add(-50 * time.Second) }, nil},

	"old Kubernetes":     {func(_ *testing.T, f *Facts) { f.KubernetesVersion = "v1.34.9" }, []string{"kubernetes-version: v1.34.9"}},
	"new Kubernetes":     {func(_ *testing.T, f *Facts) { f.KubernetesVersion = "v1.38.0-rc.1" }, []string{"kubernetes-version: newer kubejoin"}},
	"Kubernetes 2":       {func(_ *testing.T, f *Facts) { f.KubernetesVersion = "v2.35.0" }, []string{"kubernetes-version"}},
	"oldest Kubernetes":  {func(_ *testing.T, f *Facts) { f.KubernetesVersion = "v1.35.0+k3s1" }, nil},
	"unknown Kubernetes": {func(_ *testing.T, f *Facts) { f.KubernetesVersion = "main" }, []string{"kubernetes-version"}},

	"Node not Ready": {func(_ *testing.T, f *Facts) {
		c := &f.Nodes[0].Status.Conditions[0]
		c.Status, c.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
	}, []string{"node-not-ready: --replace-node worker-1"}},
	"Node not Ready of a machine": {func(_ *testing.T, f *Facts) {
		c := &f.Nodes[0].Status.Conditions[0]
		c.Status, c.Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
		f.Claims = map[string]tokens.Claim{"worker-1": {Node: "worker-1", Machine: tokens.Machine{Key: "k"}}} // no token can replace it
	}, []string{"node-not-ready: kubejoin explain worker-1"}},
	"Node not Ready yet": {func(_ *testing.T, f *Facts) {
		c := &f.Nodes[0].Status.Conditions[0]
		c.Status, c.LastTransitionTime.Time = corev1.ConditionFalse, noon.Add(-time.Minute)
	}, nil},
	"Node without a kubelet": {func(_ *testing.T, f *Facts) {
		f.Nodes[0].Status.Conditions, f.Nodes[0].CreationTimestamp.Time = nil, noon.Add(-time.Hour)
	}, []string{"node-not-ready: it never reported"}},
	"Node waits for the right": {func(_ *testing.T, f *Facts) {
		f.join(11*time.Minute, tokens.NodeProperties{})
		f.Lease.Annotations = nil
	}, []string{"node-joining: kubectl apply -f deploy/node-properties.yaml"}},
	"Node waits for its certificate": {func(_ *testing.T, f *Facts) {
		f.join(11*time.Minute, tokens.NodeProperties{ReadyAfter: tokens.ReadyAfterServingCertificate})
		r := request(certificates.KubeletServingSignerName, noon.Add(-20*time.Minute)) // of an earlier Node
		r.Spec.Username, r.Status.Certificate = "system:node:worker-1", []byte("c")
		f.requests(r)
	}, []string{"node-joining: gets a serving certificate"}},
	"Node waits for kubejoin": {func(_ *testing.T, f *Facts) {
		f.join(11*time.Minute, tokens.NodeProperties{ReadyAfter: tokens.ReadyAfterServingCertificate})
		r := request(certificates.KubeletServingSignerName, noon.Add(-time.Minute))
		r.Spec.Username, r.Status.Certificate = "system:node:worker-1", []byte("c")
		f.requests(r)
	}, []string{"node-joining: until kubejoin patches it, and no pods run on it"}},
	"Node without the taint waits for a label": {func(_ *testing.T, f *Facts) {
		f.join(11*time.Minute, tokens.NodeProperties{Labels: "a=b"})
		f.Nodes[0].Spec.Taints, f.Nodes[0].Labels = nil, map[string]string{"a": "c"}
	}, []string{`node-joining: its label a is gone, which has the value "c"`}},
	"another Node of the name has the label": {func(_ *testing.T, f *Facts) {
		f.join(11*time.Minute, tokens.NodeProperties{Labels: "a=b"})
		f.Nodes[0].Spec.Taints, f.Nodes[0].Labels, f.Nodes[0].UID = nil, map[string]string{"a": "c"}, "other"
	}, nil},
	"Node that is replaced waits since its claim": {func(_ *testing.T, f *Facts) {
		f.join(11*time.Minute, tokens.NodeProperties{Labels: "a=b"})
		f.Nodes[0].Labels = map[string]string{"a": "c"}
		claim := f.Claims[f.Nodes[0].Name]
		claim.Created = noon.Add(-9 * time.Minute)
		f.Claims[f.Nodes[0].Name] = claim
	}, nil},
	"Node with the taint has no claim in the cluster": {func(_ *testing.T, f *Facts) { // perhaps in kubejoin's own store, or malformed
		f.join(11*time.Minute, tokens.NodeProperties{})
		f.Claims = nil
	}, []string{"node-joining: until kubejoin patches it (the cluster has no valid claim of its name), and no pods run on it"}},
	"Node joins": {func(_ *testing.T, f *Facts) { f.join(9*time.Minute, tokens.NodeProperties{}) }, nil},
	"machines": {func(_ *testing.T, f *Facts) {
		f.Claims = map[string]tokens.Claim{}
		refused := tokens.Machine{Key: "k", TokenID: "abcdef", RefusedSince: noon.Add(-3 * time.Minute), RefusedLast: noon.Add(-time.Minute)}
		barred, joined, late := refused, tokens.Machine{Key: "k", TokenID: "abcdef", Expires: noon}, tokens.Machine{Key: "k", Expires: noon}
		barred.Revoked = true
		for node, m := range map[string]tokens.Machine{"a": refused, "b": barred, "c": joined, "d": late, "e": {Key: "k", Expires: noon.Add(time.Second)}} {
			f.Claims[node] = tokens.Claim{Node: node, Machine: m}
		}
	}, []string{"machine-cloned: kubejoin revoke a", "machine-expired: kubejoin machine delete d"}},
	"many Nodes not Ready": {func(_ *testing.T, f *Facts) {
		for i := range 9 {
			f.Nodes = append(f.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("gone-", i)}})
		}
	}, []string{"node-not-ready", "node-not-ready", "node-not-ready", "node-not-ready", "node-not-ready: (and 4 more)"}},
	"request waits": {func(_ *testing.T, f *Facts) {
		f.requests(request(certificates.KubeAPIServerClientKubeletSignerName, noon.Add(-time.Minute)))
	}, []string{"csr-pending: kubejoin explain --csr csr-1"}},
	"signature waits": {func(_ *testing.T, f *Facts) {
		f.requests(request(certificates.KubeletServingSignerName, noon.Add(-time.Minute), certificates.CertificateApproved))
	}, []string{"csr-pending: was approved"}},
	"request is new": {func(_ *testing.T, f *Facts) { f.requests(request(certificates.KubeletServingSignerName, noon)) }, nil},
	"request is denied": {func(_ *testing.T, f *Facts) {
		f.requests(request(certificates.KubeletServingSignerName, noon.Add(-time.Minute), certificates.CertificateDenied))
	}, nil},
	"request has failed": {func(_ *testing.T, f *Facts) {
		f.requests(request(certificates.KubeletServingSignerName, noon.Add(-time.Minute), certificates.CertificateApproved, certificates.CertificateFailed))
	}, nil},
	"request of another": {func(_ *testing.T, f *Facts) { f.requests(request("example.com/own", noon.Add(-time.Minute))) }, nil},
	"request is issued": {func(_ *testing.T, f *Facts) {
		r := request(certificates.KubeletServingSignerName, noon.Add(-time.Minute), certificates.CertificateApproved)
		r.Status.Certificate = []byte("x")
		f.requests(r)
	}, nil},
	"request has a bad name": {func(_ *testing.T, f *Facts) {
		r := request(certificates.KubeletServingSignerName, noon.Add(-time.Minute))
		r.Name = "$(id)"
		f.requests(r)
	}, []string{`csr-pending: uid=="8f0b"`}},
}

// addMachine adds a control plane whose API server has these flags.
func (f *Facts) addMachine(name string, flags ...string) {
	f.addControlPlane(name)
	f.ControlPlane = append(f.ControlPlane, staticPod(kubeAPIServer, name, flags...), staticPod(kubeControllerManager, name, "--controllers=-csrapproving"), staticPod(kubeScheduler, name))
}

// roguePods returns Pods of a control plane on another Node, with flags that would hide every finding.
func (f *Facts) roguePods(node string) []corev1.Pod {
	return []corev1.Pod{staticPod(kubeAPIServer, node, secure...), staticPod(kubeControllerManager, node, "--controllers=-csrapproving"), staticPod(kubeScheduler, node)}
}

// unseenOn returns an unknown result for each check of flags. For feature gates, it returns one for each component.
func unseenOn(part string) []string {
	var all []string
	for _, check := range []string{"kube-controller-manager", "bootstrap-tokens", "authorizers", "node-restriction", "kubelet-ca", "kubelet-client", "feature-gates", "feature-gates", "feature-gates"} {
		all = append(all, "unknown "+check+": "+part)
	}
	return all
}

func (f *Facts) kubeadmVersion(kubernetes, apiVersion string) {
	f.KubernetesVersion = kubernetes
	f.JoinConfig["kubeadm-config"]["ClusterConfiguration"] = "apiVersion: kubeadm.k8s.io/" + apiVersion + "\nkind: ClusterConfiguration\n"
}

func (f *Facts) requests(all ...certificates.CertificateSigningRequest) { f.Requests = all }

func (f *Facts) advertise() {
	f.Advertise = &Endpoint{Address: "join.example.com:9443", Kubeconfig: f.ClusterInfo[clusterinfo.KubeconfigKey]}
}

// rotate replaces the CAs of the cluster.
func (f *Facts) rotate(t *testing.T, cas ...*x509.Certificate) {
	t.Helper()
	f.CAs, f.Pins = cas, nil
	f.Tokens[0].Expires = noon.Add(24 * time.Hour)
	f.sign(t, cas...)
}

func TestDiagnose(t *testing.T) {
	seen := map[string]bool{}
	for name, test := range diagnoses {
		t.Run(name, func(t *testing.T) {
			f := healthy(t)
			test.change(t, f)
			report := Diagnose(f)
			want := slices.Clone(test.want)
			for _, u := range report.Unchecked {
				at := slices.IndexFunc(want, func(w string) bool {
					check, part, _ := strings.Cut(w, ": ")
					return check == "unknown "+u.Check && strings.Contains(u.Reason, part)
				})
				if at < 0 {
					t.Errorf("got %+v, want %q", u, test.want)
					continue
				}
				want = slices.Delete(want, at, at+1)
			}
			for _, got := range report.Findings {
				seen[got.ID] = true
				if got.Command == "" || got.Message == "" || got.Severity == "" || strings.Contains(got.Message+got.Command, "\n") {
					t.Errorf("incomplete finding %+v", got)
				}
				at := slices.IndexFunc(want, func(w string) bool {
					id, part, _ := strings.Cut(w, ": ")
					return id == got.ID && strings.Contains(got.Message+"\n"+got.Command, part)
				})
				if at < 0 {
					t.Errorf("got %+v, want %q", got, test.want)
					continue
				}
				want = slices.Delete(want, at, at+1)
			}
			if len(want) > 0 {
				t.Errorf("missing: %q", want)
			}
		})
	}
	for id := range Findings {
		if !seen[id] && !t.Failed() {
			t.Errorf("no case has the finding %s", id)
		}
	}
}

// At each step before the CA expires, the doctor must warn, with the next command.
func TestWarnsBeforeCAExpires(t *testing.T) {
	for left, days := range map[time.Duration]int{80: 90, 20: 30, 6: 7} {
		f, ca := healthy(t), newCA(t, left*24*time.Hour)
		f.rotate(t, ca)
		message := fmt.Sprintf("the CA in cluster-info expires at %s, within %d days", ca.NotAfter.UTC().Format(time.RFC3339), days)
		want := Finding{ID: "ca-expires-soon", Severity: Warning, Message: message, Command: "kubejoin ca prepare"}
		if got := Diagnose(f).Findings; !slices.Equal(got, []Finding{want}) {
			t.Errorf("%d days before the end: got %+v, want %+v", left, got, want)
		}
	}
}

// TestUnreadFactIsNeverSilent catches a check that reports nothing although it could not read a fact that it needs.
func TestUnreadFactIsNeverSilent(t *testing.T) {
	for _, c := range checks {
		for _, fact := range c.needs {
			f := healthy(t)
			f.Unread[fact] = "need get on it"
			if got := Diagnose(f); !slices.Contains(got.Unchecked, Unchecked{c.name, "need get on it"}) || len(got.Findings) > 0 {
				t.Errorf("%s without %q: %+v", c.name, fact, got)
			}
		}
	}
}

// TestIgnoresAdvertiseOfWorkers catches a doctor that uses the address in a forged kubejoin Pod, which a worker has posted.
func TestIgnoresAdvertiseOfWorkers(t *testing.T) {
	pod := func(machine string, mirror bool) corev1.Pod {
		p := staticPod("kubejoin", machine, "serve", "--advertise="+machine+":9443")
		if !mirror {
			p.Annotations = nil
		}
		return p
	}
	for name, test := range map[string]struct {
		pods []corev1.Pod
		want string
	}{
		"Deployment":                         {[]corev1.Pod{pod("worker-1", false)}, "worker-1:9443"},
		"static Pod of a control plane":      {[]corev1.Pod{pod("cp-1", true)}, "cp-1:9443"},
		"static Pod of a worker":             {[]corev1.Pod{pod("worker-1", true)}, ""},
		"Deployment, and a worker's Pod":     {[]corev1.Pod{pod("cp-1", false), pod("worker-1", true)}, "cp-1:9443"},
		"static Pod of a machine unheard of": {[]corev1.Pod{pod("gone-1", true)}, ""},
	} {
		r := &reading{Facts: *healthy(t), own: test.pods}
		if r.advertised(); r.Options.Advertise != test.want {
			t.Errorf("%s: got %q, want %q", name, r.Options.Advertise, test.want)
		}
	}
}

func TestErrorsComeFirst(t *testing.T) {
	f := healthy(t)
	f.controlPlane(kubeControllerManager)
	f.Lease = nil
	got := Diagnose(f).Findings
	if len(got) != 2 || got[0].Severity != Error || got[1].Severity != Warning {
		t.Errorf("got %+v", got)
	}
}

func TestHandPicked(t *testing.T) {
	for _, secret := range []string{
		"0123456789abcdef", "aaaaaaaaaaaaaaaa", "abababababababab", "1234567812345678", "fedcba9k3l0w2x7z", "password12x9w7q3",
		"mykubernetes1x9w", "31415926535897a3"[:14] + "93", "x7k2m9q4x7k2m9q4", "zzzzzz9k3l0w2x7p",
	} {
		if handPicked(secret) == "" {
			t.Errorf("%s looks random", secret)
		}
	}
	// Use a fixed seed, because one random secret in a million looks picked by hand.
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	random := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		secret := make([]byte, 16)
		for i := range secret {
			secret[i] = alphabet[random.IntN(len(alphabet))]
		}
		if why := handPicked(string(secret)); why != "" {
			t.Errorf("%s: %s", secret, why)
		}
	}
	for range 1000 { // like the output of 'openssl rand -hex 8'
		if secret := fmt.Sprintf("%016x", random.Uint64()); handPicked(secret) != "" {
			t.Errorf("%s: %s", secret, handPicked(secret))
		}
	}
}

// TestShowsNoSecret catches a report that contains the secret of a token.
func TestShowsNoSecret(t *testing.T) {
	f := healthy(t)
	token := tokens.Generate()
	f.addToken(t, token).Problem = fmt.Errorf("Secret has %s", token.Reveal())
	f.Requests = []certificates.CertificateSigningRequest{request(certificates.KubeletServingSignerName, noon.Add(-time.Minute))}
	f.Requests[0].Name = token.Reveal()
	report := Diagnose(f)
	if text := report.Text() + report.Commands(); len(report.Findings) != 2 || strings.Contains(text, token.RevealSecret()) {
		t.Errorf("got %s", text)
	}
}

// A Node may wait although its claim is unreadable. Catches such a claim that is taken for none.
func TestReportsMalformedClaim(t *testing.T) {
	lease := func(name string, labels, annotations map[string]string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: kubejoinNamespace, Name: name, Labels: labels, Annotations: annotations}}
	}
	f := healthy(t)
	r := &reading{Facts: *f, client: fake.NewClientset(
		lease("kubejoin", nil, nil),
		lease("worker-1", map[string]string{"kubejoin.io/claim": "true"}, map[string]string{"kubejoin.io/max-nodes": "many"}),
	)}
	must.OK(t, r.claims(t.Context()))
	d := Diagnose(&r.Facts)
	if len(d.Unchecked) != 1 || d.Unchecked[0].Check != "joining" || !strings.Contains(d.Unchecked[0].Reason, "worker-1") {
		t.Errorf("got %+v, want the malformed claim of worker-1 alone", d.Unchecked)
	}
}

func TestTextOfDiagnosis(t *testing.T) {
	f := healthy(t)
	diagnoses["first name counts"].change(t, f)
	diagnoses["token without end"].change(t, f)
	f.Unread[factRotations] = "need get on secret kubejoin-ca-key in kube-system"
	sample.Check(t, "docs/doctor.md", Diagnose(f).Text())
}

func TestTextAndCommands(t *testing.T) {
	r := Diagnosis{
		Checks: 3,
		Findings: []Finding{
			{"a", Error, "it is bad", "mend it", "cp-1"}, {"b", Warning, "it is not good", "mend it", "cp-1"}, {"c", Warning, "it is odd", "see", ""},
		},
		Unchecked: []Unchecked{{"tokens", "need list on secrets in kube-system"}},
	}
	const text = `error    a: it is bad
  on cp-1, as root: mend it
warning  b: it is not good
  on cp-1, as root: mend it
warning  c: it is odd
  see
unknown  tokens: could not check: need list on secrets in kube-system
checks: 3, errors: 1, warnings: 2, not checked: 1
`
	if got := r.Text(); got != text {
		t.Errorf("got\n%s", got)
	}
	if got, want := r.Commands(), "mend it # on cp-1, as root\nsee\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := r.Without([]string{"a", "tokens"}); len(got.Findings) != 2 || len(got.Unchecked) != 0 || len(r.Findings) != 3 {
		t.Errorf("got %+v of %+v", got, r)
	}
	if (Diagnosis{}).Commands() != "" {
		t.Error("Commands returns commands for a Diagnosis without findings, want none")
	}
	if CheckNames([]string{"kcm-signs", "tokens"}) != nil || CheckNames([]string{"kcm"}) == nil {
		t.Error("wrong names")
	}
}

func ptr[T any](v T) *T { return &v }

// rotated returns a rotation that has been in stage trust for a time.
func rotated(stage time.Duration, ended time.Time) []rotation.Rotation {
	return []rotation.Rotation{{ID: "0123456789abcdef", CA: rotation.Cluster, Stage: rotation.Trust, Since: noon.Add(-stage), Ended: ended}}
}

// TestOtherSigners catches a kube-controller-manager that signs but is not found. It would fail when its CA file gets a second
// certificate.
func TestOtherSigners(t *testing.T) {
	for name, test := range map[string]struct {
		pods            []corev1.Pod
		signing, unseen []string
	}{
		"any signer": {[]corev1.Pod{
			staticPod(kubeControllerManager, "cp-1", "--cluster-signing-cert-file=/ca.crt"), staticPod(kubeControllerManager, "cp-2", "--cluster-signing-kubelet-serving-cert-file=/ca.crt"),
		}, []string{"cp-1", "cp-2"}, nil},
		"switched off":       {[]corev1.Pod{staticPod(kubeControllerManager, "cp-1", "--controllers=*,-csrsigning", "--cluster-signing-cert-file=/ca.crt"), staticPod(kubeControllerManager, "cp-2")}, nil, nil},
		"no file":            {[]corev1.Pod{staticPod(kubeControllerManager, "cp-1", "--cluster-signing-cert-file=", "--cluster-signing-duration=1h"), staticPod(kubeControllerManager, "cp-2")}, nil, nil},
		"no Pod":             {[]corev1.Pod{staticPod(kubeControllerManager, "cp-1")}, nil, []string{"cp-2"}},
		"a Pod on a worker":  {[]corev1.Pod{staticPod(kubeControllerManager, "worker-1", "--cluster-signing-cert-file=/ca.crt")}, nil, []string{"cp-1", "cp-2"}},
		"another static Pod": {[]corev1.Pod{staticPod(kubeScheduler, "cp-1", "--cluster-signing-cert-file=/ca.crt")}, nil, []string{"cp-1", "cp-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			found, unseen := OtherSigners([]string{"cp-1", "cp-2"}, test.pods)
			var signing []string
			for _, f := range found {
				signing = append(signing, f.Machine)
				if !strings.Contains(f.Command, "-csrsigning") {
					t.Errorf("command %q", f.Command)
				}
			}
			if !slices.Equal(signing, test.signing) || !slices.Equal(unseen, test.unseen) {
				t.Errorf("signing %q, unseen %q", signing, unseen)
			}
		})
	}
}

func TestReadChecks(t *testing.T) {
	var k Kubejoin
	k.readChecks("[+]cluster-ca ok: the CA expires\n[+]signer-config ok: signer a: the CA expires\n[-]claims failed: no\nreadyz check failed\n")
	if !slices.Equal(k.Failing, []string{"claims failed: no"}) || k.Signers != "signer a: the CA expires" {
		t.Errorf("failing are %q, and the notice about signers is %q", k.Failing, k.Signers)
	}
}

// Catches a webhook that is down but not reported. Also catches a report about a webhook that only lacks dry runs or denies
// this user.
func TestDryRunFindsWebhooksThatAreDown(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "x", nil)
	for text, want := range map[string]struct {
		refused  int
		unreadBy string
	}{
		forbidden.Error(): {0, ""},

		`failed calling webhook "x": connection refused`:          {2, ""},
		`admission webhook "x" does not support dry run`:          {0, ""},
		`admission webhook "x" denied the request: not this user`: {0, "not this user"},
		`something else`: {0, "something else"},
	} {
		client := fake.NewClientset()
		client.PrependReactor("create", "*", func(a kubetesting.Action) (bool, runtime.Object, error) {
			if options := a.(kubetesting.CreateActionImpl).CreateOptions; !slices.Equal(options.DryRun, []string{metav1.DryRunAll}) {
				t.Errorf("got options %+v, want a dry run", options)
			}
			if text == forbidden.Error() {
				return true, nil, forbidden
			}
			return true, nil, errors.New(text)
		})
		r := &reading{Options: Options{Now: time.Now}, client: client}
		err := r.dryRun(t.Context())
		if len(r.Refused) != want.refused || (err != nil) != (want.unreadBy != "") || err != nil && !strings.Contains(err.Error(), want.unreadBy) {
			t.Errorf("%s: got %+v, %v, want %d and an error with %q", text, r.Refused, err, want.refused, want.unreadBy)
		}
	}
}

// join gives the first Node the taint of joining since some time, a claim that wants something, and the Lease the right to patch Nodes.
func (f *Facts) join(since time.Duration, want tokens.NodeProperties) {
	n := &f.Nodes[0]
	n.CreationTimestamp.Time, n.UID = noon.Add(-since), "u1"
	n.Spec.Taints = []corev1.Taint{{Key: tokens.JoiningTaint, Effect: corev1.TaintEffectNoSchedule}}
	f.Claims = map[string]tokens.Claim{n.Name: {Node: n.Name, TokenID: "abcdef", NodeUID: "u1", Waits: true, Created: noon.Add(-since - time.Minute), Limits: tokens.Limits{Node: want}}}
	f.Lease.Annotations = map[string]string{leader.NodePropertiesAnnotation: "true"}
}
