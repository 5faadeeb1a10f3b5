package pki

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/signer/rotation"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Another user owns a folder with a kubeconfig, and exchanges the folder and a link between a look and a write. Catches an
// Apply that changes this kubeconfig. It would write admin.conf with its key into the folder, or the user's kubeconfig into
// admin.conf.
func TestGivesNoKeyToOwnerOfFolder(t *testing.T) {
	need.Root(t) // gives files to another user
	const stranger = 4242
	f := newFixture(t, rotation.Cluster, false)
	f.write(t, "plugin/a/admin.conf", []byte(f.before[kubeletConf]))
	for _, name := range []string{"plugin", "plugin/a", "plugin/a/admin.conf"} {
		must.OK(t, os.Chown(f.file(name), stranger, stranger))
	}
	must.OK(t, os.Symlink("..", f.file("plugin/b")))
	theirs := must.Value(os.OpenRoot(f.file("plugin/a")))(t) // refers to the folder even after a rename
	exchange := func(string) error {
		for _, way := range [][2]string{{"a", "c"}, {"b", "a"}, {"c", "b"}} {
			if err := os.Rename(f.file("plugin", way[0]), f.file("plugin", way[1])); err != nil {
				return err
			}
		}
		return nil
	}
	f.beforeWrite = exchange
	for n, stage := range []rotation.Stage{rotation.Prepare, rotation.Trust, rotation.Trust} {
		must.OK(t, exchange(""))
		_, err := f.Apply(t.Context(), f.at(stage))
		if content := must.Value(theirs.ReadFile("admin.conf"))(t); bytes.Contains(content, []byte("client-key-data")) {
			t.Fatalf("run %d: the key of admin.conf is in the folder of another user; %v", n, err)
		}
		info := must.Value(os.Stat(f.file("admin.conf")))(t)
		if content := must.Value(os.ReadFile(f.file("admin.conf")))(t); !bytes.Contains(content, []byte("client-key-data")) || info.Sys().(*syscall.Stat_t).Uid == stranger {
			t.Fatalf("run %d: admin.conf is a file of another user; %v", n, err)
		}
	}
	must.OK(t, theirs.Close())
}

// looking returns a look at the host of a fixture.
func (f *fixture) looking(t testing.TB) *looking {
	t.Helper()
	return &looking{
		Host: f.Host, authority: authorities[rotation.Cluster], Rotation: f.rotation, seen: map[[2]uint64]bool{},
	}
}

// The owner of a folder that a pod mounts may put any file there. Catches a look that hangs, takes hours, or uses all memory.
func TestLookEnds(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	dir := t.TempDir()
	write := func(name string, content []byte) { must.OK(t, os.WriteFile(filepath.Join(dir, name), content, 0o600)) }
	small := []byte("certificate-authority: x\na: [" + strings.Repeat("{},", maxConfig/4) + "1]\n")
	large := []byte("certificate-authority: x\na: [" + strings.Repeat("{},", maxFile/4) + "1]\n")
	read := func(l *looking) error { return l.read(filepath.Join(dir, "x"), "x", true) }
	walk := func(l *looking) error { l.walk(dir); return nil }
	walkNearBound := func(l *looking) error { entries := maxLook - 10; return l.walkNow(dir, &entries) }
	for name, test := range map[string]struct {
		make func()
		look func(l *looking) error
		want string // the path that is unseen
	}{
		"endless file of the kernel": {func() { must.OK(t, os.Symlink("/proc/kmsg", filepath.Join(dir, "x"))) }, walk, ""},
		"pipe that somebody holds open": {func() {
			must.OK(t, syscall.Mkfifo(filepath.Join(dir, "x"), 0o600))
			held := must.Value(os.OpenFile(filepath.Join(dir, "x"), os.O_RDWR, 0))(t)
			t.Cleanup(func() { must.OK(t, held.Close()) })
		}, walk, ""},
		"pipe that was a file": {func() {
			must.OK(t, syscall.Mkfifo(filepath.Join(dir, "x"), 0o600))
			held := must.Value(os.OpenFile(filepath.Join(dir, "x"), os.O_RDWR, 0))(t)
			t.Cleanup(func() { must.OK(t, held.Close()) })
		}, read, "want a regular file"},
		"link that was a file": {func() { write("y", f.old.cert); must.OK(t, os.Symlink("y", filepath.Join(dir, "x"))) }, read, "want a regular file"},
		"file that grew":       {func() { write("x", nil); must.OK(t, os.Truncate(filepath.Join(dir, "x"), 128*mebibyte)) }, read, "want a regular file of at most 1048576 bytes"},
		"many links to nothing": {func() {
			for n := range 20 {
				must.OK(t, os.Symlink("nothing", filepath.Join(dir, fmt.Sprint(n))))
			}
		}, walkNearBound, "more than 20000 files"},
		"many folders behind a link": {func() {
			for n := range 20 {
				must.OK(t, os.MkdirAll(filepath.Join(dir, "z", fmt.Sprint(n)), 0o700))
			}
			must.OK(t, os.Symlink("z", filepath.Join(dir, "a")))
		}, walkNearBound, "more than 20000 files"},
		"many bytes":    {func() { write("x", f.old.cert) }, func(l *looking) error { l.bytes = maxBytes + 1; return walk(l) }, "more than 20000 files or 512 MiB"},
		"bytes counted": {func() { write("x", f.old.cert); write("y", f.old.cert) }, func(l *looking) error { l.bytes = maxBytes; return walk(l) }, "more than 20000 files or 512 MiB"},
		"YAML":          {func() { write("x", small) }, walk, ""},
		"large YAML":    {func() { write("x", large) }, walk, ""},
		"embedded YAML": {func() { write("x", append([]byte("client-certificate-data: x\n"), large...)) }, walk, "want a kubeconfig of at most 64 KiB"},
	} {
		t.Run(name, func(t *testing.T) {
			dir = t.TempDir()
			test.make()
			l, ended := f.looking(t), make(chan error, 1)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			go func() { ended <- test.look(l) }()
			l.unseen("x", wait.Receive(t, "look", ended))
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 64*mebibyte {
				t.Errorf("the look took %d bytes of memory", got)
			}
			unseen := ""
			for _, o := range l.others {
				unseen += o.Unseen
			}
			if !strings.Contains(unseen, test.want) || test.want == "" && len(l.others) > 0 || strings.Count(unseen, "more than") > 1 {
				t.Errorf("got %+v, want %q", l.others, test.want)
			}
		})
	}
}

// Catches a host without a report, because the report is too large for its annotation, and a file that an operator
// cannot exempt from the rotation.
func TestReportHasRoomAndNamesAll(t *testing.T) {
	for name, test := range map[string]struct {
		files  int
		file   string // prefix of its name
		config bool
	}{
		"names of control characters": {maxNamed, "mine/" + strings.Repeat("\x01", 230), false},
		"names that JSON escapes":     {maxNamed, "mine/" + strings.Repeat("<", 230), false},
		"more than are named":         {maxNamed + 8, "mine/", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rotation.Cluster, true)
			f.Sign = nil
			for n := range test.files {
				if test.config {
					f.write(t, fmt.Sprintf("%s%02d/admin.conf", test.file, n), []byte(f.before[kubeletConf]))
				} else {
					f.write(t, fmt.Sprintf("%s%02d", test.file, n), f.old.cert)
				}
			}
			r := f.at(rotation.Trust)
			for round := range 3 {
				done := must.Value(f.Apply(t.Context(), r))(t)
				if _, err := done.Report.Encode(); err != nil {
					t.Fatal(err)
				}
				if (len(done.Unfit) > 0) != (round < 2) {
					t.Fatalf("round %d: changed %q, unfit %.1000q", round, done.Changed, done.Unfit)
				}
				for _, file := range done.Report.Files {
					if file.Other {
						r.LeftFiles = append(r.LeftFiles, "worker-1:"+file.Name)
					}
				}
				if len(test.file) > 200 { // the names are equal after truncation
					return
				}
			}
		})
	}
	long := strings.Repeat(`\\x`, 80) + "/" + strings.Repeat(`\\x`, 17) // JSON escapes the backslashes
	for _, test := range []struct {
		stage rotation.Stage
		name  string
		more  bool
	}{{rotation.Prepare, "", false}, {rotation.Trust, "", true}, {rotation.Trust, long, true}} { // all fit in stage prepare, none in trust
		f := newFixture(t, rotation.Cluster, true)
		a := authorities[rotation.Cluster]
		a.pods = nil
		for n := range 2 * rotation.MaxFiles {
			a.trusting = append(a.trusting, test.name+fmt.Sprint(n))
			f.write(t, a.trusting[n], []byte(f.before[kubeletConf]))
		}
		for n := range 2 * rotation.MaxRestart { // pods without a health endpoint
			a.pods = append(a.pods, pod{name: fmt.Sprint("pod-", n), manifest: corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}})
		}
		report := cut(f.report(t.Context(), &backup{}, a, f.at(test.stage)), f.at(test.stage), "worker-1")
		if _, err := report.Encode(); err != nil || len(report.Files) < rotation.MaxFiles/4 || (report.More > rotation.MaxFiles) != test.more || len(report.Restart) != rotation.MaxRestart {
			t.Errorf("%s, %q: got %d files, %d more, %d processes, %v", test.stage, test.name, len(report.Files), report.More, len(report.Restart), err)
		}
	}
}

// pairInKubeletConf embeds the certificate and the key in kubelet.conf.
func (f *fixture) pairInKubeletConf(t testing.TB, pair []byte) {
	t.Helper()
	config := must.Value(clientcmd.LoadFromFile(f.file(kubeletConf)))(t)
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientCertificateData: pair, ClientKeyData: pair}
	f.write(t, kubeletConf, must.Value(clientcmd.Write(*config))(t))
}

// Catches a kubelet that continues to use a certificate of the old CA in stage switch, although Apply reports that the host
// fits. Also catches an Apply that reports forever that it must be repeated.
func TestKubeletPresentsNewCA(t *testing.T) {
	for name, test := range map[string]struct {
		make func(t *testing.T, f *fixture, current string)
		old  int // certificates that the kubelet may present
	}{
		"link that the kubelet maintains": {func(*testing.T, *fixture, string) {}, 1},
		"plain file": {func(t *testing.T, f *fixture, current string) {
			pair := must.Value(os.ReadFile(current))(t)
			must.OK(t, os.Remove(current))
			must.OK(t, os.WriteFile(current, pair, 0o600))
		}, 1},
		// A first control plane that an old kubeadm created. The kubelet prefers its own file to the certificate in
		// kubelet.conf.
		"embedded beside the link": {func(t *testing.T, f *fixture, current string) {
			f.pairInKubeletConf(t, must.Value(os.ReadFile(current))(t))
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rotation.Cluster, true)
			current := filepath.Join(f.KubeletDir, "pki/kubelet-client-current.pem")
			test.make(t, f, current)
			regular := must.Value(os.Lstat(current))(t).Mode().IsRegular()
			for _, sign := range []credentials.SignFunc{nil, func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
				return f.fresh.sign(t, r.CSR, time.Hour), nil
			}} {
				f.Sign = sign
				done := must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
				if sign == nil && len(done.Unfit) != test.old || sign != nil && len(done.Unfit) > 0 {
					t.Errorf("unfit %q, want %d before somebody signs, and none after", done.Unfit, test.old)
				}
			}
			content := must.Value(os.ReadFile(current))(t)
			chain := must.Value(pemfile.Certificates(content))(t)
			if _, err := pemfile.KeyPair(content, content); err != nil || !issuedBy(chain[0], f.fresh.Certificate()) {
				t.Errorf("the kubelet has a certificate of %s; %v", chain[0].Issuer, err)
			}
			if must.Value(os.Lstat(current))(t).Mode().IsRegular() != regular {
				t.Error("a file became a link, or a link a file")
			}
		})
	}
}

// Apply embeds a credential, and in the same stage an operator replaces it. Catches an Apply that restores its own credential.
func TestKeepsNewCredentialOfNode(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	must.OK(t, os.RemoveAll(filepath.Join(f.KubeletDir, "pki")))
	f.pairInKubeletConf(t, f.old.kubelet(t, time.Hour))
	f.Sign = func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
		return f.fresh.sign(t, r.CSR, time.Hour), nil
	}
	must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
	another := f.fresh.kubelet(t, 2*time.Hour)
	f.pairInKubeletConf(t, another)
	for range 2 {
		must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
		if user := must.Value(clientcmd.LoadFromFile(f.file(kubeletConf)))(t).AuthInfos["me"]; !bytes.Equal(user.ClientKeyData, another) {
			t.Error("the new credential was replaced by the one that Apply embedded")
		}
	}
}

// An operator may encrypt the key of a CA in any stage. Catches an Apply that restores the plain key, or refuses the encrypted
// file.
func TestKeepsEncryptedKey(t *testing.T) {
	key := authorities[rotation.FrontProxy].key
	encrypted := pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED PRIVATE KEY", Bytes: []byte("x")})
	for at, next := range map[rotation.Stage]rotation.Stage{rotation.Prepare: rotation.Trust, rotation.Switch: rotation.Finish} {
		f := newFixture(t, rotation.FrontProxy, false) // this CA has few files
		must.Value(f.Apply(t.Context(), f.at(at)))(t)
		f.write(t, key, encrypted)
		f.Key = nil // Apply no longer needs the key
		for _, stage := range []rotation.Stage{at, next} {
			if _, err := f.Apply(t.Context(), f.at(stage)); err != nil || !bytes.Equal(must.Value(os.ReadFile(f.file(key)))(t), encrypted) {
				t.Errorf("encrypted in %s, in %s: %v; want the encrypted key", at, stage, err)
			}
		}
		if at != rotation.Prepare {
			continue
		}
		f.Key = func(context.Context) (crypto.Signer, error) { return f.fresh.private, nil }
		must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
		if !matches(must.Value(os.ReadFile(f.file(key)))(t), []*x509.Certificate{f.fresh.Certificate()}) {
			t.Error("the key of the old CA was encrypted, and the new CA has none")
		}
	}
}

// After the rotation has ended, catches a next step that would begin another rotation.
func TestNamesNoStepAfterTheEnd(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	f.write(t, "mine/ca.pem", f.old.cert)
	f.Sign = nil
	r := f.at(rotation.Finish)
	must.Value(f.Apply(t.Context(), r))(t)
	r.Ended = time.Now()
	done := must.Value(f.Apply(t.Context(), r))(t)
	if text := strings.Join(done.Unfit, "\n"); !strings.Contains(text, "mine/ca.pem") || strings.Contains(text, "--leave-behind-file") {
		t.Errorf("got %q", done.Unfit)
	}
}

// blind is an observer that returns no observations.
type blind struct{}

func (blind) Observe(context.Context, rotation.Rotation) ([]rotation.Observation, error) {
	return nil, nil
}

// Catches an Apply that refuses a correct host.
func TestAcceptsHarmlessHosts(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, f *fixture) rotation.Rotation{
		"link to kubelet.conf": func(t *testing.T, f *fixture) rotation.Rotation {
			must.OK(t, os.Symlink(kubeletConf, f.file("a.conf")))
			return f.at(rotation.Trust)
		},
		"kubeconfig that has no certificate in it": func(t *testing.T, f *fixture) rotation.Rotation {
			f.write(t, "admin.conf", kubeconfigOf(t, clientcmdapi.Cluster{CertificateAuthorityData: f.old.cert}, nil))
			return f.at(rotation.Prepare) // stage prepare checks all stages
		},
		"kubeconfig made since the backup": func(t *testing.T, f *fixture) rotation.Rotation {
			must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
			f.write(t, "super-admin.conf", kubeconfigOf(t, clientcmdapi.Cluster{CertificateAuthorityData: f.old.cert}, f.old.kubelet(t, time.Hour)))
			return f.at(rotation.Trust)
		},
		"kubeconfig changed since the backup": func(t *testing.T, f *fixture) rotation.Rotation {
			for _, server := range []string{"", "https://192.0.2.7:6443"} {
				f.write(t, "webhook.conf", []byte(strings.ReplaceAll(f.before[kubeletConf], "https://192.0.2.1:6443", server)))
				must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
			}
			return f.at(rotation.Trust)
		},
		"bundle in another order": func(t *testing.T, f *fixture) rotation.Rotation {
			must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t)
			f.write(t, "pki/ca.crt", slices.Concat([]byte("# mine\n"), f.fresh.cert, f.old.cert))
			return f.at(rotation.Trust)
		},
		"prepared again with the same CA after an abort": func(t *testing.T, f *fixture) rotation.Rotation {
			must.Value(f.Apply(t.Context(), f.at(rotation.Prepare)))(t)
			store := &rotationtest.Memory{}
			must.OK(t, store.Put(t.Context(), f.at(rotation.Prepare), ""))
			_, version, err := store.Get(t.Context(), rotation.Cluster)
			must.OK(t, err)
			ended := f.aborted(rotation.Prepare)
			ended.Ended = time.Now()
			must.OK(t, store.Put(t.Context(), ended, version))
			desk := rotation.Desk{Store: store, Keys: store, Observer: blind{}, Trusted: func(context.Context, rotation.CA) ([]*x509.Certificate, error) { return ended.Old, nil }}
			return must.Value(desk.Prepare(t.Context(), rotation.PrepareRequest{CA: rotation.Cluster, Certificates: ended.New}))(t).Rotation
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rotation.Cluster, true)
			if done, err := f.Apply(t.Context(), prepare(t, f)); err != nil || len(done.Unfit) > 0 {
				t.Errorf("%v, unfit %q", err, done.Unfit)
			}
		})
	}
}

// Catches containers that read a changed file only at start, and that Apply neither ends nor reports.
func TestFindsContainersThatReadOnce(t *testing.T) {
	const mounts = `{name: %[1]s, image: x, %[2]s volumeMounts: [{name: %[1]s, mountPath: /inside}]}`
	vip := func(t *testing.T, f *fixture, path, containers string) {
		f.write(t, "manifests/vip.yaml", fmt.Appendf(nil, `{metadata: {name: vip}, spec: {volumes: [{name: a, hostPath: {path: %q}}, {name: b, hostPath: {path: %q}}], %s}}`, f.file("pki/ca.crt"), path, containers))
	}
	server := func(t *testing.T, f *fixture, flag, more string) {
		y := strings.Replace(podYAML("kube-apiserver"), "    image: x\n", "    image: kube-apiserver:v1.36.0\n    command: [kube-apiserver, "+flag+"]\n", 1)
		f.write(t, "manifests/kube-apiserver.yaml", []byte(y+more))
	}
	for name, test := range map[string]struct {
		make func(t *testing.T, f *fixture)
		want string // containers, and the files that they read only at start
	}{
		"sidecar": {func(t *testing.T, f *fixture) {
			vip(t, f, f.file("admin.conf"), "containers: [{name: a, image: x}], initContainers: ["+fmt.Sprintf(mounts, "b", "restartPolicy: Always,")+"]")
		}, "vip/b [admin.conf]"},
		"init container": {func(t *testing.T, f *fixture) {
			vip(t, f, f.file("admin.conf"), "containers: [{name: a, image: x}], initContainers: ["+fmt.Sprintf(mounts, "b", "")+"]")
		}, ""},
		"two containers": {func(t *testing.T, f *fixture) {
			vip(t, f, f.file("admin.conf"), "containers: ["+fmt.Sprintf(mounts, "a", "")+", "+fmt.Sprintf(mounts, "b", "")+"]")
		}, "vip [pki/ca.crt], vip/b [admin.conf]"},
		"second container of a pod of kubeadm": {func(t *testing.T, f *fixture) {
			f.write(t, "manifests/kube-scheduler.yaml", []byte(podYAML("kube-scheduler")+"  - {name: b, image: x, volumeMounts: [{name: b, mountPath: /inside}]}\n  volumes: [{name: b, hostPath: {path: "+f.file("admin.conf")+"}}]\n"))
		}, "kube-scheduler/b [admin.conf]"},
		"mount of a link": {func(t *testing.T, f *fixture) {
			link := filepath.Join(t.TempDir(), "config")
			must.OK(t, os.Symlink(f.file("admin.conf"), link))
			vip(t, f, link, "containers: ["+fmt.Sprintf(mounts, "b", "")+"]")
		}, "vip [admin.conf]"},
		"webhook at another path": {func(t *testing.T, f *fixture) {
			f.write(t, "kubejoin/webhook.conf", []byte(f.before[kubeletConf]))
			f.write(t, "kubejoin/authorization.yaml", []byte("kubeConfigFile: /etc/authz/webhook.conf"))
			server(t, f, "--authorization-config=/etc/authz/authorization.yaml", "    volumeMounts: [{name: w, mountPath: /etc}, {name: v, mountPath: /etc/authz}, {name: w, mountPath: /}]\n  volumes: [{name: v, hostPath: {path: "+f.file("kubejoin")+"}}, {name: w, hostPath: {path: /nowhere}}]\n")
		}, "kube-apiserver [kubejoin/webhook.conf]"},
		"kubeconfig of a flag": {func(t *testing.T, f *fixture) {
			f.write(t, "webhook.conf", []byte(f.before[kubeletConf]))
			server(t, f, "--authorization-webhook-config-file="+f.file("webhook.conf"), "")
		}, "kube-apiserver [webhook.conf]"},
		"kubeconfig that Apply does not change": {func(t *testing.T, f *fixture) {
			file := filepath.Join(t.TempDir(), "webhook.conf")
			must.OK(t, os.WriteFile(file, []byte(f.before[kubeletConf]), 0o600))
			must.OK(t, os.Symlink(file, f.file("webhook.conf")))
			server(t, f, "--authorization-webhook-config-file="+f.file("webhook.conf"), "")
		}, ""},
		"CA of OIDC": {func(t *testing.T, f *fixture) { server(t, f, "--oidc-ca-file="+f.file("pki/ca.crt"), "") }, "kube-apiserver [pki/ca.crt]"},
		"client CA":  {func(t *testing.T, f *fixture) { server(t, f, "--client-ca-file="+f.file("pki/ca.crt"), "") }, ""},
		"CA that mentions a kubeconfig": {func(t *testing.T, f *fixture) {
			f.write(t, "webhook.conf", []byte(f.before[kubeletConf]))
			f.write(t, "mine/ca.crt", append(f.fresh.cert, f.file("webhook.conf")...))
			server(t, f, "--requestheader-client-ca-file="+f.file("mine/ca.crt"), "")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, rotation.Cluster, true)
			f.write(t, "admin.conf", kubeconfigOf(t, clientcmdapi.Cluster{CertificateAuthorityData: f.old.cert}, f.old.kubelet(t, time.Hour)))
			test.make(t, f)
			var got []string
			for _, p := range must.Value(f.look(authorities[rotation.Cluster], f.rotation))(t).pods {
				got = append(got, fmt.Sprint(p.name, " ", p.once))
			}
			if text := strings.Join(got, ", "); text != test.want {
				t.Errorf("got %q, want %q", text, test.want)
			}
		})
	}
	f := newFixture(t, rotation.Cluster, true)
	f.machine.others = map[string]process{"a": {77, f.machine.booted}, "b": {78, f.machine.booted}}
	vip(t, f, f.file("pki/ca.crt"), "containers: ["+fmt.Sprintf(mounts, "a", "")+", "+fmt.Sprintf(mounts, "b", "")+"]")
	f.Restart = []string{"vip/b"}
	if done := must.Value(f.Apply(t.Context(), f.at(rotation.Trust)))(t); len(done.Unfit) != 1 || !strings.HasPrefix(done.Unfit[0], "process vip on worker-1 ") || !slices.Equal(f.machine.ended, []int{78}) {
		t.Errorf("unfit %q, ended %d", done.Unfit, f.machine.ended)
	}
}

// Catches an Apply that waits for a pod that does not run, and so delays its host and keeps the Lease.
func TestGoesOnWithoutPodThatDoesNotRun(t *testing.T) {
	f := newFixture(t, rotation.Cluster, true)
	f.manifestOf(t, "vip", f.file("pki/ca.crt"), "")
	f.Restart, f.Wait = []string{"vip"}, time.Second
	held := 0
	f.Lock = func(context.Context) (func(), error) { held++; return func() { held-- }, nil }
	r := f.at(rotation.Trust)
	for range 2 {
		if done, err := f.Apply(t.Context(), r); err != nil || held > 0 || len(done.Unfit) != 1 || !strings.HasPrefix(done.Unfit[0], "process vip on worker-1 ") {
			t.Errorf("got %v, unfit %q, %d locks", err, done.Unfit, held)
		}
	}
	r.LeftFiles = []string{"worker-1:vip"}
	if done := must.Value(f.Apply(t.Context(), r))(t); len(done.Unfit) > 0 {
		t.Errorf("left behind: %q", done.Unfit)
	}
}

// container starts a process with its own root, like a container. script mounts the folder root/at and the file root/on in it.
// With user, the process has its own user namespace.
func container(t *testing.T, user bool, script string) int {
	t.Helper()
	args := []string{"--mount", "sh", "-euc", `
mount -t tmpfs none root
for dir in /bin /lib /lib64 /usr; do
	if [ -L $dir ]; then cp -P $dir root; elif [ -d $dir ]; then mkdir root$dir; mount --bind $dir root$dir; fi
done
mkdir root/at; touch root/on
` + script + `
exec chroot root sh -c 'echo ready; exec sleep 1000'`}
	if user {
		args = append([]string{"--user", "--map-root-user"}, args...)
	}
	command := exec.CommandContext(t.Context(), "unshare", args...)
	output := must.Value(command.StdoutPipe())(t)
	must.OK(t, command.Start())
	t.Cleanup(func() { _, _ = command.Process.Kill(), command.Wait() })
	if n, _ := output.Read(make([]byte, 1)); n == 0 {
		t.Skip("this machine forbids mounts in a namespace")
	}
	return command.Process.Pid
}

// Catches an Apply that ends a process that only looks like a container, or that misses containers with their own file system.
func TestFindsContainerByItsMounts(t *testing.T) {
	need.Root(t)
	need.Programs(t, "unshare")
	base := must.Value(os.MkdirTemp("/dev/shm", "kubejoin test"))(t) // another file system, as a host may have for /etc
	t.Cleanup(func() { must.OK(t, os.RemoveAll(base)) })
	t.Chdir(base)
	for _, dir := range []string{"kubernetes", "root", "pods/1/containers/vip/1", "pods/1/containers/other/1"} {
		must.OK(t, os.MkdirAll(dir, 0o700))
	}
	for _, name := range []string{"kubernetes/admin.conf", "kubernetes/unrelated", "kubernetes/new"} {
		must.OK(t, os.WriteFile(name, nil, 0o600))
	}
	file := filepath.Join(base, "kubernetes/admin.conf")
	at := must.Value(mounted("self", func(m mount) bool { _, below := cutFolder(file, m.point); return below }))(t)
	same := filepath.Join(at.root, strings.TrimPrefix(file, at.point))
	const is, has = "mount --bind pods/1/containers/vip/1 root/at\n", "mount --bind kubernetes/admin.conf root/on\n"
	for _, other := range []struct {
		user   bool
		script string
	}{
		{false, has}, // not in a container
		{false, "mount --bind pods/1/containers/other/1 root/at\n" + has}, // in another container
		// Does not mount the file.
		{false, is + "mount --bind kubernetes/unrelated root/on\n"},
		// The file is on another file system.
		{false, is + fmt.Sprintf("mkdir -p 'root%s'; touch 'root%s'; mount --bind 'root%[2]s' root/on\n", filepath.Dir(same), same)},
		{true, is + has}, // in a user namespace, which any user may create
	} {
		container(t, other.user, other.script)
	}
	if p, err := inContainer("vip", file); err != nil || p.pid != 0 {
		t.Fatalf("got process %d, %v, want none", p.pid, err)
	}
	first := container(t, false, is+has)
	must.OK(t, os.Rename("kubernetes/new", file)) // Apply also replaces files by a rename
	wait.Until(t, "time in which the first one gets older", func() bool { return time.Since(must.Value(startedAt(first))(t)) > 100*time.Millisecond })
	second := container(t, false, is+"mkdir root/dir; mount --bind kubernetes root/dir")
	if p, err := inContainer("vip", file); err != nil || p.pid != first {
		t.Fatalf("got process %d, %v, want %d, which has the former file", p.pid, err, first)
	}
	must.OK(t, syscall.Kill(first, syscall.SIGKILL))
	wait.OK(t, "container with the folder", func() error {
		if p, err := inContainer("vip", file); err != nil || p.pid != second {
			return fmt.Errorf("got process %d, %v, want %d", p.pid, err, second)
		}
		return nil
	})
}

// startKubelet starts a process with the name of the kubelet. The process takes over the listener.
func startKubelet(t *testing.T, user uint32, listener net.Listener) int {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.Chmod(filepath.Dir(dir), 0o755)) // let other users in
	program := filepath.Join(dir, kubeletComm)
	must.OK(t, os.WriteFile(program, []byte("#!/bin/sh\nread line\n"), 0o755))
	command := exec.CommandContext(t.Context(), program)
	if user != uint32(os.Getuid()) {
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	}
	socket := must.Value(listener.(*net.TCPListener).File())(t)
	command.ExtraFiles = []*os.File{socket}
	must.Value(command.StdinPipe())(t) // read waits for input
	must.OK(t, command.Start())
	t.Cleanup(func() { _, _ = command.Process.Kill(), command.Wait() })
	must.OK(t, errors.Join(listener.Close(), socket.Close()))
	return command.Process.Pid
}

// Another process may listen on the kubelet's port. Catches an Apply that ends a process that gets no kubelet connections, or
// that belongs to another user.
func TestFindsProcessThatGetsConnections(t *testing.T) {
	at := func(l net.Listener, host string) service {
		return service{port: l.Addr().(*net.TCPAddr).Port, url: "http://" + host + "/", comm: kubeletComm}
	}
	four := must.Value(net.Listen("tcp4", "0.0.0.0:0"))(t)
	// This fails on a machine without IPv6.
	if six, err := net.Listen("tcp6", fmt.Sprintf("[::]:%d", four.Addr().(*net.TCPAddr).Port)); err == nil {
		for host, want := range map[string]int{"127.0.0.1": startKubelet(t, uint32(os.Getuid()), four), "[::1]": startKubelet(t, uint32(os.Getuid()), six)} {
			if p, err := (machine{}).listenerNow(at(four, host)); err != nil || p.pid != want {
				t.Errorf("%s: got process %d, %v, want %d", host, p.pid, err, want)
			}
		}
	}
	former := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	client := must.Value(net.Dial("tcp", former.Addr().String()))(t)
	server := must.Value(former.Accept())(t)
	must.OK(t, former.Close())
	if p, err := (machine{}).listenerNow(at(former, "127.0.0.1")); err != nil || p.pid != 0 {
		t.Errorf("a connection, and no listener: got process %d, %v", p.pid, err)
	}
	must.OK(t, errors.Join(client.Close(), server.Close()))
	if ip := kernelIP("0100007F00"); ip != nil {
		t.Errorf("5 bytes: got %s", ip)
	}
	need.Root(t) // starts a process of another user
	const nobody = 65534
	listener := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	startKubelet(t, nobody, listener)
	if p, err := (machine{}).listenerNow(at(listener, "127.0.0.1")); err == nil || !strings.Contains(err.Error(), "of user 65534, listens") {
		t.Errorf("a kubelet of nobody: got process %d, %v", p.pid, err)
	}
}

// Back in stage trust, a kubelet that reloads its client CAs must be restarted only for its certificate. Catches a kubelet that
// continues to use the certificate of the new CA.
func TestKubeletRestartsForItsCertificate(t *testing.T) {
	for _, embedded := range []bool{false, true} {
		f := newFixture(t, rotation.Cluster, true)
		if current := filepath.Join(f.KubeletDir, "pki/kubelet-client-current.pem"); embedded {
			f.pairInKubeletConf(t, must.Value(os.ReadFile(current))(t))
			must.OK(t, os.Remove(current))
		}
		sign := func(ca testCA) {
			f.Sign = func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
				return ca.sign(t, r.CSR, time.Hour), nil
			}
		}
		sign(f.fresh)
		must.Value(f.Apply(t.Context(), f.at(rotation.Switch)))(t)
		sign(f.old)
		if done := must.Value(f.Apply(t.Context(), f.aborted(rotation.Trust)))(t); !slices.Equal(done.Restarted, []string{"kubelet"}) || len(done.Unfit) > 0 {
			t.Errorf("embedded: %t: restarted %q, unfit %q", embedded, done.Restarted, done.Unfit)
		}
	}
}
