package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

const (
	nodeClient     = "--clusterrole=system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	selfNodeClient = "--clusterrole=system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
)

// faults are faults of a cluster. The commands in their findings must repair them.
var faults = []struct {
	name   string
	inject func(*testing.T, *patient)
	want   []string // all findings
}{
	{"default of kubeadm", func(t *testing.T, p *patient) { p.controlPlane(t, "", "") },
		[]string{"apiserver-trusts-any-kubelet", "kcm-approves", "kcm-cleans-tokens", "kcm-signs", "kcm-signs-cluster-info"}},
	{"bootstrap tokens off", func(t *testing.T, p *patient) {
		p.controlPlane(t, good+"  - {name: enable-bootstrap-token-auth, value: \"false\"}\n", handedOver)
	}, []string{"apiserver-bootstrap-tokens-off"}},
	{"no Node authorizer", func(t *testing.T, p *patient) {
		p.controlPlane(t, good+"  - {name: authorization-mode, value: RBAC}\n", handedOver)
	}, []string{"apiserver-node-authorizer-off"}},
	{"every request authorized", func(t *testing.T, p *patient) {
		p.controlPlane(t, good+"  - {name: authorization-mode, value: AlwaysAllow}\n", handedOver)
	}, []string{"apiserver-always-allow"}},
	{"no NodeRestriction", func(t *testing.T, p *patient) {
		p.controlPlane(t, good+"  - {name: enable-admission-plugins, value: AlwaysPullImages}\n", handedOver)
	}, []string{"apiserver-node-restriction-off"}},

	{"a worker with the Pod of a control plane", rogue, []string{"apiserver-node-restriction-off"}},

	{"approval for everybody", kubectl("create", "clusterrolebinding", "wide", nodeClient, "--group=system:authenticated"), []string{"nodeclient-too-wide"}},
	{"approval for another group", kubectl("create", "clusterrolebinding", "edge", nodeClient, "--group=system:bootstrappers:edge", "--user=kubelet-bootstrap"), []string{"nodeclient-other"}},
	{"renewals for everybody", kubectl("create", "clusterrolebinding", "renew", selfNodeClient, "--group=system:authenticated"), []string{"selfnodeclient-too-wide"}},
	{"no approval", kubectl("delete", "clusterrolebinding", "kubeadm:node-autoapprove-bootstrap"), []string{"nodeclient-missing"}},
	{"no approval of renewals", kubectl("delete", "clusterrolebinding", "kubeadm:node-autoapprove-certificate-rotation"), []string{"selfnodeclient-missing"}},
	{"tokens may not request", kubectl("delete", "clusterrolebinding", "kubeadm:kubelet-bootstrap"), []string{"join-rights-missing"}},
	{"tokens may not read Nodes", func(t *testing.T, p *patient) {
		kubectl("delete", "clusterrolebinding", "kubeadm:get-nodes")(t, p)
		kubectl("delete", "clusterrole", "kubeadm:get-nodes")(t, p)
	}, []string{"join-rights-missing"}},

	{"no kubelet-config", kubectl("-n", "kube-system", "delete", "configmap", "kubelet-config"), []string{"join-config-missing"}},
	{"another kind in kubelet-config", kubectl("-n", "kube-system", "patch", "configmap", "kubelet-config", "-p", `{"data":{"kubelet":"apiVersion: v1\nkind: Pod\n"}}`), []string{"join-config-malformed"}},
	{"tokens may not read kubeadm-config", func(t *testing.T, p *patient) {
		kubectl("-n", "kube-system", "delete", "role", "kubeadm:nodes-kubeadm-config")(t, p)
		kubectl("-n", "kube-system", "delete", "rolebinding", "kubeadm:nodes-kubeadm-config")(t, p)
	}, []string{"join-rights-missing"}},
	{"tokens may not read kubelet-config", kubectl("-n", "kube-system", "patch", "rolebinding", "kubeadm:kubelet-config", "--type=json", "-p", `[{"op":"remove","path":"/subjects/1"}]`), []string{"join-rights-missing"}},

	{"no rights of the kubelet client", kubectl("delete", "clusterrolebinding", "kubeadm:apiserver-kubelet-client"), []string{"kubelet-client-rights-missing"}},
	{"impersonation of groups", func(t *testing.T, p *patient) {
		kubectl("create", "clusterrole", "impersonator", "--verb=impersonate", "--resource=groups")(t, p)
		kubectl("create", "clusterrolebinding", "impersonator", "--clusterrole=impersonator", "--group=tools")(t, p)
	}, []string{"impersonates-nodes"}},

	{"no service account", kubectl("-n", "kubejoin-system", "delete", "serviceaccount", "kubejoin"), []string{"service-account-missing"}},
	{"no admission policy", kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "kubejoin-secrets"), []string{"admission-policy-missing"}},
	{"no binding", kubectl("-n", "kube-system", "delete", "rolebinding", "kubejoin:tokens"), []string{"rights-missing"}},
	{"a right is missing", kubectl("patch", "clusterrole", "kubejoin", "--type=json", "-p", `[{"op":"remove","path":"/rules/1"}]`), []string{"rights-missing"}},
	{"cluster-info not public", kubectl("-n", "kube-public", "delete", "rolebinding", "kubeadm:bootstrap-signer-clusterinfo"), []string{"cluster-info-not-public"}},

	{"token never expires", func(t *testing.T, p *patient) { p.secret(t, tokens.Generate(), nil) }, []string{"token-never-expires"}},
	{"control plane without an upload", func(t *testing.T, p *patient) {
		for _, phase := range []string{"ca", "front-proxy-ca", "etcd-ca", "sa"} { // the files that the command uploads
			must.OK(t, exec.CommandContext(t.Context(), filepath.Join(p.Bin, "kubeadm"), "init", "phase", "certs", phase, "--cert-dir", p.pki, "--kubernetes-version", p.Version).Run())
		}
		p.CreateToken(t, tokens.Limits{MaxNodes: 1, Role: tokens.RoleControlPlane})
	}, []string{"upload-missing"}},
	{"picked token", func(t *testing.T, p *patient) {
		token := must.Value(tokens.New("picked", "kubernetes2026ab"))(t)
		p.secret(t, token, map[string]string{"expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
	}, []string{"token-guessable"}},
	{"published token", func(t *testing.T, p *patient) {
		p.secret(t, tokens.Generate(), map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef"})
	}, []string{"token-guessable"}},
	{"malformed token", func(t *testing.T, p *patient) {
		p.secret(t, tokens.Generate(), map[string]string{"token-secret": "short"})
	}, []string{"token-malformed"}},
	{"malformed limits", func(t *testing.T, p *patient) {
		token := p.CreateToken(t, tokens.Limits{})
		p.RunKubectl(t, "-n", "kube-system", "annotate", "secret", "bootstrap-token-"+token.ID(), "kubejoin.io/max-nodes=many")
	}, []string{"token-malformed"}},
}

// kubectl returns a function that causes a fault with kubectl.
func kubectl(args ...string) func(*testing.T, *patient) {
	return func(t *testing.T, p *patient) { t.Helper(); p.RunKubectl(t, args...) }
}

// secret creates the Secret of a token as another tool would.
func (p *patient) secret(t *testing.T, token tokens.Token, data map[string]string) {
	t.Helper()
	all := map[string]string{"token-id": token.ID(), "token-secret": token.RevealSecret(), "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true"}
	for key, value := range data {
		all[key] = value
	}
	must.Value(p.Client().CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + all["token-id"]}, Type: "bootstrap.kubernetes.io/token", StringData: all,
	}, metav1.CreateOptions{}))(t)
}

// TestDoctor injects faults one after the other, and mends each with the commands of its findings.
func TestDoctor(t *testing.T) {
	harness.Parallel(t)
	p := newPatient(t)
	url := []string{"--url=https://" + p.Endpoint}
	p.healthy(t)
	p.healthy(t, url...)
	for _, fault := range faults {
		if !t.Run(fault.name, func(t *testing.T) {
			fault.inject(t, p)
			p.finds(t, nil, fault.want...)
			p.mend(t)
			p.healthy(t)
		}) {
			return // the next one would also find this fault
		}
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"anonymous access", p.anonymous},
		{"pins", p.pins},
		{"clock", p.clock},
		{"nodes", p.nodes},
		{"less rights", p.lessRights},
		{"no cluster", p.noCluster},
		{"no namespace", p.noNamespace},
		{"spent token", p.spentToken}, // this test stops kubejoin
		{"without kubejoin", p.withoutKubejoin},
	} {
		if !t.Run(part.name, part.run) {
			return
		}
	}
	p.onlyReads(t)
}

// rogue causes a fault on the control plane, and a worker posts the Pod of a kube-apiserver without the fault. Workers can
// post such Pods, but cannot label their Nodes as control planes.
func rogue(t *testing.T, p *patient) {
	p.controlPlane(t, good+"  - {name: enable-admission-plugins, value: AlwaysPullImages}\n", handedOver)
	node := must.Value(p.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "rogue"}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		core := p.Client().CoreV1()
		if err := errors.Join(
			core.Pods("kube-system").Delete(context.Background(), "kube-apiserver-rogue", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}),
			core.Nodes().Delete(context.Background(), "rogue", metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
	})
	config := must.Value(p.Config(p.Kubeconfig()))(t)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:rogue", Groups: []string{"system:nodes", "system:authenticated"}}
	worker := must.Value(kubernetes.NewForConfig(config))(t)
	label := []byte(`{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`)
	if _, err := worker.CoreV1().Nodes().Patch(t.Context(), "rogue", types.MergePatchType, label, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a worker labels its Node as a control plane: %v", err)
	}
	pod := &corev1.Pod{}
	must.OK(t, yaml.UnmarshalStrict(harness.ReadFile(t, filepath.Join(p.manifests, "kube-apiserver.yaml")), pod))
	pod.Name, pod.Spec.NodeName = "kube-apiserver-rogue", "rogue"
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.MirrorPodAnnotationKey, "0")
	controller := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &controller}}
	command := pod.Spec.Containers[0].Command
	for i := range command {
		command[i] = strings.ReplaceAll(command[i], "AlwaysPullImages", "NodeRestriction")
	}
	harness.Wait(t, "a mirror pod of a worker", func() error { // NodeRestriction reads the Node from a cache that may lag
		_, err := worker.CoreV1().Pods("kube-system").Create(t.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// healthy checks that a cluster has no findings.
func (p *patient) healthy(t *testing.T, args ...string) {
	t.Helper()
	stdout, stderr, code := p.run(t, p.reader, args...)
	if code != 0 || stderr != "" || !strings.HasSuffix(stdout, ", errors: 0, warnings: 0, not checked: 0\n") || strings.Count(stdout, "\n") != 1 {
		t.Fatalf("healthy cluster: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// finds checks that doctor has exactly these findings.
func (p *patient) finds(t *testing.T, args []string, want ...string) doctor.Diagnosis {
	t.Helper()
	r := p.report(t, args...)
	if !slices.Equal(ids(r), want) {
		t.Errorf("doctor %q: got %+v, want %q", args, r.Findings, want)
	}
	return r
}

// anonymous checks the address of --advertise, and anonymous access, which is not needed with this flag.
func (p *patient) anonymous(t *testing.T) {
	p.finds(t, []string{"--advertise=" + p.Endpoint}, "anonymous-on", "cluster-info-public")
	p.finds(t, []string{"--advertise=" + harness.FreeAddress(t)}, "advertise-unreachable")
	other := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	p.finds(t, []string{"--advertise=" + other.Listener.Addr().String()}, "advertise-untrusted")
	// This server has a certificate of the cluster CA.
	certificate := must.Value(tls.LoadX509KeyPair(filepath.Join(p.Dir, "pki", "apiserver.crt"), filepath.Join(p.Dir, "pki", "apiserver.key")))(t)
	foreign := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{Data: map[string]string{clusterinfo.KubeconfigKey: "other"}})
	}))
	foreign.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	foreign.StartTLS()
	t.Cleanup(foreign.Close)
	p.finds(t, []string{"--advertise=" + foreign.Listener.Addr().String()}, "advertise-other-cluster")

	// A Pod of kubejoin has the address in its flags.
	must.Value(p.Client().CoreV1().Pods("kubejoin-system").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kubejoin", Labels: map[string]string{"app.kubernetes.io/name": "kubejoin"}, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "0"}},
		Spec:       corev1.PodSpec{NodeName: "control-plane", Containers: []corev1.Container{{Name: "kubejoin", Image: "kubejoin", Args: []string{"serve", "--advertise=" + p.Endpoint}}}},
	}, metav1.CreateOptions{}))(t)
	p.finds(t, nil, "anonymous-on", "cluster-info-public")
	p.RunKubectl(t, "-n", "kubejoin-system", "delete", "pod", "kubejoin", "--grace-period=0", "--force")

	// withoutKubejoin restarts the API server later with the file that the command writes.
	p.mend(t, "--advertise="+p.Endpoint)
	if manifest := harness.ReadFile(t, filepath.Join(p.manifests, "kube-apiserver.yaml")); !bytes.Contains(manifest, []byte("- --authentication-config=/etc/kubernetes/pki/authentication.yaml\n")) {
		t.Errorf("kube-apiserver has no --authentication-config:\n%s", manifest)
	}
	p.finds(t, []string{"--advertise=" + p.Endpoint}, "anonymous-on") // the API server still runs with anonymous access
	p.mend(t)
	p.healthy(t)
}

func (p *patient) pins(t *testing.T) {
	p.finds(t, []string{"--discovery-token-ca-cert-hash=sha256:" + strings.Repeat("0", 64)}, "pin-mismatch")
	cas := must.Value(clusterinfo.ParseCAs(harness.ReadFile(t, p.CAFile())))(t)
	p.healthy(t, "--discovery-token-ca-cert-hash="+clusterinfo.Pin(cas[0]))
}

func (p *patient) clock(t *testing.T) {
	for _, skew := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		config := must.Value(p.Config(p.reader))(t)
		facts := must.Value(doctor.Read(t.Context(), doctor.Options{
			Cluster: config, URL: "https://" + p.Endpoint, Version: "v9.9.9", Now: func() time.Time { return time.Now().Add(skew) },
		}))(t)
		r := doctor.Diagnose(facts).Without([]string{"loopback-address"}) // as patient.run does
		if !slices.Equal(ids(r), []string{"clock-skew"}) || len(r.Findings) != 2 {
			t.Errorf("%s: got %+v, want clock-skew", skew, r.Findings)
		}
		// This build has no version.
		if len(r.Unchecked) != 1 || r.Unchecked[0].Check != "kubejoin-version" {
			t.Errorf("unchecked: %+v, want the version", r.Unchecked)
		}
	}
}

func (p *patient) nodes(t *testing.T) {
	nodes := p.Client().CoreV1().Nodes()
	node := must.Value(nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gone-1"}}, metav1.CreateOptions{}))(t)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", LastTransitionTime: metav1.NewTime(time.Now().Add(-time.Hour))}}
	must.Value(nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))(t)
	p.finds(t, nil, "node-not-ready")
	p.RunKubectl(t, "delete", "node", "gone-1")
	p.healthy(t)
}

// spentToken lets kube-controller-manager add a signature again that kubejoin has removed. After that, neither of them
// writes, and doctor must report the signature.
func (p *patient) spentToken(t *testing.T) {
	token := p.CreateToken(t, tokens.Limits{MaxNodes: 1})
	must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, p.Cluster, token.ID()), "spends", certificates.KubeAPIServerClientKubeletSignerName, "left-1"))
	p.WaitIssued(t, "spends")
	must.Value(p.Client().CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "left-1"}}, metav1.CreateOptions{}))(t)
	p.WaitOutput(t, []string{"claim", "list"}, "left-1", token.ID(), "yes")
	p.RunKubectl(t, "delete", "node", "left-1")
	p.WaitUnclaimed(t, "left-1")
	signs := func(want bool) {
		t.Helper()
		harness.Wait(t, fmt.Sprintf("a signature of the spent token: %t", want), func() error {
			if (p.ClusterInfo(t)[clusterinfo.SignatureKey(token.ID())] != "") != want {
				return errors.New("not yet")
			}
			return nil
		})
	}
	p.Stop(20 * time.Second)
	p.Site.Start(t, "--kubeconfig="+p.Kubeconfig()) // kubejoin looks for spent tokens at its start, and then once a minute
	signs(false)
	p.healthy(t)
	p.controlPlane(t, good, `  - {name: controllers, value: "*,bootstrapsigner,-csrapproving,-csrsigning,-csrcleaner"}`+"\n")
	kcm := must.Value(p.StartKCM(t.Context(), "--controllers=bootstrap-signer-controller"))(t)
	signs(true)
	p.WaitClusterInfoUnchanged(t)
	signs(true)
	p.finds(t, nil, "kcm-signs-cluster-info")
	kcm.Stop(0)
	p.mend(t)
	p.healthy(t)
}

// lessRights checks that doctor reports each check that it could not make.
func (p *patient) lessRights(t *testing.T) {
	nobody := must.Value(p.ServiceAccountKubeconfig(t.Context(), "doctors", "nobody"))(t)
	stdout, stderr, code := p.run(t, nobody)
	if code != 2 || stderr != "" {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	for _, want := range []string{
		"tokens: could not check: need list on secrets in kube-system\n",
		"kube-controller-manager: could not check: need list on pods in kube-system\n",
		"kubelet-ca: could not check: need list on pods in kube-system\n",
		"approval-bindings: could not check: need list on clusterroles and clusterrolebindings\n",
		"kubejoin: could not check: need get on leases in kubejoin-system\n",
		"requests: could not check: need list on certificatesigningrequests\n",
		"nodes: could not check: need list on nodes\n",
		"join-config: could not check: need get on configmaps kubeadm-config, kubelet-config and kube-proxy in kube-system\n",
		", errors: 0, warnings: 0, not checked: 31\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	// This cluster has no Pods of a control plane.
	p.RunKubectl(t, "-n", "kube-system", "delete", "pods", "-l", "tier=control-plane", "--grace-period=0", "--force")
	stdout, _, code = p.run(t, p.reader)
	if code != 2 || !strings.Contains(stdout, "kube-controller-manager: could not check: kube-controller-manager has no visible static Pod on control-plane") {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	p.post(t)
	p.healthy(t)
}

func (p *patient) noCluster(t *testing.T) {
	content := bytes.ReplaceAll(harness.ReadFile(t, p.reader), []byte(p.Address), []byte(harness.FreeAddress(t)))
	file := filepath.Join(t.TempDir(), "unreachable.conf")
	must.OK(t, os.WriteFile(file, content, 0o600))
	if stdout, stderr, code := p.run(t, file); code != 2 || stdout != "" || !strings.Contains(stderr, "connection refused") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
}

// noNamespace deletes kubejoin-system with its roles. kubejoin must report that it is not ready.
func (p *patient) noNamespace(t *testing.T) {
	p.RunKubectl(t, "delete", "namespace", "kubejoin-system", "--wait=false")
	namespaces := p.Client().CoreV1().Namespaces()
	namespace := must.Value(namespaces.Get(t.Context(), "kubejoin-system", metav1.GetOptions{}))(t)
	namespace.Spec.Finalizers = nil // because no namespace controller runs
	must.Value(namespaces.Finalize(t.Context(), namespace, metav1.UpdateOptions{}))(t)
	p.finds(t, []string{"--skip=kubejoin-not-running"}, "namespace-missing") // after a while, kubejoin cannot renew its Lease
	harness.Wait(t, "failed check claims", func() error {
		for _, f := range p.report(t, "--url=https://"+p.Endpoint).Findings {
			if f.ID == "kubejoin-not-ready" && strings.Contains(f.Message, "claims failed: namespace does not exist: kubejoin-system") {
				return nil
			}
		}
		return fmt.Errorf("/readyz does not name the namespace")
	})
	harness.Wait(t, "Event on the namespace", func() error {
		message, err := p.Kubectl(t.Context(), "-n", "default", "get", "events", "--field-selector=involvedObject.kind=Namespace,reason=ClaimsUnavailable", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(message, "kubectl create namespace kubejoin-system") {
			err = fmt.Errorf("got %q", message)
		}
		return err
	})
	created := time.Now()
	p.mend(t, "--skip=kubejoin-not-running")
	harness.Wait(t, "a new leader", func() error {
		// No namespace controller has deleted the old Lease, which looks held for 40 s after its last renewal.
		lease, err := p.Client().CoordinationV1().Leases("kubejoin-system").Get(t.Context(), "kubejoin", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if renewed := lease.Spec.RenewTime; renewed == nil || renewed.Time.Before(created) {
			return fmt.Errorf("last renewed at %v", renewed)
		}
		if r := p.report(t); len(r.Findings) > 0 {
			return fmt.Errorf("%+v", r.Findings)
		}
		return nil
	})
}

// withoutKubejoin tests faults that a running kubejoin would repair.
func (p *patient) withoutKubejoin(t *testing.T) {
	const stopped = "kubejoin-not-running"
	p.Stop(20 * time.Second)
	r := p.finds(t, []string{"--url=https://" + p.Endpoint}, "kubejoin-unreachable")
	if r = p.finds(t, nil, stopped); r.Findings[0].Severity != doctor.Error {
		t.Errorf("got %+v", r.Findings[0])
	}
	p.CreateToken(t, tokens.Limits{})
	p.RequestCertificate(t, "waiting", certificates.KubeletServingSignerName)
	harness.WaitFor(t, 2*time.Minute, "findings after half a minute", func() error {
		if got, want := ids(p.report(t)), []string{"cluster-info-unsigned", "csr-pending", stopped}; !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
	p.RunKubectl(t, "delete", "csr", "waiting")
	p.RunKubectl(t, "-n", "kube-system", "delete", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token")
	p.finds(t, nil, stopped)

	server, own, err := clusterinfo.ParseKubeconfig([]byte(p.ClusterInfo(t)[clusterinfo.KubeconfigKey]))
	if err != nil {
		t.Fatal(err)
	}
	good := must.Value(clusterinfo.Kubeconfig(server, own))(t)
	other := must.Value(signer.GenerateCA("other", time.Now(), 20*24*time.Hour))(t)
	otherCA := must.Value(clusterinfo.Kubeconfig(server, other.Bundle()))(t)
	closed := must.Value(clusterinfo.Kubeconfig("https://"+harness.FreeAddress(t), own))(t)
	expired := certtest.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	}, nil)
	ended := must.Value(clusterinfo.Kubeconfig(server, []*x509.Certificate{expired.Leaf}))(t)
	for _, test := range []struct {
		name       string
		kubeconfig []byte
		want       []string
	}{
		{"unreachable server", closed, []string{"cluster-info-server-unreachable", stopped}},
		{"another cluster, CA ends soon", otherCA, []string{"ca-expires-soon", "cluster-info-other-ca", "cluster-info-server-untrusted", stopped}},
		{"expired CA", ended, []string{"ca-expired", "cluster-info-other-ca", "cluster-info-server-untrusted", stopped}},
		{"malformed", []byte("?"), []string{"cluster-info-malformed", stopped}},
		{"as before", good, []string{stopped}},
	} {
		patch := must.Value(json.Marshal(map[string]any{"data": map[string]string{clusterinfo.KubeconfigKey: string(test.kubeconfig)}}))(t)
		p.RunKubectl(t, "-n", "kube-public", "patch", "configmap", "cluster-info", "-p", string(patch))
		t.Run(test.name, func(t *testing.T) { p.finds(t, nil, test.want...) })
	}
	p.RunKubectl(t, "-n", "kube-public", "delete", "configmap", "cluster-info")
	p.finds(t, nil, "cluster-info-missing", stopped)

	p.StopAPIServer()
	must.OK(t, p.StartAPIServer(t.Context(), "--authentication-config="+filepath.Join(p.pki, "authentication.yaml")))
	p.finds(t, nil, "cluster-info-missing", "cluster-info-not-public", stopped)
	probe := exec.CommandContext(t.Context(), "curl", "--silent", "--show-error", "--fail", "--cacert", p.CAFile(), "https://"+p.Address+"/livez")
	if output, err := probe.CombinedOutput(); err != nil {
		t.Errorf("probe of the kubelet: %v\n%s", err, output)
	}
}

// onlyReads checks that doctor sent only reads and dry runs, and that its reader was allowed all of them.
func (p *patient) onlyReads(t *testing.T) {
	t.Helper()
	seen := map[string]int{}
	for call, err := range p.audit.Calls() {
		must.OK(t, err)
		if call.User.Username == "system:anonymous" && !strings.HasPrefix(call.UserAgent, "kubejoin") && call.Verb == "get" {
			continue // a request of a health probe
		}
		if call.Verb == "create" && strings.HasSuffix(call.RequestURI, "?dryRun=All") {
			continue // a dry run changes nothing, and kube-apiserver may refuse it to a reader
		}
		seen[call.Verb]++
		if !slices.Contains([]string{"get", "list", "watch"}, call.Verb) {
			t.Errorf("%s %s %s", call.User.Username, call.Verb, call.RequestURI)
		}
		if call.User.Username == reader && call.ResponseStatus.Code == http.StatusForbidden {
			t.Errorf("refused: %s %s", call.Verb, call.RequestURI)
		}
	}
	if seen["get"] < 100 || seen["list"] < 100 {
		t.Errorf("got %v, want hundreds of requests: this test could not fail", seen)
	}
	t.Logf("requests by verb: %v", seen)
}
