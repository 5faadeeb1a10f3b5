package access

import (
	"crypto/x509/pkix"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/harness"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeadmSubjects are the subjects of kubeadm's certificates, by signer.
var kubeadmSubjects = map[string]pkix.Name{
	"front-proxy-client": {CommonName: "front-proxy-client"},
	"admin.conf":         {CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}},
	"super-admin.conf":   {CommonName: "kubernetes-super-admin", Organization: []string{"system:masters"}},
}

// kubeadmRequest returns the request for a row of the table: a request to a signer of kubeadm's certificates.
func kubeadmRequest(t *testing.T, route string) (path, contentType, body string, status int) {
	t.Helper()
	_, path, _ = strings.Cut(route, " ")
	_, name, _ := strings.Cut(path, "signer=kubeadm.kubejoin.io/")
	subject, found := kubeadmSubjects[name]
	if !found {
		t.Fatalf("the table has a route %s of which this test knows nothing", route)
	}
	_, request := keyAndRequest(t, subject.CommonName, subject.Organization...)
	return path + "&usages=digital+signature,key+encipherment,client+auth", "application/pkcs10", request, 200
}

// kubeadmSigners writes a configuration with the signers of kubeadm's certificates into the folder of their CAs.
func kubeadmSigners(t *testing.T, dir string) (file string) {
	t.Helper()
	content := must.Value(exec.CommandContext(t.Context(), harness.Kubejoin(), "signer-config", "default", "--kubeadm").Output())(t)
	for _, name := range []string{"front-proxy-ca", "etcd/ca"} {
		if _, err := os.Stat(filepath.Join(dir, name+".key")); err == nil {
			continue
		}
		ca := must.Value(signer.GenerateCA(name, time.Now(), 24*time.Hour))(t)
		certificates, key, err := ca.PEM()
		if err != nil {
			t.Fatal(err)
		}
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		for suffix, content := range map[string][]byte{".crt": certificates, ".key": key} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name+suffix), content, 0o600))
		}
	}
	file = filepath.Join(dir, "signers.yaml")
	must.OK(t, os.WriteFile(file, content, 0o600))
	return file
}

// checkControlPlanes tests every cell of the tables about control planes with a request.
func checkControlPlanes(t *testing.T, s *harness.Site, w tableCheck) {
	t.Helper()
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/control-planes.yaml"))
	must.Value(s.Client().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ // not with kubectl create, which needs an API resource for signers
		ObjectMeta: metav1.ObjectMeta{Name: "kubeadm-signer"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"sign"}, APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"signers"}, ResourceNames: []string{"kubeadm.kubejoin.io/*"}}},
	}, metav1.CreateOptions{}))(t)
	for name, role := range map[string]string{"control-plane-issuer": "kubejoin:control-plane-issuer", "kubeadm-signer": "kubeadm-signer"} {
		w.callers[name] = []caller{{bearer: createServiceAccount(t, s, name, role)}}
	}
	w.prepare = func(t *testing.T, route, _ string, _ bool) (path, contentType, body string, status int) {
		if _, path, found := strings.Cut(route, " /v1/token/"); found {
			return "/v1/token/" + path, "", "", 200
		}
		return kubeadmRequest(t, route)
	}
	uploads, signers := readAccess(t, "docs/control-planes.md", w.callers), readAccess(t, "docs/credentials.md", w.callers)
	for _, first := range []struct{ who, route string }{{"control-plane-issuer", uploads.rows[0]}, {"kubeadm-signer", signers.rows[0]}} {
		harness.Wait(t, "the rights of "+first.who, func() error {
			path, contentType, body, want := w.prepare(t, first.route, "", true)
			if status, answer := sendAs(t, s.Program, w.callers[first.who][0], "POST", path, contentType, body); status != want {
				return fmt.Errorf("%d %s", status, answer)
			}
			return nil
		})
	}
	every := func(string) bool { return true }
	w.all(t, uploads, every)
	w.all(t, signers, every)
	checkUploadRights(t, s)
}

// checkUploadRights runs each command about uploads as users that have exactly the rights of one row of the documented
// table.
func checkUploadRights(t *testing.T, s *harness.Site) {
	t.Helper()
	rows := readTable(t, "docs/control-planes.md", "`rolebindings`")
	resources := map[string]string{"secrets": "", "configmaps": "", "roles": rbacv1.GroupName, "rolebindings": rbacv1.GroupName}
	kubeconfigs := map[string]string{}
	for i, command := range rows.rows {
		var rules []rbacv1.PolicyRule
		for resource, group := range resources {
			if verbs := rows.cells[command]["`"+resource+"`"]; verbs != "" {
				rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: strings.Split(verbs, ", ")})
			}
		}
		name := fmt.Sprintf("uploader-%d", i)
		must.Value(s.Client().RbacV1().Roles("kube-system").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}, metav1.CreateOptions{}))(t)
		s.RunKubectl(t, "create", "serviceaccount", name)
		s.RunKubectl(t, "create", "rolebinding", name, "--namespace=kube-system", "--role="+name, "--serviceaccount=default:"+name)
		config, admin := clientcmdapi.NewConfig(), s.AdminConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
		config.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: s.RunKubectl(t, "create", "token", name)}
		config.Contexts["x"], config.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
		kubeconfigs[command] = filepath.Join(t.TempDir(), name+".conf")
		must.OK(t, clientcmd.WriteToFile(*config, kubeconfigs[command]))
	}
	run := func(command, as string) error {
		args := append(strings.Fields(command), "--kubeconfig="+kubeconfigs[as])
		if command == "certs upload" {
			args = append(args, "--pki-dir="+filepath.Join(s.Dir, "pki"), "--output=name")
		}
		out, err := exec.CommandContext(t.Context(), harness.Kubejoin(), args...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	allowed := map[string][]string{"certs upload": rows.rows, "certs list": {"certs list"}, "certs delete": {"certs list", "certs delete"}}
	for _, as := range rows.rows {
		harness.Wait(t, "the rights to run "+as, func() error { return run("certs list", as) })
		for _, command := range rows.rows {
			if err := run("certs upload", "certs upload"); err != nil { // creates an upload to list and to delete
				t.Fatal(err)
			}
			err := run(command, as)
			if may := slices.Contains(allowed[as], command); may && err != nil || !may && (err == nil || !strings.Contains(err.Error(), "forbidden")) {
				t.Errorf("%s with the rights of %s: got %v, want it allowed: %v", command, as, err, may)
			}
		}
	}
}
