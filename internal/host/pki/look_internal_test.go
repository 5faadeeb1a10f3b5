package pki

import (
	"context"
	"crypto"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// manifestOf writes the manifest of a static pod that kubeadm did not create, and that mounts a path of the host.
func (f *fixture) manifestOf(t testing.TB, name, path, arguments string) {
	t.Helper()
	f.write(t, "manifests/"+name+".yaml", fmt.Appendf(nil, `{metadata: {name: %s}, spec: {
		volumes: [{name: v, hostPath: {path: %q}}],
		containers: [{name: c, image: x, args: [%s], volumeMounts: [{name: v, mountPath: /inside}]}]}}`, name, path, arguments))
}

// kubeconfigOf returns a kubeconfig with a cluster. If pair is not empty, it contains this certificate and key.
func kubeconfigOf(t testing.TB, cluster clientcmdapi.Cluster, pair []byte) []byte {
	t.Helper()
	cluster.Server = "https://192.0.2.1:6443"
	return must.Value(clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"k": &cluster},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {ClientCertificateData: pair, ClientKeyData: pair}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "k", AuthInfo: "me"}}, CurrentContext: "x",
	}))(t)
}

// Apply must find each file with the old CA, or with a certificate or key from it. It must change the file, or report it
// until somebody changes it.
func TestLooksAtWholeHost(t *testing.T) {
	outside := t.TempDir()
	for name, test := range map[string]struct {
		make  func(t *testing.T, f *fixture) error
		stage rotation.Stage
		want  string // part of the unfit line; empty if everything fits
	}{
		"nothing": {func(*testing.T, *fixture) error { return nil }, rotation.Trust, ""},
		"CA": {func(t *testing.T, f *fixture) error { f.write(t, "mine/ca.pem", f.old.cert); return nil }, rotation.Trust,
			"file mine/ca.pem on worker-1 does not trust the new CA; next: change it by hand, then on worker-1: kubejoin ca apply; or if nothing needs it: kubejoin ca switch --leave-behind-file worker-1:mine/ca.pem"},
		"CA in stage prepare":    {func(t *testing.T, f *fixture) error { f.write(t, "mine/ca.pem", f.old.cert); return nil }, rotation.Prepare, ""},
		"key":                    {func(t *testing.T, f *fixture) error { f.write(t, "mine/x.key", f.old.key); return nil }, rotation.Switch, "file mine/x.key on worker-1 is still from the old CA"},
		"certificate":            {func(t *testing.T, f *fixture) error { f.write(t, "mine/x", f.old.kubelet(t, time.Hour)); return nil }, rotation.Switch, "file mine/x on worker-1 is still from the old CA"},
		"certificate, but trust": {func(t *testing.T, f *fixture) error { f.write(t, "mine/x", f.old.kubelet(t, time.Hour)); return nil }, rotation.Trust, ""},
		"linked file": {func(t *testing.T, f *fixture) error {
			must.OK(t, os.WriteFile(filepath.Join(outside, "linked"), f.old.cert, 0o600))
			return os.Symlink(filepath.Join(outside, "linked"), f.file("linked.crt"))
		}, rotation.Trust, "file linked.crt on worker-1 does not trust the new CA"},
		"folder behind a link": {func(t *testing.T, f *fixture) error {
			must.OK(t, os.MkdirAll(filepath.Join(outside, "a", "b"), 0o700))
			must.OK(t, os.WriteFile(filepath.Join(outside, "a", "b", "ca"), f.old.cert, 0o600))
			must.OK(t, os.Symlink("..", filepath.Join(outside, "a", "b", "loop")))
			return os.Symlink(filepath.Join(outside, "a"), f.file("more"))
		}, rotation.Trust, "file more/b/ca on worker-1 does not trust the new CA"},
		"link to itself": {func(t *testing.T, f *fixture) error { return os.Symlink("self", f.file("self")) }, rotation.Trust, "file self on worker-1 was not seen: "},
		"file of a flag": {func(t *testing.T, f *fixture) error {
			f.manifestOf(t, "mine", "/nowhere", "--ca-file="+filepath.Join(outside, "flag"))
			return os.WriteFile(filepath.Join(outside, "flag"), f.old.cert, 0o600)
		}, rotation.Trust, filepath.Join(outside, "flag") + " on worker-1 does not trust the new CA"},
		"mounted folder": {func(t *testing.T, f *fixture) error {
			f.manifestOf(t, "mine", filepath.Join(outside, "mounted"), "")
			must.OK(t, os.MkdirAll(filepath.Join(outside, "mounted"), 0o700))
			return os.WriteFile(filepath.Join(outside, "mounted", "ca"), f.old.cert, 0o600)
		}, rotation.Trust, filepath.Join(outside, "mounted", "ca") + " on worker-1 does not trust the new CA"},
		"file of the kubelet": {func(t *testing.T, f *fixture) error {
			must.OK(t, os.WriteFile(filepath.Join(outside, "kubelet"), f.old.cert, 0o600))
			return os.WriteFile(filepath.Join(f.KubeletDir, "config.yaml"), fmt.Appendf(nil, "authentication: {x509: {clientCAFile: %s}}\n", filepath.Join(outside, "kubelet")), 0o600)
		}, rotation.Trust, filepath.Join(outside, "kubelet") + " on worker-1 does not trust the new CA"},
		"file of --also": {func(t *testing.T, f *fixture) error {
			f.Also = []string{filepath.Join(outside, "also")}
			return os.WriteFile(filepath.Join(outside, "also"), f.old.cert, 0o600)
		}, rotation.Trust, filepath.Join(outside, "also") + " on worker-1 does not trust the new CA"},
		"kubeconfig below the folder": {func(t *testing.T, f *fixture) error {
			f.write(t, "webhook.conf", []byte(f.before[kubeletConf]))
			return nil
		}, rotation.Trust, ""},
		"kubeconfig elsewhere": {func(t *testing.T, f *fixture) error {
			f.Also = []string{filepath.Join(outside, "kubeconfig")}
			return os.WriteFile(f.Also[0], []byte(f.before[kubeletConf]), 0o600)
		}, rotation.Trust, filepath.Join(outside, "kubeconfig") + " on worker-1 does not trust the new CA"},
		"kubeconfig behind a link": {func(t *testing.T, f *fixture) error {
			must.OK(t, os.WriteFile(filepath.Join(outside, "kubeconfig-2"), []byte(f.before[kubeletConf]), 0o600))
			return os.Symlink(filepath.Join(outside, "kubeconfig-2"), f.file("linked.conf"))
		}, rotation.Trust, "file linked.conf on worker-1 does not trust the new CA"},
		"kubeconfig that only presents": {func(t *testing.T, f *fixture) error {
			f.write(t, "monitor.conf", kubeconfigOf(t, clientcmdapi.Cluster{InsecureSkipTLSVerify: true}, f.old.kubelet(t, time.Hour)))
			return nil
		}, rotation.Switch, "file monitor.conf on worker-1 is still from the old CA"},
		"file of a kubeconfig": {func(t *testing.T, f *fixture) error {
			f.write(t, "mine.conf", kubeconfigOf(t, clientcmdapi.Cluster{CertificateAuthority: filepath.Join(outside, "named")}, nil))
			return os.WriteFile(filepath.Join(outside, "named"), f.old.cert, 0o600)
		}, rotation.Trust, filepath.Join(outside, "named") + " on worker-1 does not trust the new CA"},
		"file of a kubeconfig, by a relative path": {func(t *testing.T, f *fixture) error {
			path := must.Value(filepath.Rel(f.Dir, filepath.Join(outside, "relative")))(t)
			f.write(t, "admin.conf", kubeconfigOf(t, clientcmdapi.Cluster{CertificateAuthority: path}, f.old.kubelet(t, time.Hour)))
			return os.WriteFile(filepath.Join(outside, "relative"), f.old.cert, 0o600)
		}, rotation.Trust, filepath.Join(outside, "relative") + " on worker-1 does not trust the new CA"},
		"certificate of a kubeconfig": {func(t *testing.T, f *fixture) error {
			pair := filepath.Join(outside, "pair")
			f.write(t, "mine.conf", []byte(strings.ReplaceAll(f.before[kubeletConf], filepath.Join(f.KubeletDir, "pki/kubelet-client-current.pem"), pair)))
			return os.WriteFile(pair, f.old.kubelet(t, time.Hour), 0o600)
		}, rotation.Switch, filepath.Join(outside, "pair") + " on worker-1 is still from the old CA"},
		"malformed kubeconfig": {func(t *testing.T, f *fixture) error {
			f.write(t, "x.conf", []byte(f.before[kubeletConf]+"\n\tx: [\n"))
			return nil
		}, rotation.Trust, "file x.conf on worker-1 was not seen: want a kubeconfig of at most 64 KiB"},
		"configuration that mentions a CA": {func(t *testing.T, f *fixture) error {
			f.write(t, "x.yaml", []byte("certificate-authority: x\n\tx: ["))
			return nil
		}, rotation.Trust, ""},
		"CA and an intermediate of it": {func(t *testing.T, f *fixture) error {
			below := f.old.crossed(t, newCA(t, "intermediate").Certificate())
			f.write(t, "bundle.pem", slices.Concat(f.old.cert, pem.EncodeToMemory(&pem.Block{Type: pemfile.Certificate, Bytes: below.Raw})))
			return nil
		}, rotation.Trust, "file bundle.pem on worker-1 does not trust the new CA"},
		"indented CA": {func(t *testing.T, f *fixture) error {
			f.write(t, "authentication.yaml", []byte("certificateAuthority: |\n  "+strings.ReplaceAll(string(f.old.cert), "\n", "\n  ")))
			return nil
		}, rotation.Trust, "file authentication.yaml on worker-1 does not trust the new CA"},
		"CA in base64": {func(t *testing.T, f *fixture) error {
			f.write(t, "addons/hook.yaml", []byte("caBundle: "+base64.StdEncoding.EncodeToString(f.old.cert)+"\n"))
			return nil
		}, rotation.Trust, "file addons/hook.yaml on worker-1 does not trust the new CA"},
		"CA in DER": {func(t *testing.T, f *fixture) error {
			f.write(t, "ca.cer", f.old.Certificate().Raw)
			return nil
		}, rotation.Trust, "file ca.cer on worker-1 does not trust the new CA"},
		"folder of kubeadm that is a link": {func(t *testing.T, f *fixture) error {
			f.write(t, "mine/ca.pem", f.old.cert)
			f.write(t, "webhook.conf", []byte(f.before[kubeletConf])) // Apply changes this file
			real := f.Dir
			f.Dir = filepath.Join(t.TempDir(), "kubernetes")
			return os.Symlink(real, f.Dir)
		}, rotation.Trust, "file mine/ca.pem on worker-1 does not trust the new CA"},
		"--also with a link to a folder": {func(t *testing.T, f *fixture) error {
			must.OK(t, os.MkdirAll(filepath.Join(outside, "folder"), 0o700))
			must.OK(t, os.WriteFile(filepath.Join(outside, "folder", "ca"), f.old.cert, 0o600))
			f.Also = []string{filepath.Join(outside, "to-folder")}
			return os.Symlink("folder", f.Also[0])
		}, rotation.Trust, filepath.Join(outside, "to-folder/ca") + " on worker-1 does not trust the new CA"},
		"file with two names": {func(t *testing.T, f *fixture) error {
			f.write(t, "mine/ca.pem", f.old.cert)
			return os.Symlink("ca.pem", f.file("mine/link.pem"))
		}, rotation.Trust, "file mine/ca.pem on worker-1 does not trust the new CA"},
		"link to nothing": {func(t *testing.T, f *fixture) error { return os.Symlink("nothing", f.file("link")) }, rotation.Trust, ""},
		"folder with a link to itself": {func(t *testing.T, f *fixture) error {
			f.write(t, "mine/z.pem", f.old.cert)
			return os.Symlink(".", f.file("mine/a"))
		}, rotation.Trust, "z.pem on worker-1 does not trust the new CA"},
		"kubeconfig behind a link that is read first": {func(t *testing.T, f *fixture) error {
			f.write(t, "webhook.conf", []byte(f.before[kubeletConf]))
			return os.Symlink("webhook.conf", f.file("a.conf"))
		}, rotation.Trust, ""},
		"folder in a kubeconfig": {func(t *testing.T, f *fixture) error {
			must.OK(t, os.MkdirAll(filepath.Join(outside, "private"), 0o700))
			must.OK(t, os.WriteFile(filepath.Join(outside, "private", "ca"), f.old.cert, 0o600))
			f.write(t, "anybody.conf", kubeconfigOf(t, clientcmdapi.Cluster{CertificateAuthority: filepath.Join(outside, "private")}, nil))
			return nil
		}, rotation.Trust, ""},
		"CA in a static pod": {func(t *testing.T, f *fixture) error {
			f.manifestOf(t, "mine", "/nowhere", "--ca-data="+base64.StdEncoding.EncodeToString(f.old.cert))
			return nil
		}, rotation.Trust, "file manifests/mine.yaml on worker-1 does not trust the new CA"},
		"malformed static pod": {func(t *testing.T, f *fixture) error { f.write(t, "manifests/x.yaml", []byte("x")); return nil }, rotation.Trust, "file manifests/x.yaml on worker-1 was not seen: want the manifest of a static pod"},
		"hidden manifest":      {func(t *testing.T, f *fixture) error { f.write(t, "manifests/.x.yaml", []byte("x")); return nil }, rotation.Trust, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rotation.Cluster, true)
			f.Sign = nil
			must.OK(t, test.make(t, f))
			done := must.Value(f.Apply(t.Context(), f.at(test.stage)))(t)
			// Ignore these lines: nobody signs here, and admin.conf depends on the file that it names.
			unfit := slices.DeleteFunc(done.Unfit, func(line string) bool {
				return strings.Contains(line, kubeletConf) || strings.HasPrefix(line, "file admin.conf ")
			})
			if got := strings.Join(unfit, "\n"); test.want == "" && got != "" || !strings.Contains(got, test.want) || len(unfit) > 1 {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
	f := newFixture(t, rotation.Cluster, true)
	f.write(t, "webhook.conf", []byte(f.before[kubeletConf]))
	for _, path := range []string{"/missing", "proc"} {
		f.Also = []string{path}
		if _, err := f.Apply(t.Context(), f.at(rotation.Trust)); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("--also: %q given", path)) {
			t.Errorf("got %v", err)
		}
	}
	f.Also = nil
	must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	config := must.Value(clientcmd.LoadFromFile(f.file("webhook.conf")))(t)
	if got, want := config.Clusters["kubernetes"].CertificateAuthorityData, slices.Concat(f.old.cert, f.fresh.cert); string(got) != string(want) {
		t.Errorf("webhook.conf trusts %s, want both CAs", got)
	}
	for n := range 2 * maxNamed {
		f.write(t, fmt.Sprintf("mine/%d", n), f.old.cert)
		f.write(t, fmt.Sprintf("good/%d", n), slices.Concat(f.old.cert, f.fresh.cert))
	}
	done := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
	if len(done.Unfit) != 2*maxNamed || done.Report.More != maxNamed {
		t.Errorf("got %q, and %d more in the report; want all, and %d more", done.Unfit, done.Report.More, maxNamed)
	}
}

// A static pod that kubeadm did not create may read a mounted file only at start. Apply must end such a pod only if the
// operator allows it.
func TestRestartsOtherStaticPod(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	f.machine.others = map[string]process{"c": {77, f.machine.booted}}
	f.manifestOf(t, "vip", f.file("admin.conf"), "")
	f.manifestOf(t, "idle", f.file("unrelated"), "")
	const want = "process vip on worker-1 has not read its changed files; next: on worker-1: kubejoin ca apply --restart vip; or if nothing needs it: kubejoin ca switch --leave-behind-file worker-1:vip"
	if done := must.Value(f.Apply(t.Context(), f.at(rotation.Prepare)))(t); len(done.Unfit) > 0 {
		t.Errorf("before a file changed: %q", done.Unfit)
	}
	for range 2 {
		if done := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t); !slices.Equal(done.Unfit, []string{want}) || slices.Contains(done.Restarted, "vip") {
			t.Errorf("got %q, restarted %q", done.Unfit, done.Restarted)
		}
	}
	f.Restart = []string{"vip"}
	if done := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t); len(done.Unfit) > 0 || !slices.Contains(done.Restarted, "vip") || !slices.Contains(f.machine.ended, 77) {
		t.Errorf("got %q, restarted %q", done.Unfit, done.Restarted)
	}
}

// State and files may be restored from different backups. So a missing rotation does not prove that it has ended.
func TestRefusesBackupThatClusterDoesNotKnow(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	first := f.at(rotation.Finish)
	must.Value(f.Apply(t.Context(), first))(t)
	files := tree(t, f.Dir)
	other := newCA(t, "third")
	second := must.Value(rotation.New(rotation.Cluster, first.New, other.Bundle(), nil, time.Now()))(t)
	for name, r := range map[string]rotation.Rotation{"no rotation": {CA: rotation.Cluster}, "another rotation": second} {
		_, err := f.Apply(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), f.backupDir(first)+" is the backup of a rotation that the cluster does not know") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := os.Stat(f.backupDir(first)); err != nil || len(differ(files, tree(t, f.Dir))) > 0 {
		t.Errorf("the backup: %v; changed %q", err, differ(files, tree(t, f.Dir)))
	}
	second.Replaced = []rotation.Replaced{{Rotation: first.ID, Pin: "x", NotAfter: time.Now().Add(time.Hour)}} // the first rotation has ended
	must.Value(f.Apply(t.Context(), second))(t)
	second.Stage, second.Ended = rotation.Prepare, time.Now()
	second.Aborting = true
	must.Value(f.Apply(t.Context(), second))(t)
	if left := must.Value(filepath.Glob(f.file(Backups, "*")))(t); len(left) > 0 {
		t.Errorf("after the end there are %q", left)
	}
}

// Stage prepare must report what a later stage would refuse, before any file changes.
func TestRehearsesAllStages(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	f.write(t, "pki/apiserver.crt", f.old.kubelet(t, time.Hour)) // for another key
	files := tree(t, f.Dir)
	if _, err := f.Apply(t.Context(), f.at(rotation.Prepare)); err == nil || !strings.Contains(err.Error(), "stage switch would fail here: ") || len(differ(files, tree(t, f.Dir))) > 0 {
		t.Errorf("got %v, want a refusal", err)
	}
}

// A control plane that joined while the new CA signed has no originals from the old CA. After an abort, the old CA
// must sign its certificates.
func TestAbortSignsWithOldCA(t *testing.T) {
	f := newFixture(t, rotation.Cluster, false)
	must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	must.OK(t, os.RemoveAll(f.file(Backups)))
	f.Key = nil
	must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	if _, err := f.Apply(t.Context(), f.aborted(rotation.Trust)); err == nil || !strings.Contains(err.Error(), "give a copy of it: --ca-key-file FILE") {
		t.Errorf("without the key: got %v", err)
	}
	f.Key = func(context.Context) (crypto.Signer, error) { return f.old.private, nil }
	for _, stage := range []rotation.Stage{rotation.Trust, rotation.Prepare} {
		done := must.Value(f.Apply(t.Context(), f.aborted(stage)))(t)
		if got := summary(done.Report); !strings.HasSuffix(got, " old") || f.works(t) != "" {
			t.Errorf("%s: got %q; %s", stage, got, f.works(t))
		}
	}
}

// Old versions of kubeadm, and 'kubejoin kubeconfig node', embed the certificate in kubelet.conf. Apply must replace such
// a certificate.
func TestRenewsCertificateInKubeletConf(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	config := must.Value(clientcmd.LoadFromFile(f.file(kubeletConf)))(t)
	pair := must.Value(os.ReadFile(config.AuthInfos["me"].ClientCertificate))(t)
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientCertificateData: pair, ClientKeyData: pair}
	f.write(t, kubeletConf, must.Value(clientcmd.Write(*config))(t))
	f.Sign = func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
		return f.fresh.sign(t, r.CSR, time.Hour), nil
	}
	for _, stage := range []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Switch, rotation.Finish} {
		done := must.Value(f.Apply(t.Context(), f.at(stage)))(t)
		if len(done.Unfit) > 0 {
			t.Errorf("%s: %q", stage, done.Unfit)
		}
		if stage == rotation.Switch && !slices.Contains(done.Restarted, "kubelet") {
			t.Errorf("restarted %q, want the kubelet, which does not read the file again", done.Restarted)
		}
	}
	user := must.Value(clientcmd.LoadFromFile(f.file(kubeletConf)))(t).AuthInfos["me"]
	leaf := must.Value(tls.X509KeyPair(user.ClientCertificateData, user.ClientKeyData))(t).Leaf
	if err := leaf.CheckSignatureFrom(f.fresh.Certificate()); err != nil {
		t.Error(err)
	}
	f.Sign = func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
		return f.old.sign(t, r.CSR, time.Hour), nil
	}
	for _, stage := range []rotation.Stage{rotation.Switch, rotation.Trust, rotation.Prepare} {
		if done := must.Value(f.Apply(t.Context(), f.aborted(stage)))(t); stage != rotation.Switch && len(done.Unfit) > 0 {
			t.Errorf("back in %s: %q", stage, done.Unfit)
		}
	}
}

// If certificate and key are in two files, a crash could leave one replaced without the other.
func TestRefusesKubeletConfWithTwoFiles(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	config := must.Value(clientcmd.LoadFromFile(f.file(kubeletConf)))(t)
	config.AuthInfos["me"].ClientKey = filepath.Join(f.KubeletDir, "pki/other.key")
	f.write(t, kubeletConf, must.Value(clientcmd.Write(*config))(t))
	files := tree(t, f.Dir)
	if _, err := f.Apply(t.Context(), f.at(rotation.Prepare)); err == nil || !strings.Contains(err.Error(), "client-certificate and client-key name different files") || len(differ(files, tree(t, f.Dir))) > 0 {
		t.Errorf("got %v, want a refusal", err)
	}
}

// kube-apiserver reads the webhook.conf of 'kubejoin authorization-config' only at start. From 1.36 on, it re-reads a CA file
// that webhook.conf names.
func TestRestartsAPIServerThatReviews(t *testing.T) {
	for name, test := range map[string]struct {
		version  string
		embedded bool
		want     bool
	}{"embedded": {"v1.36.0", true, true}, "named": {"v1.36.0", false, false}, "named before 1.36": {"v1.35.4", false, true}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rotation.Cluster, false)
			config := must.Value(clientcmd.LoadFromFile(f.file(kubeletConf)))(t)
			if !test.embedded {
				config.Clusters["kubernetes"].CertificateAuthorityData, config.Clusters["kubernetes"].CertificateAuthority = nil, f.file("pki/ca.crt")
			}
			f.write(t, "kubejoin/webhook.conf", must.Value(clientcmd.Write(*config))(t))
			f.write(t, "kubejoin/authorization.yaml", []byte("kubeConfigFile: "+f.file("kubejoin/webhook.conf")))
			command := fmt.Sprintf("    image: kube-apiserver:%s\n    command: [kube-apiserver, --authorization-config=%s]\n", test.version, f.file("kubejoin/authorization.yaml"))
			f.write(t, "manifests/kube-apiserver.yaml", []byte(strings.Replace(podYAML("kube-apiserver"), "    image: x\n", command, 1)))
			done := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
			if got := slices.Contains(done.Restarted, "kube-apiserver"); got != test.want || slices.Contains(done.Changed, "kubejoin/webhook.conf") != test.embedded || len(done.Unfit) > 0 {
				t.Errorf("restarted %q, changed %q, unfit %q", done.Restarted, done.Changed, done.Unfit)
			}
		})
	}
}
