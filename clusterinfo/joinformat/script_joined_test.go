package joinformat_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/sample"
)

// A joined is a machine with files from an earlier join, from another cluster or from kubeadm init.
type joined struct {
	m      *machine
	ca     *tls.Certificate
	node   atomic.Value // string: the kubelet's API server returns it for the Node; 404 if it is empty
	server string       // URL of the API server of the kubelet
}

// newJoined makes a machine with the fake root folder "root", with the kubelet of node worker-7.
func newJoined(t *testing.T) *joined {
	t.Helper()
	ca := certtest.CA(t, "kubernetes")
	endpoint := serve(t, certtest.Serving(t, ca, "127.0.0.1"), with(configMap(t, kubeconfigOf(t, ca))))
	j := &joined{m: newMachine(t, joinOf(t, endpoint, ca)), ca: ca}
	j.node.Store(`{"conditions":[{"type":"Ready","status":"True"}]}`)
	j.m.kubeadm(t, 1)
	j.m.write(t, "bin/kubelet", "#!/bin/sh\n")
	j.m.env = append(j.m.env, "KUBEJOIN_ROOT="+j.m.file("root"))
	j.place(t, "root/proc/net/tcp", "")
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != "system:node:worker-7" || r.Method != http.MethodGet || r.URL.Path != "/api/v1/nodes/worker-7" || r.Header.Get("Authorization") != "" {
			t.Errorf("%s %s by %s, Authorization %q", r.Method, r.URL, name, r.Header.Get("Authorization"))
		}
		node, _ := j.node.Load().(string)
		if node == "" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, node)
	}))
	pool := x509.NewCertPool()
	pool.AddCert(ca.Leaf)
	api.TLS = &tls.Config{Certificates: []tls.Certificate{certtest.Serving(t, ca, "127.0.0.1")}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	api.Config.ErrorLog = log.New(io.Discard, "", 0)
	api.StartTLS()
	t.Cleanup(api.Close)
	j.server = api.URL
	return j
}

// place writes a file below the machine's folder, and the folders above it.
func (j *joined) place(t *testing.T, name, content string) {
	t.Helper()
	must.OK(t, os.MkdirAll(filepath.Dir(j.m.file(name)), 0o700))
	j.m.write(t, name, content)
}

// kubelet writes kubelet.conf, and a certificate that expires at end.
func (j *joined) kubelet(t *testing.T, end time.Time) {
	t.Helper()
	certificate := certtest.Issue(t, &x509.Certificate{
		Subject:   pkix.Name{CommonName: "system:node:worker-7", Organization: []string{"system:nodes"}},
		NotBefore: end.Add(-24 * time.Hour), NotAfter: end, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, j.ca)
	key := must.Value(x509.MarshalPKCS8PrivateKey(certificate.PrivateKey))(t)
	j.place(t, "pki/kubelet-client-current.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}))+
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	current := j.m.file("pki/kubelet-client-current.pem")
	j.place(t, "kubelet.conf", fmt.Sprintf(`apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: %s
    server: %s
  name: default-cluster
kind: Config
users:
- name: default-auth
  user:
    client-certificate: %s
    client-key: %[3]s
`, bundle64(t, j.ca), j.server, current))
}

// listen makes a program use the port of the kubelet.
func (j *joined) listen(t *testing.T) {
	t.Helper()
	j.place(t, "root/proc/net/tcp", "   0: 00000000:280A 00000000:0000 0A 00000000:00000000\n")
}

// The docs page has some lines of the output for a machine with two mistakes. The other lines depend on the
// machine that runs the test.
func TestDiagnosePrintsFindings(t *testing.T) {
	t.Parallel()
	j := newJoined(t)
	j.place(t, "bootstrap.conf", "")
	j.m.write(t, "bin/date", "#!/bin/sh\necho $(($(/bin/date +%s) - 612))\n")
	output, _ := j.m.run(t, "--diagnose")
	output = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(output, "join.example.com:9443")
	output = regexp.MustCompile(`\b[56]\d\d s behind`).ReplaceAllString(output, "612 s behind") // the clock ticks meanwhile
	sample.Check(t, "docs/diagnose.md", strings.ReplaceAll(output, j.m.file("bootstrap.conf"), "/etc/kubernetes/bootstrap-kubelet.conf"))
}

// --diagnose once suggested 'kubeadm reset -f' and 'kubectl delete node' on every working machine. A remedy may
// destroy something only after the script has seen that nothing uses it.
func TestDiagnoseOffersResetOnlyForUnusedMachine(t *testing.T) {
	t.Parallel()
	valid := time.Now().Add(time.Hour)
	const (
		nothing = "ok       leftovers: this machine is a control plane; nothing to do\n"
		joins   = "ok       leftovers: this machine has joined as Node worker-7 of https://127.0.0.1:"
		unseen  = "/kubelet.conf exists, but no Ready Node of this machine is seen: "
		look    = "; run: journalctl -u kubelet\n"
		reset   = "; no kubelet can use this machine: run 'kubeadm reset -f', which deletes the files of Kubernetes and stops its pods\n"
	)
	for name, test := range map[string]struct {
		make func(*testing.T, *joined)
		want []string
		code int // exit code; 0 if the script makes no other check
	}{
		"healthy control plane": {func(t *testing.T, j *joined) {
			j.kubelet(t, valid)
			j.place(t, "root/etc/kubernetes/manifests/kube-apiserver.yaml", "")
			j.place(t, "root/etc/kubernetes/pki/ca.key", "")
			j.place(t, "ca.crt", "another")
			j.listen(t)
		}, []string{nothing}, 0},
		"control plane whose Node is not seen": {func(t *testing.T, j *joined) {
			j.kubelet(t, valid)
			j.server = "https://127.0.0.1:1"
			j.kubelet(t, valid)
			j.place(t, "root/etc/kubernetes/manifests/etcd.yaml", "")
			j.place(t, "ca.crt", "another")
			j.listen(t)
		}, []string{nothing, "ok       ports: "}, 1},
		"key of a CA": {func(t *testing.T, j *joined) {
			j.place(t, "root/etc/kubernetes/pki/ca.key", "")
			j.place(t, "bootstrap.conf", "")
			j.listen(t)
		}, []string{nothing, "ok       ports: "}, 1},
		"control plane with an expired certificate": {func(t *testing.T, j *joined) {
			j.kubelet(t, time.Now().Add(-time.Hour))
			j.place(t, "root/etc/kubernetes/manifests/kube-scheduler.yaml", "")
		}, []string{nothing, "kubelet-client-current.pem has expired"}, 1},
		"joined worker": {func(t *testing.T, j *joined) {
			j.kubelet(t, valid)
			j.place(t, "ca.crt", "another")
			j.listen(t)
		}, []string{joins, "; nothing to do\n"}, 0},
		"worker that is not Ready": {func(t *testing.T, j *joined) {
			j.kubelet(t, valid)
			j.node.Store(`{"note":"\"type\":\"Ready\",\"status\":\"True\"","conditions":[{"type":"DiskPressure","status":"True"},{"type":"Ready","status":"Unknown"}]}`)
			j.listen(t)
		}, []string{unseen + "Node worker-7 is not Ready" + look, "ok       ports: "}, 1},
		"worker whose Node was deleted": {func(t *testing.T, j *joined) {
			j.kubelet(t, valid)
			j.node.Store("")
		}, []string{" returns HTTP 404 for Node worker-7" + look}, 1},
		"worker whose API server does not respond": {func(t *testing.T, j *joined) {
			j.server = "https://127.0.0.1:1"
			j.kubelet(t, valid)
		}, []string{unseen + "https://127.0.0.1:1: Failed to connect"}, 1},
		"another server in place of the API server": {func(t *testing.T, j *joined) {
			j.kubelet(t, valid)
			mine := j.ca
			j.ca = certtest.CA(t, "other")
			conf := strings.ReplaceAll(j.m.read(t, "kubelet.conf"), bundle64(t, mine), bundle64(t, j.ca))
			j.place(t, "kubelet.conf", conf)
		}, []string{": SSL certificate problem"}, 1},
		"invalid server": {func(t *testing.T, j *joined) {
			j.server = "https://127.0.0.1:1/$(id)"
			j.kubelet(t, valid)
		}, []string{unseen + "it names no API server"}, 1},
		"empty kubelet.conf": {func(t *testing.T, j *joined) {
			j.place(t, "kubelet.conf", "")
		}, []string{unseen + "it names no API server, or no valid certificate of a node" + look}, 1},
		"damaged certificate": {func(t *testing.T, j *joined) {
			j.kubelet(t, valid)
			j.place(t, "pki/kubelet-client-current.pem", "damaged")
		}, []string{unseen + "it names no API server, or no valid certificate of a node" + look, "ok       kubelet-certificate: "}, 1},
		"expired certificate": {func(t *testing.T, j *joined) {
			j.kubelet(t, time.Now().Add(-time.Hour))
		}, []string{unseen + "it names no API server, or no valid certificate of a node" + reset, "ok       clock: "}, 1},
		"expired certificate by a clock that is ahead": {func(t *testing.T, j *joined) {
			j.kubelet(t, time.Now().Add(-time.Hour))
			j.m.write(t, "bin/date", "#!/bin/sh\necho $(($(/bin/date +%s) + 86400))\n")
		}, []string{unseen + "it names no API server, or no valid certificate of a node" + look, "error    clock: "}, 1},
		"failed join": {func(t *testing.T, j *joined) {
			j.place(t, "bootstrap.conf", "")
			j.place(t, "ca.crt", "another")
		}, []string{"/bootstrap.conf ", "/ca.crt" + reset, "is of another cluster"}, 1},
		"failed join beside another kubelet": {func(t *testing.T, j *joined) {
			j.place(t, "bootstrap.conf", "")
			j.listen(t)
		}, []string{"/bootstrap.conf; see the line ports\n", "error    ports: in use: 10250; run 'ss -ltnp'"}, 1},
		"static pod of a worker": {func(t *testing.T, j *joined) {
			j.place(t, "root/etc/kubernetes/manifests/haproxy.yaml", "")
		}, []string{"ok       leftovers: none of an earlier join\n"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := newJoined(t)
			test.make(t, j)
			output, code := j.m.run(t, "--diagnose")
			if code != test.code || test.code == 0 && strings.Count(output, "\n") != 1 {
				t.Errorf("exit code %d, want %d:\n%s", code, test.code, output)
			}
			resets := 0
			for _, want := range test.want {
				if !strings.Contains(output, want) {
					t.Errorf("no %q in:\n%s", want, output)
				}
				resets += strings.Count(want, reset)
			}
			if strings.Count(output, "kubeadm reset") != resets || strings.Contains(output, "delete node") {
				t.Errorf("a remedy that destroys:\n%s", output)
			}
		})
	}
}
