package join

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// stacked are the files that control planes with stacked etcd share.
var stacked = []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key", "etcd/ca.crt", "etcd/ca.key"}

// download runs the phase of kubeadm join that downloads the shared files of control planes, on a new machine. It returns
// an error unless the machine then has exactly these files, with the same content as in dir.
func download(t *testing.T, s *harness.Site, key, dir string, files []string) (output string, err error) {
	t.Helper()
	_, token := s.JoinArgs(t, "?maxNodes=1")
	kubeadm := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-euc", `
		mkdir -p /etc/kubernetes
		mount -t tmpfs tmpfs /etc/kubernetes
		cat >/etc/kubernetes/join.yaml
		"$1" join phase control-plane-prepare download-certs --config /etc/kubernetes/join.yaml
		dir=$2
		shift 2
		for file; do cmp "$dir/$file" "/etc/kubernetes/pki/$file"; done
		test "$(find /etc/kubernetes/pki -type f | wc -l)" = $#`, "download", filepath.Join(s.Bin, "kubeadm"), dir}, files...)...)
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

// uploads runs 'kubejoin certs upload' and kubeadm on a cluster.
type uploads struct {
	*testing.T
	*harness.Site
	pki string
}

// upload returns the certificate key, and the warnings of the command.
func (u uploads) upload() (key, warnings string) {
	u.Helper()
	stdout, stderr, code := u.RunKubejoin(u.T, "certs", "upload", "--pki-dir="+u.pki)
	if code != 0 {
		u.Fatalf("exit code %d: %s", code, stderr)
	}
	key = strings.TrimSpace(stdout)
	must.Value(joinformat.ParseCertificateKey(key))(u)
	u.Secrets.Add("the upload "+key[:4], key)
	return key, stderr
}

func (u uploads) downloaded(key string, files []string) {
	u.Helper()
	if output, err := download(u.T, u.Site, key, u.pki, files); err != nil {
		u.Errorf("want exactly the files %v: %v\n%s", files, err, output)
	}
}

func (u uploads) refused(key, why string) {
	u.Helper()
	if output, err := download(u.T, u.Site, key, u.pki, stacked); err == nil || !strings.Contains(output, why) {
		u.Errorf("got %v, want kubeadm to refuse the key: %s\n%s", err, why, output)
	}
}

var keyOfLine = regexp.MustCompile(`--control-plane --certificate-key ([0-9a-f]{64})\n$`)

// TestControlPlaneByOneCall requests the join command of a control plane with curl and with kubejoin --curlrc. kubejoin has
// the rights of deploy/manifests and deploy/control-planes.yaml, and the admission policy. The test catches a missing
// right, a policy that refuses the upload, a call that invalidates the key of an earlier call, and a key that remains
// somewhere. The real kubeadm must download each upload, and refuse the key of a deleted or replaced upload.
func TestControlPlaneByOneCall(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	audit := harness.NewAuditLog(t, `- {level: RequestResponse, users: ["system:serviceaccount:kubejoin-system:kubejoin"]}`+"\n- level: None\n")
	s := harness.PrepareSite(t, cluster.Options{APIServerFlags: audit.Flags()})
	u := uploads{t, s, filepath.Join(s.Dir, "pki")}
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/control-planes.yaml"))
	signers := must.Value(exec.CommandContext(t.Context(), harness.Kubejoin(), "signer-config", "default", "--kubeadm").Output())(t)
	signerConfig := filepath.Join(u.pki, "signers.yaml")
	must.OK(t, os.WriteFile(signerConfig, signers, 0o600))
	s.Start(t, "--pki-dir="+u.pki, "--signer-config="+signerConfig)
	call := func() string {
		t.Helper()
		line := must.Value(s.JoinCommand(t, "?controlPlane=true"))(t)
		found := keyOfLine.FindStringSubmatch(line)
		if found == nil {
			t.Fatal("the join command has no certificate key")
		}
		s.Secrets.Add("the certificate key", found[1])
		return found[1]
	}
	first := call()
	u.downloaded(first, stacked)
	if key, warnings := u.upload(); key != first || warnings != "" {
		t.Errorf("another program has another key, so it ended the first one, or warnings: %s", warnings)
	}
	if call() != first {
		t.Error("the second call has another key, so it ended the first one")
	}
	printed, err := exec.CommandContext(t.Context(), harness.Kubejoin(), "token", "create", "--print-join-command", "--control-plane",
		"--format=script", "--curlrc="+s.Curlrc(), "--url=https://"+s.Endpoint).Output()
	if err != nil || !strings.Contains(string(printed), "certificateKey: "+first) && !strings.Contains(string(printed), `certificateKey: "`+first) {
		t.Errorf("kubejoin token create over HTTPS: %v, want a JoinConfiguration with the same key", err)
	}
	if !strings.Contains(string(printed), "turns='"+s.Endpoint+"'") {
		t.Errorf("the script does not ask %s for its turn", s.Endpoint)
	}
	if owners := s.RunKubectl(t, "-n", "kube-system", "get", "secret", "--field-selector=type=bootstrap.kubernetes.io/token", "-o", `jsonpath={range .items[?(@.data.description)]}{.metadata.name}{"\n"}{end}`); len(strings.Fields(owners)) != 1 {
		t.Errorf("got owner tokens %q, want only the last one", owners)
	}
	if list := s.CLI(t, "certs", "list"); !strings.Contains(list, "ca.crt,ca.key,etcd-ca.crt,etcd-ca.key,front-proxy-ca.crt,front-proxy-ca.key,sa.key,sa.pub") || !strings.Contains(list, " 1h ") {
		t.Errorf("certs list: got\n%s", list)
	}
	if out := s.CLI(t, "certs", "delete"); !strings.Contains(out, "deleted") {
		t.Errorf("certs delete: got %s", out)
	}
	u.refused(first, "This Secret might have expired")
	if list := s.CLI(t, "certs", "list", "-o", "json"); !strings.Contains(list, `"items": []`) {
		t.Errorf("certs list: got\n%s", list)
	}
	second := call()
	if second == first {
		t.Error("got the key of an upload that is gone")
	}
	u.checkKubeletClientWarnings()
	u.downloaded(second, stacked)
	must.OK(t, s.KubeadmUploadCerts(t.Context(), joinformat.GenerateCertificateKey().Reveal()))
	u.refused(second, "message authentication failed")
	third, warnings := u.upload()
	if !strings.Contains(warnings, "replaced another one") {
		t.Errorf("got no warning for a replaced upload: %s", warnings)
	}
	u.downloaded(third, stacked)
	_, token := s.JoinArgs(t, "?maxNodes=1")
	text := s.CheckSecrets(t) + s.Log() + string(must.Value(audit.Content())(t)) + s.RunKubectl(t, "get", "secrets,configmaps,events,leases,csr", "--all-namespaces", "-o", "json")
	u.checkAbsent(text, token.RevealSecret(), first, second, third)
}

// checkKubeletClientWarnings deletes the binding that certificates of new control planes need. It fails unless kubejoin
// warns after the deletion, and not before: in join commands over HTTPS and with a kubeconfig, and when it signs such a
// certificate.
func (u uploads) checkKubeletClientWarnings() {
	u.Helper()
	const warning = "user kube-apiserver-kubelet-client may not use kubelets"
	certificate := func(signer, name string, want bool) {
		u.Helper()
		cmd := exec.CommandContext(u.Context(), "curl", "--config", u.Curlrc(), "--silent", "--show-error", "--include", "--data-binary", "@-",
			"https://"+u.Endpoint+"/v1/certificate?signer=kubeadm.kubejoin.io/"+signer)
		cmd.Stdin = bytes.NewReader(csrtest.PEM(u, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, csrtest.NewKey()))
		response, err := cmd.CombinedOutput()
		if got := string(response); err != nil || strings.Contains(got, warning) != want || strings.Contains(got, "could not check") || !strings.Contains(got, "BEGIN CERTIFICATE") {
			u.Errorf("%s: want a certificate, and a warning: %t, got %v\n%s", signer, want, err, got)
		}
	}
	check := func(want bool) {
		u.Helper()
		certificate("apiserver-kubelet-client", "kube-apiserver-kubelet-client", want)
		certificate("front-proxy-client", "front-proxy-client", false)
		for way, flags := range map[string][]string{
			"over HTTPS":        {"--curlrc=" + u.Curlrc(), "--url=https://" + u.Endpoint},
			"with a kubeconfig": {"--kubeconfig=" + u.Kubeconfig(), "--pki-dir=" + u.pki},
		} {
			var stderr strings.Builder
			cmd := exec.CommandContext(u.Context(), harness.Kubejoin(), append([]string{"token", "create", "--print-join-command", "--control-plane"}, flags...)...)
			cmd.Stderr = &stderr
			if line, err := cmd.Output(); err != nil || !keyOfLine.Match(line) {
				u.Errorf("%s: want a join command, got %v %s", way, err, stderr.String())
			}
			if got := stderr.String(); strings.Contains(got, warning) != want || strings.Contains(got, "could not check") {
				u.Errorf("%s: want a warning: %t, got %s", way, want, got)
			}
		}
	}
	check(false)
	u.RunKubectl(u.T, "delete", "clusterrolebinding", "kubeadm:apiserver-kubelet-client")
	harness.Wait(u.T, "the end of the rights", func() error {
		if may, _ := u.Kubectl(u.Context(), "auth", "can-i", "create", "nodes/proxy", "--as=kube-apiserver-kubelet-client"); strings.TrimSpace(may) != "no" {
			return fmt.Errorf("got %q, want no", may)
		}
		return nil
	})
	check(true)
}

// encoded matches base64 of at least 15 bytes.
var encoded = regexp.MustCompile(`[0-9A-Za-z+/]{20,}={0,2}`)

// checkAbsent fails the test if a text, or base64 in it, contains one of these certificate keys or a private key that
// control planes share. It also fails if the text lacks present: the text would then be the wrong one.
func (u uploads) checkAbsent(text, present string, certificateKeys ...string) {
	u.Helper()
	var all strings.Builder
	all.WriteString(text)
	for _, found := range encoded.FindAllString(text, -1) {
		if content, err := base64.StdEncoding.DecodeString(found); err == nil {
			all.Write(content)
		}
	}
	text = all.String()
	for _, key := range certificateKeys {
		raw := must.Value(hex.DecodeString(key))(u)
		if strings.Contains(text, key) || strings.Contains(text, string(raw)) {
			u.Error("a certificate key is left behind")
		}
	}
	for _, file := range stacked {
		block, _ := pem.Decode(harness.ReadFile(u.T, filepath.Join(u.pki, file)))
		if strings.HasSuffix(file, ".key") && strings.Contains(text, string(block.Bytes)) || strings.Contains(text, "PRIVATE KEY-----") {
			u.Errorf("%s is left behind", file)
		}
	}
	if !strings.Contains(text, present) {
		u.Error("the secret of a token is missing, so the search could not fail")
	}
}
