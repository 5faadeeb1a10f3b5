package join

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// download runs the part of kubeadm join that downloads the files of control planes, on a machine of its own. It
// compares them with those of the cluster.
func download(t *testing.T, s *harness.Site, key string) (output string, err error) {
	t.Helper()
	_, token := s.JoinArgs(t, "?maxNodes=1")
	kubeadm := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-euc", `
		mkdir -p /etc/kubernetes
		mount -t tmpfs tmpfs /etc/kubernetes
		cat >/etc/kubernetes/join.yaml
		"$1" join phase control-plane-prepare download-certs --config /etc/kubernetes/join.yaml
		for file in ca.crt ca.key front-proxy-ca.crt front-proxy-ca.key sa.pub sa.key etcd/ca.crt etcd/ca.key; do
			cmp "$2/$file" "/etc/kubernetes/pki/$file"
		done
		find /etc/kubernetes/pki -type f | wc -l`, "download", filepath.Join(s.Bin, "kubeadm"), filepath.Join(s.Dir, "pki"))
	kubeadm.Env = append(kubeadm.Environ(), "HOME="+t.TempDir())
	kubeadm.Stdin = strings.NewReader(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
controlPlane:
  certificateKey: ` + key + `
  localAPIEndpoint:
    advertiseAddress: 192.0.2.11
discovery:
  bootstrapToken:
    apiServerEndpoint: ` + strings.TrimPrefix(s.Server(), "https://") + `
    token: ` + token.Reveal() + `
    unsafeSkipCAVerification: true
nodeRegistration:
  name: control-2
  criSocket: unix:///run/none.sock
`)
	out, err := kubeadm.CombinedOutput()
	return string(out), err
}

// TestUploadedFilesDownloadUnchanged catches an upload that the real kubeadm cannot download, and a key that still works
// after its upload was replaced or deleted.
func TestUploadedFilesDownloadUnchanged(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.NewSite(t, cluster.Options{})
	pki := "--pki-dir=" + filepath.Join(s.Dir, "pki")
	upload := func() (key, warnings string) {
		t.Helper()
		stdout, stderr, code := s.RunKubejoin(t, "certs", "upload", pki)
		if code != 0 {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
		key = strings.TrimSpace(stdout)
		if _, err := joinformat.ParseCertificateKey(key); err != nil {
			t.Fatal(err)
		}
		s.Secrets.Add("the upload "+key[:4], key)
		return key, stderr
	}
	downloaded := func(key string) {
		t.Helper()
		if output, err := download(t, s, key); err != nil || !strings.HasSuffix(output, "\n8\n") {
			t.Errorf("want 8 files that are equal: %v\n%s", err, output)
		}
	}
	refused := func(key, why string) {
		t.Helper()
		if output, err := download(t, s, key); err == nil || !strings.Contains(output, why) {
			t.Errorf("got %v, want kubeadm to refuse the key: %s\n%s", err, why, output)
		}
	}
	first, warnings := upload()
	if warnings != "" {
		t.Errorf("got warnings for the first upload: %s", warnings)
	}
	downloaded(first)
	if list := s.CLI(t, "certs", "list"); !strings.Contains(list, "ca.crt,ca.key,etcd-ca.crt,etcd-ca.key,front-proxy-ca.crt,front-proxy-ca.key,sa.key,sa.pub") || !strings.Contains(list, " 1h ") {
		t.Errorf("certs list: got\n%s", list)
	}
	second, warnings := upload()
	if !strings.Contains(warnings, "replaced another one") {
		t.Errorf("got no warning for a replaced upload: %s", warnings)
	}
	downloaded(second)
	refused(first, "message authentication failed")
	if out := s.CLI(t, "certs", "delete"); !strings.Contains(out, "deleted") {
		t.Errorf("certs delete: got %s", out)
	}
	refused(second, "This Secret might have expired")
	if list := s.CLI(t, "certs", "list", "-o", "json"); !strings.Contains(list, `"items": []`) {
		t.Errorf("certs list: got\n%s", list)
	}
	third, warnings := upload()
	if warnings != "" {
		t.Errorf("got warnings for an upload after the last one was deleted: %s", warnings)
	}
	downloaded(third)

	// token create uploads and prints a whole join command. It has another process, so it does not share the key.
	s.WaitLeader(t) // without a leader, the command prints a warning
	stdout, stderr, code := s.RunKubejoin(t, "token", "create", "--print-join-command", "--control-plane", pki)
	line := keyOfLine.FindStringSubmatch(stdout)
	if code != 0 || line == nil || !strings.Contains(stderr, "no longer work") {
		t.Fatalf("exit code %d, want a join command and a warning of the replaced upload: %s", code, stderr)
	}
	s.Secrets.Add("token create", line[1])
	downloaded(line[1])
	s.CheckSecrets(t)
}

var keyOfLine = regexp.MustCompile(`--control-plane --certificate-key ([0-9a-f]{64})\n$`)

// TestControlPlaneByOneCall requests the join command of a control plane with curl and with kubejoin --curlrc. kubejoin
// has the rights of deploy/manifests and deploy/control-planes.yaml, and the admission policy. The test catches a missing
// right, a policy that refuses the upload, and a call that ends the key of an earlier call.
func TestControlPlaneByOneCall(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	s := harness.PrepareSite(t, cluster.Options{})
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/control-planes.yaml"))
	s.Start(t, "--pki-dir="+filepath.Join(s.Dir, "pki"))
	call := func() string {
		t.Helper()
		line, err := s.JoinCommand(t, "?controlPlane=true")
		if err != nil {
			t.Fatal(err)
		}
		found := keyOfLine.FindStringSubmatch(line)
		if found == nil {
			t.Fatal("the join command has no certificate key")
		}
		s.Secrets.Add("the certificate key", found[1])
		return found[1]
	}
	first := call()
	if output, err := download(t, s, first); err != nil || !strings.HasSuffix(output, "\n8\n") {
		t.Errorf("want 8 files that are equal: %v\n%s", err, output)
	}
	if call() != first {
		t.Error("the second call has another key, so it ended the first one")
	}
	printed, err := exec.CommandContext(t.Context(), harness.Kubejoin, "token", "create", "--print-join-command", "--control-plane",
		"--format=yaml", "--curlrc="+s.Curlrc(), "--url=https://"+s.Endpoint).Output()
	if err != nil || !strings.Contains(string(printed), "certificateKey: "+first) && !strings.Contains(string(printed), `certificateKey: "`+first) {
		t.Errorf("kubejoin token create over HTTPS: %v, want a JoinConfiguration with the same key", err)
	}
	if owners := s.RunKubectl(t, "-n", "kube-system", "get", "secret", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", `jsonpath={range .items[?(@.data.description)]}{.metadata.name}{"\n"}{end}`); len(strings.Fields(owners)) != 1 {
		t.Errorf("got owner tokens %q, want only the last one", owners)
	}
	s.RunKubectl(t, "-n", "kube-system", "delete", "secret", "kubeadm-certs") // as when it expires
	second := call()
	if second == first {
		t.Error("got the key of an upload that is gone")
	}
	if output, err := download(t, s, second); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	s.CheckSecrets(t)
}
