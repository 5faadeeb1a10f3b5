package join

import (
	"os/exec"
	"path/filepath"
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
	upload := func() (key, warnings string) {
		t.Helper()
		stdout, stderr, code := s.RunKubejoin(t, "certs", "upload", "--pki-dir="+filepath.Join(s.Dir, "pki"))
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
	s.CheckSecrets(t)
}
