package access

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"sigs.k8s.io/yaml"
)

// staticBlock matches a block of docs/static-admission.md: either commands, or the lists for kubeadm.
var staticBlock = regexp.MustCompile("(?ms)^(?:<!-- run by TestStaticPolicyRestrictsKubejoin -->\n```sh|```yaml)\n(.*?)```")

// TestStaticPolicyRestrictsKubejoin pastes the commands of docs/static-admission.md, deletes the policy in the API, and
// starts kube-apiserver with the flags that kubeadm would then set. It catches a deploy/static-admission.yaml that
// kube-apiserver does not read or that restricts less, and a policy that a cluster-admin can delete.
func TestStaticPolicyRestrictsKubejoin(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	if version.MustParseGeneric(s.Version).LessThan(version.MustParseGeneric("1.37")) {
		t.Skipf("kube-apiserver %s reads no admission policies from files: needs Kubernetes 1.37", s.Version)
	}
	dir, work, bin, written := filepath.Join(s.Dir, "kubejoin-admission"), t.TempDir(), t.TempDir(), t.TempDir()
	inDir := func(text string) string { return strings.ReplaceAll(text, "/etc/kubernetes/kubejoin-admission", dir) }
	var blocks []string
	for _, m := range staticBlock.FindAllSubmatch(harness.ReadFile(t, harness.RepositoryFile(t, "docs/static-admission.md")), -1) {
		blocks = append(blocks, inDir(string(m[1])))
	}
	if len(blocks) != 6 {
		t.Fatalf("docs/static-admission.md has %d blocks, want 6: files, read, lists, store, manifest, check", len(blocks))
	}
	files, read, lists, store, manifest, check := blocks[0], blocks[1], blocks[2], blocks[3], blocks[4], blocks[5]
	must.OK(t, os.Symlink(harness.RepositoryFile(t, "deploy"), filepath.Join(work, "deploy")))
	for program, script := range map[string]string{
		"sudo": `exec "$@"`,
		// A dry run writes the same manifest, but not to /etc/kubernetes. kubeadm refuses a loopback address, so use an
		// address from RFC 5737.
		"kubeadm": `case "$*" in
*control-plane*)
	printf -- '---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.10}\n' >>cluster.yaml
	set -- "$@" --dry-run ;;
*)
	set -- "$@" --kubeconfig "$KUBECONFIG" ;;
esac
exec ` + filepath.Join(s.Bin, "kubeadm") + ` "$@"`,
	} {
		must.OK(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	paste := func(script string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
		cmd.Dir = work
		cmd.Env = append(os.Environ(), "KUBECONFIG="+s.Kubeconfig(), "HOME="+work, "KUBEADM_INIT_DRYRUN_DIR="+written,
			"PATH="+bin+":"+s.Bin+":"+os.Getenv("PATH"))
		output, err := cmd.CombinedOutput()
		return string(output), err
	}
	mustPaste := func(script string) {
		t.Helper()
		if output, err := paste(script); err != nil {
			t.Fatalf("%v\n%s\n%s", err, script, output)
		}
	}

	mustPaste(files)
	config := filepath.Join(dir, "config.yaml")
	must.OK(t, os.WriteFile(config, []byte(inDir(string(harness.ReadFile(t, config)))), 0o600))
	mustPaste(read)
	harness.AppendLists(t, filepath.Join(work, "cluster.yaml"), []byte(lists))
	mustPaste(store)
	mustPaste(manifest)
	policies, flag := filepath.Join(dir, "policies"), "--admission-control-config-file="+filepath.Join(dir, "config.yaml")
	pod := &corev1.Pod{}
	must.OK(t, yaml.UnmarshalStrict(harness.ReadFile(t, filepath.Join(written, "kube-apiserver.yaml")), pod))
	if !slices.Contains(pod.Spec.Containers[0].Command, flag) {
		t.Errorf("kubeadm writes the flags %q, want %s", pod.Spec.Containers[0].Command, flag)
	}
	if !slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == dir }) ||
		!slices.ContainsFunc(pod.Spec.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == dir && m.ReadOnly }) {
		t.Errorf("kubeadm does not mount %s into kube-apiserver", dir)
	}

	const static = "kubejoin-secrets.static.k8s.io"
	harness.Wait(t, "a refusal by the objects in the API alone", func() error {
		if output, err := paste(check); err == nil || !strings.Contains(output, "'kubejoin-secrets'") {
			return fmt.Errorf("%v, got %s", err, output)
		}
		return nil
	})
	s.StopAPIServer()
	must.OK(t, s.StartAPIServer(t.Context(), flag))
	if output, err := paste(check); err == nil || !strings.Contains(output, "'"+static+"'") {
		t.Errorf("the check with both: %v, got %s, want a refusal by %s", err, output, static)
	}
	s.RunKubectl(t, "delete", "validatingadmissionpolicies,validatingadmissionpolicybindings", "--all")
	for _, kind := range []string{"validatingadmissionpolicy", "validatingadmissionpolicybinding"} {
		if output, err := s.Kubectl(t.Context(), "delete", kind, static); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Errorf("kubectl delete %s: got %v %s, want that the API does not have it", kind, err, output)
		}
	}
	// kube-apiserver refuses an object with this name. Such an object would suggest that the policy exists in the API.
	if _, err := s.Kubectl(t.Context(), "apply", "-f", policies); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("kubectl apply of the file: got %v, want that its name is reserved", err)
	}
	checkSecretWrites(t, s)

	must.OK(t, os.WriteFile(filepath.Join(policies, "a.yaml"), []byte("kind: Unknown\n"), 0o600))
	failed := regexp.MustCompile(`(?m)^apiserver_manifest_admission_config_controller_automatic_reloads_total\{.*status="failure"`)
	harness.Wait(t, "the metric of a file that kube-apiserver cannot use", func() error {
		metrics, err := s.Kubectl(t.Context(), "get", "--raw", "/metrics")
		if err == nil && !failed.MatchString(metrics) {
			err = errors.New("not there")
		}
		return err
	})
	if output, err := paste(check); err == nil || !strings.Contains(output, static) {
		t.Errorf("the check with an invalid file: %v, got %s, want a refusal by %s", err, output, static)
	}
	// Without the file, the Secret is accepted. So the refusals above come from the file.
	for _, name := range []string{"a.yaml", "kubejoin.yaml"} {
		must.OK(t, os.Remove(filepath.Join(policies, name)))
	}
	harness.Wait(t, "the end of the policy", func() error {
		_, err := paste(check)
		return err
	})
}
