package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo/joinformat"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
	"github.com/kubejoin/kubejoin/signer/rotation/clusterstore"
	"github.com/kubejoin/kubejoin/test/cluster"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observations are the results of a test's Observer. Nil means one host that has applied each stage.
type observations []rotation.Observation

func (seen *observations) Observe(_ context.Context, r rotation.Rotation) ([]rotation.Observation, error) {
	if *seen != nil {
		return *seen, nil
	}
	o := rotation.Observation{Kind: rotation.KindAPIServer, Name: "ca.crt on cp-1", Node: "cp-1", Trusts: &rotation.Trusted{Old: r.TrustsOld(), New: r.TrustsNew()}, From: rotation.FromOld}
	if r.SignsNew() {
		o.From = rotation.FromNew
	}
	return []rotation.Observation{o}, nil
}

// ca runs 'kubejoin ca' against the server.
func (w *webServer) ca(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err := run(t.Context(), w.args("", append([]string{"ca"}, args...)...), &stdout, &stderr)
	return result{t, strings.Join(args, " "), stdout.String(), stderr.String(), err}
}

func plainServer(api http.Handler) http.Handler { return api }

// Catches a step that does not print the next command, and other text on standard output beside the certificate key.
func TestCARotationThereAndBack(t *testing.T) {
	web := newWebServer(t, plainServer)
	web.ca(t, "status").ok().has("the cluster CA has not been rotated; next: kubejoin ca prepare\n")
	if dry := web.ca(t, "prepare", "--dry-run").ok().warned("nothing has changed"); dry.stdout != "" {
		t.Errorf("dry run: got %q on standard output, want nothing", dry.stdout)
	}
	web.ca(t, "trust").failed("no rotation in progress; 'kubejoin ca prepare' begins one")
	made := web.ca(t, "prepare", "--lifetime", "3650d").ok().warned("  kubejoin ca trust\n").warned("only once").warned("sha256:")
	if !regexp.MustCompile(`^[0-9a-f]{64}\n$`).MatchString(made.stdout) || strings.Contains(made.stderr, strings.TrimSpace(made.stdout)) {
		t.Errorf("prepare: got %q on standard output, want the certificate key alone, and not on standard error", made.stdout)
	}
	if !regexp.MustCompile(`ca apply +on each control plane\n`).MatchString(made.stderr) {
		t.Errorf("prepare: got %s, want 'ca apply' on each control plane", made.stderr)
	}
	web.ca(t, "prepare").failed("is in stage prepare")
	web.ca(t, "finish").failed("cannot finish")
	for _, test := range []struct{ step, says, next string }{
		{"trust", "stage trust: both CAs are trusted, and the old one signs", "switch"},
		{"switch", "stage switch: both CAs are trusted, and the new one signs", "finish"},
		{"finish", "stage finish: only the new CA is trusted", "finish"},
		{"abort", "stage switch: both CAs are trusted, and the new one signs", "abort"},
		{"abort", "stage trust: both CAs are trusted, and the old one signs", "abort"},
		{"abort", "stage prepare: the new CA exists, and nothing trusts it", "abort"},
	} {
		if test.step == "abort" && strings.HasPrefix(test.says, "stage trust") { // the new CA has not cross-signed the old CA
			web.ca(t, "abort").failed("clients need until")
			web.later += time.Hour
		}
		web.ca(t, test.step, "--dry-run").ok().has("cluster CA, " + test.says + " (dry run: nothing has changed)\n")
		web.ca(t, test.step).ok().has("cluster CA, "+test.says+"\n", "  kubejoin ca apply    on each host", "  kubejoin ca status   until nothing is behind\n  kubejoin ca "+test.next+"\n")
	}
	web.ca(t, "abort").ok().has("the rotation was aborted, and the old CA stays\n")
	web.ca(t, "status").ok().has("cluster   aborted ", "kubejoin ca prepare")

	web.ca(t, "prepare").ok()
	for _, step := range []string{"trust", "switch", "finish", "finish"} {
		web.ca(t, step).ok()
	}
	web.ca(t, "finish").ok().has("  kubejoin ca apply    on each host of a cluster: it removes its backup\n")
	web.ca(t, "status", "-o", "jsonpath={.stage} {.signs} {.trusted.old}").ok().has("finish new false")
	web.ca(t, "status").ok().has("cluster   ended ")
	web.seen = observations{{Kind: rotation.KindFile, Name: "report of worker-1", Node: "worker-1", Unseen: "the reason", Next: "the command"}}
	web.ca(t, "status").ok().has("cluster   ended ", "1 of 1 observations are behind:\n", "worker-1   file report of worker-1 was not seen: the reason   the command\n")
	web.ca(t, "status", "--ca", "etcd").ok().has("the etcd CA has not been rotated; next: kubejoin ca prepare --ca etcd\n")
}

// Catches a refusal that does not name what is behind and what to do, or that has the wrong exit code.
func TestCAStepThatIsNotReady(t *testing.T) {
	web := newWebServer(t, plainServer)
	web.ca(t, "prepare").ok()
	web.ca(t, "trust").ok()
	web.seen = observations{
		{Kind: rotation.KindKubelet, Name: "192.0.2.4:10250", Node: "worker-4", Trusts: &rotation.Trusted{Old: true}, Next: "on worker-4: kubejoin ca apply"},
		{Kind: rotation.KindAPIServer, Name: "192.0.2.1:6443", Node: "cp-1", Trusts: &rotation.Trusted{Old: true, New: true}, From: rotation.FromOld, Until: time.Now().Add(time.Hour)},
		{Kind: rotation.KindRootCA, Name: "evil\x1b[31m", Unseen: "forbidden"},
		{Kind: rotation.KindCertificate, Name: "1", From: rotation.FromNew}, {Kind: rotation.KindCertificate, Name: "2", From: rotation.FromOld},
	}
	refused := web.ca(t, "switch").failed("not ready to switch: ").failed("\nNODE ").failed("\nworker-4 ").failed("on worker-4: kubejoin ca apply")
	if fail(io.Discard, refused.err) != 3 || refused.stdout != "" || strings.Contains(refused.err.Error(), "\x1b") {
		t.Errorf("switch: got %v and %q, want exit code 3, nothing on standard output, and no control character", refused.err, refused.stdout)
	}
	web.ca(t, "status").ok().has("1 of 2 live certificates are from the new CA\n", "2 of 5 observations are behind:\n", "worker-4 ", "does not trust the new CA", "was not seen: forbidden")
	web.ca(t, "status", "-o", "wide").ok().has("KIND ", "api-server    192.0.2.1:6443", "old,new", "forbidden\n")
	web.ca(t, "status", "-o", "jsonpath={.behind[*].node}").ok().has("worker-4")
	web.seen = web.seen[:2]
	web.ca(t, "switch", "--leave-behind", "worker-9").failed("--leave-behind: ")
	web.ca(t, "switch", "--leave-behind-file", "worker-4:").failed("--leave-behind-file: ")
	web.ca(t, "switch", "--leave-behind", "worker-4", "-o", "json").ok().has(`"leftBehind": [`)
	web.ca(t, "status").ok().has("kubejoin ca finish")
}

// Catches a flag that is ignored, and an error that names an API field instead of the flag.
func TestCAFlags(t *testing.T) {
	web := newWebServer(t, plainServer)
	dir := t.TempDir()
	cert, key, err := must.Value(signer.GenerateCA("mine", time.Now(), 24*time.Hour))(t).PEM()
	must.OK(t, err)
	write := func(name string, content []byte) string {
		file := filepath.Join(dir, name)
		must.OK(t, os.WriteFile(file, content, 0o600))
		return file
	}
	certFile, keyFile, empty := write("ca.crt", cert), write("ca.key", key), write("empty", nil)
	exposed := write("exposed.key", key)
	must.OK(t, os.Chmod(exposed, 0o644))
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"status", "--ca", "sa"}, `--ca: "sa" given, want cluster, front-proxy or etcd`},
		{[]string{"status", "-o", "name"}, "--output: "},
		{[]string{"prepare", "--new-ca-key-file", keyFile}, "--new-ca-key-file: needs --new-ca-cert-file"},
		{[]string{"prepare", "--new-ca-cert-file", certFile, "--lifetime", "3650d"}, "--lifetime: is for a CA that kubejoin makes"},
		{[]string{"prepare", "--new-ca-cert-file", filepath.Join(dir, "none")}, "--new-ca-cert-file: open "},
		{[]string{"prepare", "--new-ca-cert-file", "/dev/zero"}, "--new-ca-cert-file: /dev/zero: want at most 1048576 bytes"},
		{[]string{"prepare", "--new-ca-cert-file", empty}, "--new-ca-cert-file: " + empty + " is empty"},
		{[]string{"prepare", "--new-ca-cert-file", keyFile}, "--new-ca-cert-file: "},
		{[]string{"prepare", "--new-ca-cert-file", certFile, "--new-ca-key-file", certFile}, "--new-ca-key-file: "},
		{[]string{"prepare", "--new-ca-cert-file", certFile, "--new-ca-key-file", exposed}, "--new-ca-key-file: " + exposed + ": file is accessible to every user: mode is 0644"},
		{[]string{"prepare", "--lifetime", "1h"}, "--lifetime: "},
		{[]string{"prepare", "--lifetime", "0"}, "--lifetime: "},
		{[]string{"prepare", "--lifetime", "365000d"}, `--lifetime: "365000d" given, want at most 36500d`},
	} {
		web.ca(t, test.args...).failed(test.want)
	}
	var made api.CARotation
	must.OK(t, json.Unmarshal([]byte(web.ca(t, "prepare", "--new-ca-cert-file", certFile, "--new-ca-key-file", keyFile, "--no-cross-sign", "-o", "json").ok().stdout), &made))
	if len(made.New) != 1 || made.New[0].Subject != "CN=mine" || made.Cross != "" || !made.HasKey || len(made.CertificateKey) != 64 {
		t.Errorf("got %+v, want the CA in the file without a cross certificate, and its key stored", made)
	}
	unused := filepath.Join(dir, "unused")
	web.ca(t, "prepare", "--ca", "etcd", "--new-ca-cert-file", certFile, "--output-file", unused).ok().warned("there is no certificate key to keep in " + unused)
	if exists(unused) || len(web.rotations.IDs(rotation.Etcd)) > 0 {
		t.Error("prepare without a key stored one")
	}
}

// Catches a second prepare that overwrites the only copy of the key, and an empty output file that remains after a failure.
func TestCAPrepareKeepsKeyInOutputFile(t *testing.T) {
	web := newWebServer(t, plainServer)
	file := filepath.Join(t.TempDir(), "rotation.key")
	absent := func(when string) {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the file exists: %v", when, err)
		}
	}
	web.ca(t, "prepare", "--output-file", file, "--dry-run").ok()
	absent("dry run")
	web.ca(t, "prepare", "--output-file", file, "--lifetime", "1h").failed("--lifetime")
	absent("refused")
	if made := web.ca(t, "prepare", "--output-file", file, "-o", "json").ok(); strings.Contains(made.stdout, "certificateKey") {
		t.Errorf("got %s, want no key on standard output", made.stdout)
	}
	key := must.Value(os.ReadFile(file))(t)
	if mode := must.Value(os.Stat(file))(t).Mode(); mode != 0o600 || !regexp.MustCompile(`^[0-9a-f]{64}\n$`).Match(key) {
		t.Errorf("got a file of mode %s and %d bytes, want the key alone, and 0600", mode, len(key))
	}
	web.ca(t, "abort").ok()
	web.ca(t, "prepare", "--output-file", file).failed("--output-file: " + file + " exists: want a new file")
	if again := must.Value(os.ReadFile(file))(t); !bytes.Equal(again, key) {
		t.Error("a second prepare changed the file")
	}
	web.ca(t, "status").ok().has("cluster   aborted ")
	another := file + "2"
	if made := web.ca(t, "prepare", "--output-file", another).ok().warned("keep the certificate key in " + another + ": "); made.stdout != "" {
		t.Errorf("got %q, want nothing on standard output", made.stdout)
	}
}

// withKey is a backend whose rotation returns a certificate key.
type withKey struct{ backend }

func (withKey) PrepareCA(context.Context, string, api.PrepareCA) (api.CARotation, error) {
	return api.CARotation{CA: "cluster", Stage: "prepare", CertificateKey: "the key"}, nil
}

// Catches a certificate key that is lost on a full disk: the rotation has begun, and no command can show the key again.
func TestCAPreparePrintsKeyThatItCannotWrite(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		o := caPrepareOptions{caOptions: caOptions{ca: "cluster", output: output{format: format}}, outputFile: filepath.Join(t.TempDir(), "rotation.key")}
		must.OK(t, o.create())
		must.OK(t, o.keyOutput.Close()) // so that each write fails
		var stdout, stderr bytes.Buffer
		cmd := caPrepareCommand()
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		err := o.prepare(t.Context(), cmd, &remote{backend: withKey{}})
		o.drop()
		if err == nil || !strings.Contains(err.Error(), "the certificate key is on standard output instead") || !strings.Contains(stdout.String(), "the key") {
			t.Errorf("%s: got %q and %v, want the key on standard output, and an error", format, stdout.String(), err)
		}
		if exists(o.outputFile) {
			t.Errorf("%s: a file without the key remains", format)
		}
	}
}

// If the response is lost, the rotation may have begun, and nobody has its certificate key. Catches an error that does not
// say so.
func TestCAPrepareSaysThatLostResponseHadKey(t *testing.T) {
	web := newWebServer(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/prepare") {
				next.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		})
	})
	file := filepath.Join(t.TempDir(), "rotation.key")
	const says = "the certificate key is lost: run kubejoin ca abort, and prepare again"
	if dry := web.ca(t, "prepare", "--output-file", file, "--dry-run"); dry.err == nil || strings.Contains(dry.err.Error(), says) {
		t.Errorf("dry run: got %v, want an error that speaks of no key", dry.err)
	}
	web.ca(t, "prepare", "--output-file", file).failed("if kubejoin ca status shows stage prepare, " + says)
	if exists(file) {
		t.Error("a file without a key remains")
	}
	web.ca(t, "status").ok().has("cluster   prepare ")
	web.ca(t, "prepare").failed(says)
	web.ca(t, "abort").ok()
}

// Rotates a CA with only a kubeconfig. Catches a key that is stored in clear text, and a step that ignores the observations
// of the cluster.
func TestCAOfCluster(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	kube := onKube{t, c.Kubeconfig()}
	pki := filepath.Join(c.Dir, "pki")
	kube.run("ca", "prepare", "--pki-dir", t.TempDir()).failed("run the command on a control plane with the CA key")
	made := kube.run("ca", "prepare", "--pki-dir", pki).ok().warned("kubejoin ca trust")
	key := must.Value(joinformat.ParseCertificateKey(strings.TrimSpace(made.stdout)))(t)
	store := clusterstore.New(c.Client())
	r, _, err := store.Get(t.Context(), rotation.Cluster)
	must.OK(t, err)
	must.Value(store.Key(t.Context(), r, key))(t)
	secret := must.Value(c.Client().CoreV1().Secrets(clusterstore.KeyNamespace).Get(t.Context(), clusterstore.KeyName, metav1.GetOptions{}))(t)
	for name, content := range secret.Data {
		if bytes.Contains(content, []byte("PRIVATE KEY")) {
			t.Errorf("%s has the key in clear", name)
		}
	}
	kube.run("ca", "status", "-o", "wide").ok().has("merged ", "cluster-info ", "old ", "not visible from here; these do not block the next step:\nKIND ", "kubejoin ca status --url URL\n", "their addresses are not known here")
	var shown api.CARotation
	must.OK(t, json.Unmarshal([]byte(kube.run("ca", "status", "-o", "json").ok().stdout), &shown))
	record := slices.IndexFunc(shown.Observations, func(o api.CAObservation) bool { return o.Name == "issuance record" })
	if record < 0 || shown.Observations[record].Unseen == "" || shown.Observations[record].Next != "kubejoin ca status --url URL" || shown.Certificates != nil {
		t.Errorf("got %+v, want JSON that says which command shows the issuance record", shown)
	}
	kube.run("ca", "trust").ok().has("stage trust: both CAs are trusted, and the old one signs")
	// In this test, nothing applies the stage.
	if refused := kube.run("ca", "switch").failed("kube-public/cluster-info does not trust the new CA"); fail(io.Discard, refused.err) != 3 {
		t.Errorf("switch: got %v, want exit code 3", refused.err)
	}
	kube.run("ca", "abort").ok().has("cluster CA, stage prepare: ")
	kube.run("ca", "status").ok().has("prepare (aborting)")
	for _, other := range []string{"front-proxy", "etcd"} {
		kube.run("ca", "status", "--ca", other).ok().has("the " + other + " CA has not been rotated")
	}
}
