package kube_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/explain"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Runs the suggested commands in a shell. Catches a hostile request name that runs another program, or a command that
// does not show the request.
func TestCommandsForHostileNamesRunInShell(t *testing.T) {
	w := newWorld(t)
	machine := w.holder(w.token())
	dir := t.TempDir()
	for node, hostile := range map[string]string{"hostile-1": "x >&2;id>pwned;\x1b[31m", "hostile-2": "y\ntouch pwned\n", "hostile-3": "$(touch pwned)`touch pwned`'\"", "hostile-4": "8w4usg.qwertzuiopasdfgh"} {
		template := w.ask(machine, kubelet, node)
		o, err := machine.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &certificates.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: hostile}, Spec: certificates.CertificateSigningRequestSpec{
				Request: template.Spec.Request, SignerName: kubelet, Usages: template.Spec.Usages,
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("the API server refuses the name %q: %v", hostile, err)
		}
		must.OK(t, w.admin.CertificatesV1().CertificateSigningRequests().Delete(t.Context(), template.Name, metav1.DeleteOptions{}))
		e, err := w.reader.Explain(t.Context(), node)
		if err != nil || e.State != explain.NotApproved || len(e.Next) == 0 {
			t.Fatalf("%+v, %v", e, err)
		}
		text := e.Text()
		if strings.ContainsFunc(strings.ReplaceAll(text, "\n", ""), unicode.IsControl) || strings.Contains(text, hostile) || strings.Contains(text, "qwertz") {
			t.Errorf("request %q: got explanation %q, want it without the name", hostile, text)
		}
		shell := exec.CommandContext(t.Context(), "sh", "-c", strings.Join(e.Next, "\n"))
		shell.Dir, shell.Env = dir, append(os.Environ(), "KUBECONFIG="+w.cluster.Kubeconfig(), "PATH="+w.cluster.Bin+":"+os.Getenv("PATH"))
		out, err := shell.CombinedOutput()
		if err != nil || !strings.Contains(string(out), string(o.UID)) || strings.ContainsFunc(strings.ReplaceAll(string(out), "\n", ""), unicode.IsControl) {
			t.Errorf("%q: %v: %.600q", e.Next, err, out)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
			t.Fatalf("commands %q created files %v, %v, want none", e.Next, files, err)
		}
	}
}
