package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// A controlPlane is a folder of kubeadm, one with the CA keys, and an API server that has kubeadm-config.
type controlPlane struct {
	dir, keys string
	config    string // ClusterConfiguration; empty: forbidden
}

func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	c := &controlPlane{dir: t.TempDir(), keys: t.TempDir()}
	write := func(file string, content []byte) {
		t.Helper()
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.OK(t, os.WriteFile(file, content, 0o600))
	}
	ca := must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
	certs, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ca", "etcd/ca"} {
		write(filepath.Join(c.dir, "pki", name+".crt"), certs)
		write(filepath.Join(c.keys, name+".crt"), certs)
		write(filepath.Join(c.keys, name+".key"), key)
	}
	pair := must.Value(tls.X509KeyPair(certs, key))(t)
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path != "/api/v1/namespaces/kube-system/configmaps/kubeadm-config" || c.config == "" {
			http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`, http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(corev1.ConfigMap{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{"ClusterConfiguration": c.config},
		})
	}))
	serving := certtest.Serving(t, &pair, "127.0.0.1")
	web.TLS = &tls.Config{Certificates: []tls.Certificate{serving}, MinVersion: tls.VersionTLS12}
	web.StartTLS()
	t.Cleanup(web.Close)
	newKey := func(path string, template *x509.CertificateRequest) []byte {
		t.Helper()
		key := csrtest.NewKey()
		write(filepath.Join(c.dir, path+".csr"), csrtest.PEM(t, template, key))
		return must.Value(keyutil.MarshalPrivateKeyToPEM(key))(t)
	}
	for path, template := range map[string]*x509.CertificateRequest{
		"pki/apiserver":             {Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"kubernetes"}, IPAddresses: []net.IP{net.IPv4(10, 96, 0, 1)}},
		"pki/apiserver-etcd-client": {Subject: pkix.Name{CommonName: "kube-apiserver-etcd-client"}},
		"pki/etcd/server":           {Subject: pkix.Name{CommonName: "control-1"}, DNSNames: []string{"localhost"}},
		"pki/etcd/peer":             {Subject: pkix.Name{CommonName: "control-1"}, DNSNames: []string{"localhost"}},
	} {
		write(filepath.Join(c.dir, path+".key"), newKey(path, template))
	}
	config := must.Value(clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: web.URL}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {ClientKeyData: newKey("admin.conf", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}}})}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "me"}}, CurrentContext: "x",
	}))(t)
	write(filepath.Join(c.dir, "admin.conf"), config)
	if _, stderr, err := runCommand(t, "sign", "--kubeadm-dir", c.dir, "--pki-dir", c.keys); err != nil || strings.Count(stderr, "signed") != 5 {
		t.Fatalf("sign: %v\n%s", err, stderr)
	}
	return c
}

func runCommand(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	err = run(t.Context(), args, &out, &errOut)
	return out.String(), errOut.String(), err
}

func (c *controlPlane) names(t *testing.T, path string) string {
	t.Helper()
	content := must.Value(os.ReadFile(filepath.Join(c.dir, "pki", path+".crt")))(t)
	block, _ := pem.Decode(content)
	leaf := must.Value(x509.ParseCertificate(block.Bytes))(t)
	return fmt.Sprint(leaf.DNSNames, leaf.IPAddresses)
}

// 'kubeadm certs renew' ignores new certSANs (kubeadm issue 2762), and leaves out the certificates of an external etcd.
func TestRenewReadsKubeadmConfig(t *testing.T) {
	const head = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\napiServer: {certSANs: [lb.example.com, 10.96.0.1]}\n"
	all := []string{"admin.conf", "apiserver", "apiserver-etcd-client", "etcd-peer", "etcd-server"}
	for _, test := range []struct {
		what, config            string
		args                    []string
		renewed                 []string
		apiserver, server, peer string
		warning                 string
	}{
		{"local etcd", head + "etcd: {local: {serverCertSANs: [etcd.example.com], peerCertSANs: ['*.peer.example.com']}}\n", nil, all,
			"[kubernetes lb.example.com] [10.96.0.1]", "[localhost etcd.example.com] []", "[localhost *.peer.example.com] []", ""},
		{"external etcd", head + "etcd: {external: {endpoints: [https://192.0.2.1:2379]}}\n", []string{"--add-san", "192.0.2.9"}, []string{"admin.conf", "apiserver"},
			"[kubernetes lb.example.com] [10.96.0.1 192.0.2.9]", "[localhost] []", "[localhost] []", "left out etcd-server: kubeadm-config has etcd.external"},
		{"external etcd, asked for", head + "etcd: {external: {endpoints: [https://192.0.2.1:2379]}}\n", []string{"--name", "etcd-server"}, []string{"etcd-server"},
			"[kubernetes] [10.96.0.1]", "[localhost] []", "[localhost] []", ""},
		{"not readable", "", nil, all, "[kubernetes] [10.96.0.1]", "[localhost] []", "[localhost] []", "could not read kubeadm-config with admin.conf (kubeadm's ClusterConfiguration: "},
	} {
		t.Run(test.what, func(t *testing.T) {
			c := newControlPlane(t)
			c.config = test.config
			stdout, stderr, err := runCommand(t, append([]string{"certs", "renew", c.dir, "--pki-dir", c.keys, "-o", "json"}, test.args...)...)
			var done struct {
				Renewed  []string
				SetAside []struct{ Name, Text string }
			}
			if err := json.Unmarshal([]byte(stdout), &done); err != nil {
				t.Fatalf("%v\n%s", err, stdout)
			}
			if err != nil || !slices.Equal(done.Renewed, test.renewed) || !strings.Contains(stderr, test.warning) || (test.warning == "") == strings.Contains(stderr, "warning:") {
				t.Errorf("got %v, %q, want %q and a warning %q\n%s", err, done.Renewed, test.renewed, test.warning, stderr)
			}
			if strings.HasPrefix(test.warning, "left out") != (len(done.SetAside) == 3) {
				t.Errorf("set aside: %q", done.SetAside)
			}
			for path, want := range map[string]string{"apiserver": test.apiserver, "etcd/server": test.server, "etcd/peer": test.peer} {
				if got := c.names(t, path); got != want {
					t.Errorf("%s: %s, want %s", path, got, want)
				}
			}
		})
	}
	for args, want := range map[string]string{
		"--add-san a_b": `--add-san: "a_b" given, want an IP address, a DNS name in lower case, or a wildcard such as *.example.com`,
		"--name etcd-server --add-san a.example.com": "--add-san: changes apiserver, and --name leaves it out; add --name apiserver",
	} {
		if _, stderr, err := runCommand(t, append([]string{"certs", "renew", t.TempDir(), "--pki-dir", "x"}, strings.Fields(args)...)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s\n%s", args, err, want, stderr)
		}
	}
}

// If a server has no signer for a certificate, the renewal must skip this certificate, as if the folder lacked its CA.
// Every other refusal must be an error.
func TestServerWithoutSignerHasNoCA(t *testing.T) {
	for field, want := range map[string]bool{"signer": true, "csr": false} {
		problem := &api.Problem{Status: http.StatusBadRequest, Errors: []api.FieldProblem{{Field: field, Detail: "x"}}}
		_, err := orNoCA(func(context.Context, credentials.SigningRequest) ([]byte, error) { return nil, problem })(t.Context(), credentials.SigningRequest{})
		if errors.Is(err, credentials.ErrNoCA) != want || !errors.As(err, &problem) {
			t.Errorf("%s: got %v, want ErrNoCA: %v", field, err, want)
		}
	}
}
