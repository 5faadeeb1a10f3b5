package host

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// clientName is the user of kubejoin's service account. A client certificate of this user has the rights of
// deploy/manifests.
const clientName = "system:serviceaccount:kubejoin-system:kubejoin"

// sandbox runs a command in mount, IPC and UTS namespaces, as a user without capabilities and without a way to more
// privileges. The machine's files are read only and its temporary and home folders are empty. FILES becomes /etc/kubernetes
// or the credentials of a unit. The command can write only to the folder STATE, if it is set.
const sandbox = `set -eu
user=$1 files=$2 target=$3 state=$4 program=$5
shift 5
mkdir -p "$target"
mount -t tmpfs -o mode=755 tmpfs "$target"
cp -r "$files/." "$target"
chown -R "$user:$user" "$target"
if [ -n "$state" ]; then
  mkdir -p /var/lib/kubejoin
  chown "$user:$user" "$state"
  chmod 700 "$state"
  mount --bind "$state" /var/lib/kubejoin
fi
mkdir -p /usr/local/bin
mount -t tmpfs -o mode=755 tmpfs /usr/local/bin
cp "$program" /usr/local/bin/kubejoin
mount -o remount,ro tmpfs /usr/local/bin
mount -o remount,ro "$target"
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=0 tmpfs /root
mount -o remount,bind,ro /
cd /
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
`

// A confined is a command in the sandbox.
type confined struct {
	user          string // user ID
	files, target string
	state         string // empty: no writable folder
	program       string
	args          []string
}

func (c confined) command() *exec.Cmd {
	args := append([]string{"--mount", "--ipc", "--uts", "sh", "-c", sandbox, "sandbox", c.user, c.files, c.target, c.state, c.program}, c.args...)
	return exec.Command("unshare", args...)
}

// build builds kubejoin as for a release. The kubejoin of other tests writes its responses to a file, which the sandbox
// forbids.
func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "kubejoin")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./cmd/kubejoin")
	cmd.Dir, cmd.Env = harness.RepositoryFile(t, ""), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// kubernetesFolder makes a folder like /etc/kubernetes of a control plane. It has the CA, and a kubeconfig that the real
// kubeadm makes with the command that 'kubejoin manifest static-pod' names.
func kubernetesFolder(t *testing.T, s *harness.Site) string {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(dir, "pki"), 0o755))
	harness.ReplaceFile(t, filepath.Join(dir, "pki/ca.crt"), harness.ReadFile(t, s.CAFile()))
	harness.ReplaceFile(t, filepath.Join(dir, "pki/ca.key"), harness.ReadFile(t, s.CAKeyFile()))
	operators := filepath.Join(s.WorkDir, "operators.csv")
	harness.ReplaceFile(t, filepath.Join(dir, "pki/operators.csv"), harness.ReadFile(t, operators))
	config := filepath.Join(dir, "kubeadm.yaml")
	harness.ReplaceFile(t, config, []byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\n"+
		"kubernetesVersion: "+s.Version+"\ncertificatesDir: "+dir+"/pki\ncontrolPlaneEndpoint: "+strings.TrimPrefix(s.Server(), "https://")+"\n"))
	help := must.Value(exec.CommandContext(t.Context(), harness.Kubejoin(), "manifest", "static-pod", "--help").Output())(t)
	command := "kubeadm kubeconfig user --client-name " + clientName
	if !strings.Contains(string(help), command+" ") {
		t.Fatalf("the help of the static pod does not name the command %q", command)
	}
	args := append(strings.Fields(command)[1:], "--config="+config)
	kubeconfig, err := exec.CommandContext(t.Context(), filepath.Join(s.Bin, "kubeadm"), args...).Output()
	if err != nil {
		t.Fatalf("kubeadm: %v", err)
	}
	harness.ReplaceFile(t, filepath.Join(dir, "kubejoin.conf"), kubeconfig)
	return dir
}

// works checks that kubejoin creates and signs tokens, and approves and signs certificates, with its own rights.
func works(t *testing.T, s *harness.Site) {
	t.Helper()
	s.WaitReady(t, s.CAFile())
	if args, _ := s.JoinArgs(t, ""); len(args) < 5 {
		t.Errorf("join command %q", args)
	}
	s.RequestCertificate(t, "worker-1", certificates.KubeAPIServerClientKubeletSignerName)
	s.WaitIssued(t, "worker-1")
}

// It catches a static pod whose arguments, credential or sandbox do not let kubejoin do its work.
func TestStaticPodWorksWithTheKubeconfigOfKubeadm(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.PrepareSite(t, cluster.Options{})
	etc, address := kubernetesFolder(t, s), harness.FreeAddress(t)
	content := must.Value(exec.CommandContext(t.Context(), harness.Kubejoin(), "manifest", "static-pod", "-o", "json", "--",
		"--listen="+address, "--token-auth-file=/etc/kubernetes/pki/operators.csv", "--issuance-record=-").Output())(t)
	var pod corev1.Pod
	must.OK(t, json.Unmarshal(content, &pod))
	for _, m := range pod.Spec.Containers[0].VolumeMounts {
		if !slices.Contains([]string{"/etc/kubernetes/kubejoin.conf", "/etc/kubernetes/pki"}, m.MountPath) || !m.ReadOnly {
			t.Errorf("mount %v, want only the kubeconfig and the CA, read only", m)
		}
	}
	c := confined{user: "0", files: etc, target: "/etc/kubernetes", program: build(t), args: append([]string{"/usr/local/bin/kubejoin"}, pod.Spec.Containers[0].Args...)}
	s.Program = harness.Launch(t, s.WorkDir, address, s.Curlrc(), c.command())
	works(t, s)
}
