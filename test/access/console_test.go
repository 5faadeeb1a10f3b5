package access

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestConsoleCommandsGiveViewer runs the commands that 'kubejoin console' prints for a cluster. It catches a command that
// fails, and a token that kubejoin refuses or that can change something.
func TestConsoleCommandsGiveViewer(t *testing.T) {
	harness.Parallel(t)
	s := harness.NewSite(t, cluster.Options{})
	ctx, pods := t.Context(), s.Client().CoreV1().Pods("kubejoin-system")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "kubejoin", Labels: map[string]string{"app.kubernetes.io/name": "kubejoin"}},
		Spec:       corev1.PodSpec{ServiceAccountName: "kubejoin", Containers: []corev1.Container{{Name: "kubejoin", Image: "kubejoin", Ports: []corev1.ContainerPort{{ContainerPort: 9443}}}}},
	}
	pod = must.Value(pods.Create(ctx, pod, metav1.CreateOptions{}))(t)
	pod.Status.Phase, pod.Status.HostIP = corev1.PodRunning, "192.0.2.7"
	must.Value(pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}))(t)
	ca := harness.ReadFile(t, s.CAFile())
	s.RunKubectl(t, "-n", "kubejoin-system", "create", "configmap", "kube-root-ca.crt", "--from-file=ca.crt="+s.CAFile()) // as kube-controller-manager does

	var printed struct {
		URL, CAFile, SaveCA, TokenCommand string
		AccountCommands                   []string
	}
	must.OK(t, json.Unmarshal([]byte(s.CLI(t, "console", "-o", "json")), &printed))
	if printed.URL != "https://192.0.2.7:9443/console" || len(printed.AccountCommands) == 0 {
		t.Errorf("got %+v, want the address of the Pod", printed)
	}
	dir := t.TempDir()
	run := func(command string) string {
		c := exec.CommandContext(ctx, "sh", "-c", command)
		c.Dir, c.Env = dir, append(os.Environ(), "PATH="+s.Bin+":"+os.Getenv("PATH"))
		return string(must.Value(c.Output())(t))
	}
	for _, command := range append(printed.AccountCommands, printed.SaveCA) {
		run(command)
	}
	if saved := must.Value(os.ReadFile(filepath.Join(dir, printed.CAFile)))(t); string(saved) != string(ca) {
		t.Errorf("got %s, want the CA of the cluster", saved)
	}
	bearer := strings.TrimSpace(run(printed.TokenCommand))
	s.Secrets.Add("service account viewer", bearer)
	harness.Wait(t, "the permissions of a viewer", func() error {
		status, body := sendAs(t, s.Program, caller{bearer: bearer}, "GET", "/v1/permissions", "", "")
		var list api.PermissionList
		if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 || len(list.Items) == 0 {
			return fmt.Errorf("%d %s", status, body)
		}
		for _, p := range list.Items {
			if p.Verb != "get" && p.Verb != "list" {
				t.Errorf("the viewer may %s %s", p.Verb, p.Resource)
			}
		}
		return nil
	})
}
