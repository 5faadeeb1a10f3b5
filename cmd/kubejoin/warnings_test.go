package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/test/cluster"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A join command with a loopback address must come with a warning, because no other machine can use it. A token without a
// join command must not.
func TestWarnsOfLoopbackInJoinCommand(t *testing.T) {
	endpoint := ""
	web := newWebServer(t, func(api http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			made := httptest.NewRecorder()
			r.Header.Del("Accept-Encoding")
			api.ServeHTTP(made, r)
			w.Header().Set("Content-Type", made.Header().Get("Content-Type"))
			w.WriteHeader(made.Code)
			_, _ = w.Write(bytes.ReplaceAll(made.Body.Bytes(), []byte("kubeadm join api.example.com:6443"), []byte("kubeadm join "+endpoint)))
		})
	})
	for address, want := range map[string]int{"127.0.0.1:9443": 1, "[::1]:9443": 1, "localhost:9443": 1, "api.example.com:6443": 0} {
		endpoint = address
		for _, flags := range [][]string{{"--print-join-command"}, {"--print-join-command", "--format", "yaml"}, nil} {
			var out, errs bytes.Buffer
			err := run(t.Context(), web.args("", append([]string{"token", "create"}, flags...)...), &out, &errs)
			if got := strings.Count(errs.String(), address+" is a loopback address"); err != nil || got != min(want, len(flags)) {
				t.Errorf("%s %q: got %v and\n%s", address, flags, err, errs.String())
			}
		}
	}
}

// With only a kubeconfig, the caller who creates a token must be warned of a full cluster-info and of expiring CAs.
func TestWarnsOfFullClusterInfoAndExpiringCA(t *testing.T) {
	c := cluster.ForTest(t, cluster.Options{})
	kube := onKube{t, c.Kubeconfig()}
	if r := kube.run("token", "create", "--wait", "0").ok(); r.stderr != "" {
		t.Errorf("healthy cluster: got warnings %q, want none", r.stderr)
	}
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	kubeconfig := must.Value(clusterinfo.Kubeconfig(c.Server(), ca.Bundle()))(t)
	maps := c.Client().CoreV1().ConfigMaps(clusterinfo.Namespace)
	info := must.Value(maps.Get(t.Context(), clusterinfo.Name, metav1.GetOptions{}))(t)
	info.Data[clusterinfo.KubeconfigKey] = string(kubeconfig)
	info.BinaryData = map[string][]byte{"filling": make([]byte, clusterinfo.MaxData*85/100)}
	must.Value(maps.Update(t.Context(), info, metav1.UpdateOptions{}))(t)
	r := kube.run("token", "create", "--wait", "0").ok()
	r.warned("kubejoin: warning: cluster-info is 85 % full").warned("kubejoin: warning: the last CA in cluster-info expires at")
	if r := kube.run("token", "create", "--usages", "authentication", "--wait", "0").ok(); strings.Contains(r.stderr, "full") {
		t.Errorf("token without signing: got warnings %q, want none about cluster-info", r.stderr)
	}

	// kubejoin must also warn if it leaves signing to another signer, whose CA it does not have.
	dir := t.TempDir()
	own, bearer := filepath.Join(dir, "signers.yaml"), filepath.Join(dir, "bearer")
	for file, content := range map[string]string{
		bearer: "sixteen-or-more-characters",
		own:    "apiVersion: kubejoin.io/v1alpha1\nkind: SignerConfiguration\nsigners:\n- name: example.com/etcd\n  usages: [server auth]\n  subject: {commonNames: [etcd]}\n",
	} {
		must.OK(t, os.WriteFile(file, []byte(content), 0o600))
	}
	for name, flags := range map[string][]string{
		"csr-signer off": {"--controllers", "*,-csr-signer"},
		"shadow":         {"--shadow"},
		"not in a file":  {"--signer-config", own},
	} {
		t.Run(name, func(t *testing.T) {
			url := serveCluster(t, c, "sixteen-or-more-characters,ada,1,kubejoin:admins\n", flags...)
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), []string{"token", "create", "--max-nodes", "1", "--wait", "0", "--url", url, "--ca-file", c.CAFile(), "--bearer-file", bearer}, &stdout, &stderr)
			if err != nil || strings.Count(stderr.String(), "kubejoin: warning: the last CA in cluster-info expires at") != 1 ||
				strings.Count(stderr.String(), "kubejoin: warning: the limits of this token apply only to certificates that kubejoin signs") != 1 {
				t.Errorf("error %v, warnings %q; want one warning about the CA and one about limits", err, stderr.String())
			}
		})
	}
}
