package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/clusterinfo/kubeadmcerts"
	"github.com/kubejoin/kubejoin/internal/host/pki"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
	"sigs.k8s.io/yaml"
)

// A caWorker is the folder of a worker, and a fake API server that has the state of a rotation.
type caWorker struct {
	dir, kubelet string
	rotation     rotation.Rotation // the zero value: no rotation
	secret       map[string][]byte // data of the Secret with the new CA's key
	patches      []string
	events       []string
	requests     int                      // of certificates
	version      string                   // of the kubelet
	lease        coordinationv1.LeaseSpec // the Lease that a restarting control plane holds

	old, fresh *signer.CA
}

func newCAWorker(t *testing.T) *caWorker {
	t.Helper()
	w := &caWorker{dir: t.TempDir(), kubelet: t.TempDir()}
	old := must.Value(signer.GenerateCA("old", time.Now(), 24*time.Hour))(t)
	fresh := must.Value(signer.GenerateCA("new", time.Now(), 24*time.Hour))(t)
	w.old, w.fresh = old, fresh
	certs, key, err := old.PEM()
	must.OK(t, err)
	pair := must.Value(tls.X509KeyPair(certs, key))(t)
	pair.Leaf = old.Certificate()
	like := fresh.Certificate()
	der := must.Value(x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), RawSubject: like.RawSubject, NotBefore: like.NotBefore, NotAfter: like.NotAfter, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, old.Certificate(), like.PublicKey, pair.PrivateKey))(t)
	w.rotation = must.Value(rotation.New(rotation.Cluster, old.Bundle(), fresh.Bundle(), must.Value(x509.ParseCertificate(der))(t), time.Now()))(t)
	w.rotation.Stage = rotation.Trust
	web := httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	serving := certtest.Serving(t, &pair, "127.0.0.1")
	web.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12}
	web.StartTLS()
	t.Cleanup(web.Close)
	leaf := certtest.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, &pair)
	write := func(file string, content []byte) {
		t.Helper()
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.OK(t, os.WriteFile(file, content, 0o600))
	}
	current := filepath.Join(w.kubelet, "pki", "kubelet-client-1.pem")
	write(current, append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}), must.Value(keyutil.MarshalPrivateKeyToPEM(leaf.PrivateKey))(t)...))
	write(filepath.Join(w.dir, "pki/ca.crt"), certs)
	write(filepath.Join(w.dir, "kubelet.conf"), must.Value(clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: web.URL, CertificateAuthorityData: certs}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {ClientCertificate: current, ClientKey: current}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "me"}}, CurrentContext: "x",
	}))(t))
	write(filepath.Join(w.kubelet, "config.yaml"), []byte("healthzPort: 0\nport: 1\n")) // no kubelet runs
	return w
}

func (w *caWorker) serve(out http.ResponseWriter, r *http.Request) {
	out.Header().Set("Content-Type", "application/json")
	reply := func(object any) { _ = json.NewEncoder(out).Encode(object) }
	node := corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
	switch r.Method + " " + r.URL.Path {
	case "GET /api/v1/namespaces/kube-public/configmaps/kubejoin-ca":
		data := map[string]string{}
		if content, err := rotation.Encode(w.rotation); err == nil {
			data[string(w.rotation.CA)] = string(content)
		}
		reply(corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: data})
	case "GET /api/v1/namespaces/kube-system/secrets/kubejoin-ca-key":
		reply(corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, Data: w.secret})
	case "GET /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kubejoin-ca-apply":
		reply(coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}, Spec: w.lease})
	case "POST /apis/coordination.k8s.io/v1/namespaces/kube-system/leases": // a dry run, which shows the time
		reply(coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}})
	case "GET /api/v1/nodes/worker-1":
		node.Status.NodeInfo.KubeletVersion = w.version
		reply(node)
	case "PATCH /api/v1/nodes/worker-1":
		content, _ := io.ReadAll(r.Body)
		w.patches = append(w.patches, string(content))
		reply(node)
	case "POST /api/v1/namespaces/default/events":
		content, _ := io.ReadAll(r.Body)
		w.events = append(w.events, string(content))
		reply(corev1.Event{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}})
	default:
		if r.Method == http.MethodPost {
			w.requests++
		}
		out.WriteHeader(http.StatusForbidden)
		reply(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "no"})
	}
}

func TestCAApplyOnWorker(t *testing.T) {
	w := newCAWorker(t)
	w.version = "v1.35.4"
	apply := func(args ...string) (string, string, error) {
		return runCommand(t, append([]string{"ca", "apply", w.dir, "--kubelet-dir", w.kubelet}, args...)...)
	}
	before := must.Value(os.ReadFile(filepath.Join(w.dir, "kubelet.conf")))(t)
	stdout, _, err := apply("--dry-run")
	if err != nil || !strings.Contains(stdout, "+++ "+filepath.Join(w.dir, "kubelet.conf")) || len(w.patches) > 0 {
		t.Errorf("dry run: %v, patches %q\n%s", err, w.patches, stdout)
	}
	if after := must.Value(os.ReadFile(filepath.Join(w.dir, "kubelet.conf")))(t); string(after) != string(before) {
		t.Error("a dry run changed kubelet.conf")
	}
	stdout, stderr, err := apply("-o", "json")
	var list struct{ Items []pki.Result }
	unfit := func(err error) bool { // because no kubelet runs that could have read the files
		code := exitCode(0)
		return errors.As(err, &code) && code == exitUnfit
	}
	if !unfit(err) || json.Unmarshal([]byte(stdout), &list) != nil || len(list.Items) != 1 || strings.Join(list.Items[0].Changed, " ") != "pki/ca.crt kubelet.conf" {
		t.Errorf("got %v\n%s", err, stdout)
	}
	if !strings.Contains(stderr, "kubejoin: writing "+filepath.Join(w.dir, "kubelet.conf")) || !strings.Contains(stdout, `"restart": [`) {
		t.Errorf("got %q", stderr)
	}
	if len(w.patches) != 1 || !strings.Contains(w.patches[0], `kubejoin.io/ca-cluster`) || !strings.Contains(w.patches[0], w.rotation.ID) {
		t.Errorf("got patches %q", w.patches)
	}
	stdout, stderr, err = apply()
	if !unfit(err) || stdout != "CA cluster: this host did its part of stage trust, files changed: <none>; restarted: <none>\n" ||
		!strings.Contains(stderr, "process kubelet on worker-1 has not read its changed files; next: on worker-1: systemctl restart kubelet; then kubejoin ca apply") {
		t.Errorf("the second time: %v, %s%s", err, stdout, stderr)
	}
	w.version = "v1.36.0" // this version re-reads client CAs
	if _, stderr, err := apply(); err != nil || stderr != "" {
		t.Errorf("with a new kubelet: %v, %s", err, stderr)
	}
	w.rotation.Stage, w.rotation.Aborting = rotation.Prepare, true
	if _, _, err := apply("--ca", "cluster"); !unfit(err) || string(must.Value(os.ReadFile(filepath.Join(w.dir, "kubelet.conf")))(t)) != string(before) {
		t.Errorf("after an abort: %v, want the former kubelet.conf", err)
	}
	if stdout, _, err := apply("--ca", "etcd"); err != nil || stdout != "no CA is rotated\n" {
		t.Errorf("another CA: %v, %s", err, stdout)
	}
	w.rotation = rotation.Rotation{}
	if _, _, err := apply(); err == nil || !strings.Contains(err.Error(), "is the backup of a rotation that the cluster does not know: it has no rotation of this CA") {
		t.Errorf("after the state was lost: got %v", err)
	}
	must.OK(t, os.RemoveAll(filepath.Join(w.dir, pki.Backups)))
	if stdout, _, err := apply(); err != nil || stdout != "no CA is rotated\n" {
		t.Errorf("no rotation: %v, %s", err, stdout)
	}
}

// applied fails the test unless the only problem is that no kubelet runs.
func applied(t *testing.T, err error) {
	t.Helper()
	if unfit, code := (unfitError{}), exitCode(0); err != nil && !errors.As(err, &unfit) && (!errors.As(err, &code) || code != exitUnfit) {
		t.Error(err)
	}
}

// A control plane gets the new key from the cluster, once, and reads the stage with admin.conf.
func TestCAApplyOnControlPlane(t *testing.T) {
	w := newCAWorker(t)
	config := must.Value(clientcmd.LoadFromFile(filepath.Join(w.dir, "kubelet.conf")))(t)
	key := csrtest.NewKey()
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientKeyData: must.Value(keyutil.MarshalPrivateKeyToPEM(key))(t)}
	admin := filepath.Join(w.dir, "admin.conf")
	must.OK(t, clientcmd.WriteToFile(*config, admin))
	must.OK(t, os.WriteFile(admin+".csr", csrtest.PEM(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}}}, key), 0o600))
	_, oldKey, err := w.old.PEM()
	must.OK(t, err)
	must.OK(t, os.WriteFile(filepath.Join(w.dir, "pki/ca.key"), oldKey, 0o600))
	if _, _, err := runCommand(t, "sign", "--kubeadm-dir", w.dir, "--pki-dir", filepath.Join(w.dir, "pki")); err != nil {
		t.Fatal(err)
	}
	with := joinformat.GenerateCertificateKey()
	_, newKey, err := w.fresh.PEM()
	must.OK(t, err)
	w.secret = must.Value(kubeadmcerts.Files{clusterstore.DataKey(rotation.Cluster, w.rotation.ID): newKey}.Encrypt(with))(t)
	apply := func(stdin string, args ...string) (string, error) {
		var out, errOut bytes.Buffer
		root := rootCommand()
		root.SetArgs(append([]string{"ca", "apply", w.dir, "--kubelet-dir", w.kubelet}, args...))
		root.SetIn(strings.NewReader(stdin))
		root.SetOut(&out)
		root.SetErr(&errOut)
		err := root.ExecuteContext(t.Context())
		return out.String() + errOut.String(), err
	}
	_, err = apply("")
	applied(t, err)
	w.rotation.Stage = rotation.Switch
	if _, err := apply(""); err == nil || !strings.Contains(err.Error(), "--certificate-key-file") {
		t.Errorf("without the key: got %v", err)
	}
	for input, want := range map[string]string{"x": "want 64 hexadecimal digits", joinformat.GenerateCertificateKey().Reveal(): "not encrypted with this certificate key"} {
		if _, err := apply(input, "--certificate-key-file", "-"); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), input+" ") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	exposed := filepath.Join(t.TempDir(), "exposed")
	must.OK(t, os.WriteFile(exposed, nil, 0o600))
	must.OK(t, os.Chmod(exposed, 0o604))
	for _, flag := range []string{"--certificate-key-file", "--ca-key-file"} {
		if _, err := apply("", flag, exposed); err == nil || !strings.Contains(err.Error(), flag+": "+exposed+": file is accessible to every user: mode is 0604") {
			t.Errorf("%s: got %v, want a refusal of the file", flag, err)
		}
	}
	out, err := apply(with.Reveal()+"\n", "--certificate-key-file", "-")
	applied(t, err)
	if strings.Contains(out, with.Reveal()) || !strings.Contains(out, "files changed: pki/ca.crt,admin.conf,kubelet.conf,pki/ca.key") {
		t.Errorf("got %v\n%s", err, out)
	}
	out, err = apply("")
	if applied(t, err); !strings.Contains(out, "files changed: <none>") {
		t.Errorf("the host has the key: got %v\n%s", err, out)
	}
	// Now give the key in a file.
	w.rotation.Stage, w.rotation.Aborting = rotation.Prepare, true
	_, err = apply("")
	applied(t, err)
	must.OK(t, os.RemoveAll(filepath.Join(w.dir, pki.Backups)))
	w.rotation.Stage, w.rotation.Aborting = rotation.Switch, false
	file := filepath.Join(t.TempDir(), "new.key")
	must.OK(t, os.WriteFile(file, newKey, 0o600))
	out, err = apply("", "--ca-key-file", file)
	if applied(t, err); !strings.Contains(out, "pki/ca.key") {
		t.Errorf("--ca-key-file: got %v\n%s", err, out)
	}
}

// With --watch, the command must store a report only once, and wait before it requests a certificate again. When stopped,
// it must end without an error.
func TestCAApplyWatches(t *testing.T) {
	w := newCAWorker(t)
	must.OK(t, os.Symlink("kubelet-client-1.pem", filepath.Join(w.kubelet, "pki", "kubelet-server-current.pem")))
	a, cmd, out, _ := w.watch()
	ctx, cancel := context.WithCancel(t.Context())
	cmd.SetContext(ctx)
	for range 2 {
		applied(t, a.apply(cmd))
	}
	if len(w.patches) != 1 || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("got patches %q\n%s", w.patches, out)
	}
	w.rotation.Stage = rotation.Switch
	for range 2 {
		applied(t, a.apply(cmd))
	}
	if len(w.patches) != 2 || strings.Count(out.String(), "\n") != 2 || w.requests != 2 {
		t.Errorf("in the next stage: got patches %q, and %d requests\n%s", w.patches, w.requests, out)
	}
	cancel()
	if err := a.run(cmd, a.apply); err != nil {
		t.Error(err)
	}
}

// watch returns a caApplier with --watch and the command's defaults.
func (w *caWorker) watch() (a *caApplier, cmd *cobra.Command, out, errOut *bytes.Buffer) {
	out, errOut = new(bytes.Buffer), new(bytes.Buffer)
	cmd = caApplyCommand()
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	return newCAApplier(&caApplyOptions{kubeletDir: w.kubelet, wait: time.Minute, watch: true, qps: defaultRotationQPS}, w.dir), cmd, out, errOut
}

// In a large cluster, a worker must wait for its turn, and one wave between two requests. A control plane and a command
// without --watch must not wait.
func TestCAApplyWaitsForItsTurn(t *testing.T) {
	w := newCAWorker(t)
	must.OK(t, os.Symlink("kubelet-client-1.pem", filepath.Join(w.kubelet, "pki", "kubelet-server-current.pem")))
	w.rotation.Nodes = 10_000
	wait := w.rotation.Start("worker-1", defaultRotationQPS).Sub(w.rotation.Since)
	a, cmd, _, errOut := w.watch()
	cmd.SetContext(t.Context())
	apply := func(began time.Time, requests, patches int) {
		t.Helper()
		w.rotation.Since = began
		applied(t, a.apply(cmd))
		if w.requests != 2*requests || len(w.patches) != patches { // one request each for the client and the serving certificate
			t.Errorf("%s after the beginning of the stage: %d requests of certificates and %d reports, want %d and %d", time.Since(began).Round(time.Second), w.requests, len(w.patches), 2*requests, patches)
		}
	}
	begin := time.Now()
	w.rotation.Stage = rotation.Switch
	for range 2 {
		apply(begin, 0, 0)
	}
	if n := strings.Count(errOut.String(), "the turn of this host in stage switch is at "+begin.UTC().Add(wait).Format(time.RFC3339)); n != 1 {
		t.Errorf("the turn was logged %d times, want once:\n%s", n, errOut)
	}
	apply(time.Now().Add(-wait-time.Second), 1, 1)
	for _, last := range a.requests {
		if last.wait != w.rotation.Wave(defaultRotationQPS) {
			t.Errorf("the next request comes after %s, want after the wave of %s", last.wait, w.rotation.Wave(defaultRotationQPS))
		}
	}
	apply(w.rotation.Since, 1, 1)
	must.OK(t, os.Mkdir(filepath.Join(w.dir, "manifests"), 0o700))
	must.OK(t, os.WriteFile(filepath.Join(w.dir, "manifests/etcd.yaml"), []byte("metadata: {name: etcd}\nspec: {containers: [{name: etcd}]}\n"), 0o600))
	apply(time.Now(), 2, 2)
	must.OK(t, os.Remove(filepath.Join(w.dir, "manifests/etcd.yaml")))
	a.watch = false
	apply(time.Now(), 3, 3)
}

// onWrite is a writer that calls a function with each text.
type onWrite func(text string)

func (f onWrite) Write(text []byte) (int, error) {
	f(string(text))
	return len(text), nil
}

// listen starts a process with this name that listens, and returns its port.
func listen(t *testing.T, name string) int {
	t.Helper()
	listener := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	socket := must.Value(listener.(*net.TCPListener).File())(t)
	program := filepath.Join(t.TempDir(), name)
	must.OK(t, os.Symlink(must.Value(exec.LookPath("sleep"))(t), program))
	process := exec.CommandContext(t.Context(), program)
	process.Args, process.ExtraFiles = []string{"sleep", "1000"}, []*os.File{socket}
	must.OK(t, process.Start())
	t.Cleanup(func() { _, _ = process.Process.Kill(), process.Wait() })
	must.OK(t, errors.Join(socket.Close(), listener.Close()))
	return listener.Addr().(*net.TCPAddr).Port
}

// Two control planes that restart at the same time would stop etcd. So apply must end no process while another control
// plane holds the Lease.
func TestCAApplyRestartsOneControlPlaneAtATime(t *testing.T) {
	w := newCAWorker(t)
	w.rotation.CA = rotation.Etcd
	now, holder, seconds := metav1.NowMicro(), "cp-2", int32(600)
	w.lease = coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}
	for _, dir := range []string{"pki/etcd", "manifests"} {
		must.OK(t, os.Mkdir(filepath.Join(w.dir, dir), 0o700))
	}
	must.OK(t, os.Rename(filepath.Join(w.dir, "pki/ca.crt"), filepath.Join(w.dir, "pki/etcd/ca.crt")))
	must.OK(t, os.WriteFile(filepath.Join(w.kubelet, "config.yaml"), fmt.Appendf(nil, "healthzPort: %d\n", listen(t, "kubelet")), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(w.dir, "manifests/etcd.yaml"), fmt.Appendf(nil, "metadata: {name: etcd}\nspec: {containers: [{livenessProbe: {httpGet: {port: %d}}}]}", listen(t, "etcd")), 0o600))
	a, cmd, _, _ := w.watch()
	a.wait = time.Second
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd.SetContext(ctx)
	var log strings.Builder
	cmd.SetErr(onWrite(func(text string) {
		log.WriteString(text)
		if strings.Contains(text, "waiting: cp-2 restarts its control plane") {
			cancel()
		}
	}))
	if err := a.apply(cmd); !errors.Is(err, context.Canceled) || strings.Contains(log.String(), "restarting") {
		t.Errorf("got %v, want to wait for the Lease\n%s", err, log.String())
	}
}

// Catches DaemonSet flags that the command does not have, and a host folder that is mounted at another path. Also catches
// security settings that block access to processes and files of the host.
func TestCAApplyDaemonSet(t *testing.T) {
	content := must.Value(os.ReadFile("../../deploy/host/daemonset.yaml"))(t)
	var set appsv1.DaemonSet
	must.OK(t, yaml.UnmarshalStrict(content, &set))
	pod := set.Spec.Template.Spec
	cmd, args, err := rootCommand().Find(pod.Containers[0].Args)
	if err != nil || cmd.CommandPath() != "kubejoin host apply" || cmd.ParseFlags(args) != nil || !cmd.Flags().Changed("watch") {
		t.Errorf("the arguments are %q: %v", pod.Containers[0].Args, err)
	}
	paths := map[string]string{}
	for _, v := range pod.Volumes {
		paths[v.Name] = v.HostPath.Path
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if paths[m.Name] != m.MountPath || m.ReadOnly || m.MountPath != kubeadmDir && m.MountPath != kubeletDir {
			t.Errorf("%s of the host is at %s", paths[m.Name], m.MountPath)
		}
	}
	limits := pod.Containers[0].SecurityContext
	for _, c := range []corev1.Capability{"SYS_PTRACE", "KILL", "CHOWN", "DAC_OVERRIDE", "FOWNER"} {
		if !slices.Contains(limits.Capabilities.Add, c) {
			t.Errorf("the container does not have %s", c)
		}
	}
	if limits.AppArmorProfile == nil || limits.AppArmorProfile.Type != corev1.AppArmorProfileTypeUnconfined {
		t.Errorf("got the AppArmor profile %+v", limits.AppArmorProfile)
	}
	if len(paths) != 2 || !pod.HostNetwork || !pod.HostPID || *pod.AutomountServiceAccountToken {
		t.Errorf("got %+v", pod)
	}
}

func TestCAApplyRefusesFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--ca: other given":               {"--ca", "other"},
		"excludes --certificate-key-file": {"--ca-key-file", "x", "--certificate-key-file", "y"},
		"--wait: 0s given":                {"--wait", "0"},
		"--ca-rotation-qps: 0 given":      {"--ca-rotation-qps", "0"},
		"--ca-pin: CA pin":                {"--ca-pin", "sha256:1"},
		"--watch: excludes":               {"--watch", "--dry-run"},
		"DIR: 2 given":                    {"a", "b"},
		"--output: name given":            {"-o", "name"},
	} {
		_, _, err := runCommand(t, append([]string{"ca", "apply"}, args...)...)
		var usage *usageError
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `"`, ""), want) {
			t.Errorf("%q: got %v, want %s", args, err, want)
		} else if !errors.As(err, &usage) || usage.command != "kubejoin ca apply" {
			t.Errorf("%q: got %T, want a usage error with the command", args, err)
		}
	}
}
