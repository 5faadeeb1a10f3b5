package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/doctor"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// reader is the user of 'kubejoin doctor' in these tests. It may only get and list.
const reader = "system:serviceaccount:doctors:reader"

// A patient is a cluster with kubejoin, and with the Pods of a kubeadm control plane. The real API server and
// kube-controller-manager run without Pods.
type patient struct {
	*harness.Site
	audit     cluster.AuditLog
	reader    string // kubeconfig
	manifests string // folder of the static pods
	pki       string // folder that replaces /etc/kubernetes/pki in commands
	bin       string // folder with kubejoin and kubectl
}

func newPatient(t *testing.T) *patient {
	t.Helper()
	p := &patient{audit: harness.NewAuditLog(t, `- {level: Metadata, users: ["`+reader+`", "system:anonymous"]}`+"\n- level: None\n"), bin: t.TempDir(), pki: t.TempDir()}
	p.Site = harness.PrepareSite(t, cluster.Options{APIServerFlags: p.audit.Flags()})
	// kubejoin runs as administrator, so that it works without the objects that the tests delete.
	p.Site.Start(t, "--kubeconfig="+p.Kubeconfig(), "--listen="+reachable(t))
	p.WaitLeader(t)

	p.reader = must.Value(p.ServiceAccountKubeconfig(t.Context(), "doctors", "reader"))(t)
	p.RunKubectl(t, "create", "clusterrole", "doctor", "--verb=get,list",
		"--resource=namespaces,serviceaccounts,pods,secrets,configmaps,nodes,leases.coordination.k8s.io,certificatesigningrequests.certificates.k8s.io,"+
			"roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io,clusterroles.rbac.authorization.k8s.io,clusterrolebindings.rbac.authorization.k8s.io,"+
			"validatingadmissionpolicies.admissionregistration.k8s.io,validatingadmissionpolicybindings.admissionregistration.k8s.io")
	p.RunKubectl(t, "create", "clusterrolebinding", "doctor", "--clusterrole=doctor", "--serviceaccount=doctors:reader")
	for name, program := range map[string]string{"kubejoin": harness.Kubejoin(), "kubectl": filepath.Join(p.Bin, "kubectl"), "kubeadm": filepath.Join(p.Bin, "kubeadm")} {
		must.OK(t, os.Symlink(program, filepath.Join(p.bin, name)))
	}
	p.node(t)
	p.controlPlane(t, good, handedOver)
	return p
}

// reachable returns an unused address of this machine that is no loopback address.
func reachable(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(harness.FreeAddress(t))
	must.OK(t, err)
	for _, a := range must.Value(net.InterfaceAddrs())(t) {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			return net.JoinHostPort(n.IP.String(), port)
		}
	}
	t.Fatal("this machine has only loopback addresses, want one that other machines reach")
	return ""
}

// node creates the Node of the control plane. It has no kubelet, so its condition does not change immediately.
func (p *patient) node(t *testing.T) {
	t.Helper()
	nodes := p.Client().CoreV1().Nodes()
	node := must.Value(nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "control-plane", Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}},
	}, metav1.CreateOptions{}))(t)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(time.Now().Add(24 * time.Hour))}}
	must.Value(nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))(t)
}

// Settings of kubeadm with which doctor has no findings.
const (
	good       = "  - {name: kubelet-certificate-authority, value: /etc/kubernetes/pki/ca.crt}\n"
	handedOver = `  - {name: controllers, value: "*,-csrapproving,-csrsigning,-csrcleaner"}` + "\n"
)

// controlPlane writes the manifests of the real kubeadm with more flags, and posts their Pods.
func (p *patient) controlPlane(t *testing.T, apiServer, controllerManager string) {
	t.Helper()

	p.manifests = must.Value(os.MkdirTemp(p.WorkDir, "manifests-"))(t)
	document := "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\n" +
		"localAPIEndpoint: {advertiseAddress: 192.0.2.10}\n" + // RFC 5737: kubeadm refuses a loopback address
		"nodeRegistration: {name: control-plane, criSocket: unix:///run/none.sock}\n" +
		"---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: " + p.Version + "\n"
	if apiServer != "" {
		document += "apiServer:\n  extraArgs:\n" + apiServer
	}
	if controllerManager != "" {
		document += "controllerManager:\n  extraArgs:\n" + controllerManager
	}
	file := filepath.Join(p.manifests, "kubeadm.config")
	must.OK(t, os.WriteFile(file, []byte(document), 0o600))
	// A dry run writes the same manifests, but not to /etc/kubernetes.
	kubeadm := exec.CommandContext(t.Context(), filepath.Join(p.Bin, "kubeadm"), "init", "phase", "control-plane", "all", "--dry-run", "--config", file)
	kubeadm.Env = append(os.Environ(), "KUBEADM_INIT_DRYRUN_DIR="+p.manifests, "HOME="+p.manifests)
	if output, err := kubeadm.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	p.post(t)
}

// post creates the mirror Pods of the manifests, as the kubelet of a control plane does.
func (p *patient) post(t *testing.T) {
	t.Helper()
	pods := p.Client().CoreV1().Pods("kube-system")
	for _, component := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		pod := &corev1.Pod{}
		must.OK(t, yaml.UnmarshalStrict(harness.ReadFile(t, filepath.Join(p.manifests, component+".yaml")), pod))
		pod.Name += "-control-plane"
		pod.Spec.NodeName = "control-plane"
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, corev1.MirrorPodAnnotationKey, "0")
		err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		must.Value(pods.Create(t.Context(), pod, metav1.CreateOptions{}))(t)
	}
}

// run runs kubejoin doctor with a kubeconfig.
func (p *patient) run(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), harness.Kubejoin(), append([]string{"doctor", "--kubeconfig=" + kubeconfig, "--skip=loopback-address"}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	p.Secrets.CheckAbsent(t, "the output of doctor", out.String()+errs.String())
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// report returns the diagnosis that doctor prints as JSON.
func (p *patient) report(t *testing.T, args ...string) doctor.Diagnosis {
	t.Helper()
	stdout, stderr, code := p.run(t, p.reader, append(args, "-o", "json")...)
	var r doctor.Diagnosis
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || stderr != "" {
		t.Fatalf("%v, %d\n%s%s", err, code, stdout, stderr)
	}
	want := 0
	switch {
	case len(r.Findings) > 0:
		want = 1
	case len(r.Unchecked) > 0:
		want = 2
	}
	if code != want || len(r.Unchecked) > 0 {
		t.Errorf("exit code %d with %d findings, could not check %v", code, len(r.Findings), r.Unchecked)
	}
	return r
}

// ids returns the IDs of findings, sorted and unique.
func ids(r doctor.Diagnosis) []string {
	var all []string
	for _, f := range r.Findings {
		all = append(all, f.ID)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// mend runs the commands of all findings as administrator, in the root of the repository. Commands for the control plane's
// machine change the folder of manifests, and its Pods.
func (p *patient) mend(t *testing.T, args ...string) {
	t.Helper()
	commands, _, _ := p.run(t, p.reader, append(args, "--fix")...)
	copies := t.TempDir()
	script := strings.NewReplacer("--config /root/kubeadm.yaml", "--config "+copies+"/kubeadm.yaml --kubeconfig "+p.Kubeconfig(), "/etc/kubernetes/manifests/", p.manifests+"/", "/root/", copies+"/", "> /etc/kubernetes/pki/", "> "+p.pki+"/", "--control-plane", "--control-plane --pki-dir "+p.pki).Replace(commands)
	shell := exec.CommandContext(t.Context(), "sh", "-ec", script)
	shell.Dir = harness.RepositoryFile(t, "")
	shell.Env = append(os.Environ(), "KUBECONFIG="+p.Kubeconfig(), "HOME="+copies, "PATH="+p.bin+":"+os.Getenv("PATH"))
	if output, err := shell.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, commands, output)
	}
	if strings.Contains(commands, "/etc/kubernetes/manifests/") {
		p.post(t)
	}
}
