package differential

import (
	"cmp"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/need"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestChecksCertificatesThatKubeadmMakes compares the ends in 'kubejoin certs check' with those of 'kubeadm certs
// check-expiration'.
func TestChecksCertificatesThatKubeadmMakes(t *testing.T) {
	harness.Parallel(t)
	h, kubeadm := newKubeadmHost(t, "ECDSA-P256")
	pki := filepath.Join(h.dir, "pki")
	type row struct {
		Name    string
		End     *time.Time `json:"notAfter"`
		Problem string
	}
	check := func() (rows map[string]row, code int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), harness.Kubejoin(), "certs", "check", h.dir, "-o", "json")
		out, _ := cmd.Output() // the code is compared
		var list struct{ Certificates []row }
		if err := json.Unmarshal(out, &list); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		rows = map[string]row{}
		for _, r := range list.Certificates {
			rows[r.Name] = r
		}
		return rows, cmd.ProcessState.ExitCode()
	}
	out := must.Value(exec.CommandContext(t.Context(), kubeadm, "certs", "check-expiration", "--config", h.config, "--cert-dir", pki, "-o", "json").Output())(t)
	type theirs struct {
		Name           string
		ExpirationDate time.Time
		Missing        bool
	}
	var want struct{ Certificates, CertificateAuthorities []theirs }
	if err := json.Unmarshal(out, &want); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	rows, code := check()
	compared := 0
	for _, w := range append(want.Certificates, want.CertificateAuthorities...) {
		if w.Missing { // kubeadm reads kubeconfigs in /etc/kubernetes alone
			continue
		}
		compared++
		if got := rows[w.Name]; got.End == nil || !got.End.Equal(w.ExpirationDate) || got.Problem != "" {
			t.Errorf("%s: got %+v, want the end %s as in kubeadm", w.Name, got, w.ExpirationDate)
		}
	}
	if compared < 10 || code != 0 {
		t.Errorf("compared %d certificates, want 10 at least; code %d, want 0", compared, code)
	}
}

// TestReachesServerAsKubectl compares the exit codes of 'kubejoin kubeconfig check' and 'kubectl auth whoami'.
func TestReachesServerAsKubectl(t *testing.T) {
	harness.Parallel(t)
	need.Long(t)
	bin := must.Value(cluster.Build(t.Context(), t.Output()))(t)
	ca := certtest.CA(t, "kubernetes")
	caPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Leaf.Raw})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, password, _ := r.BasicAuth()
		if r.Header.Get("Authorization") != "Bearer good" && name+password != "janegood" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":%q}}}`, cmp.Or(r.Header.Get("Impersonate-User"), "jane"))
	}))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certtest.Serving(t, ca, "127.0.0.1")}}
	server.StartTLS()
	t.Cleanup(server.Close)
	proxy := httptest.NewServer(apitest.Tunnel(server.Listener.Addr().String()))
	t.Cleanup(proxy.Close)
	dir := t.TempDir()
	for name, content := range map[string]string{
		"token": "good\n", "ca.crt": string(caPEM), "broken": "#!/bin/sh\nexit 3\n",
		"plugin": "#!/bin/sh\necho '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"good\"}}'\n",
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700))
	}
	plugin := func(command string) *clientcmdapi.ExecConfig {
		return &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: command, InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
	}
	good := clientcmdapi.AuthInfo{Token: "good"}
	away := func(c *clientcmdapi.Cluster) { c.Server, c.ProxyURL = "https://api.invalid:6443", proxy.URL }
	for name, test := range map[string]struct {
		user     clientcmdapi.AuthInfo
		change   func(c *clientcmdapi.Cluster)
		systemCA bool
		want     bool
	}{
		"token":             {user: good, want: true},
		"wrong token":       {user: clientcmdapi.AuthInfo{Token: "bad"}},
		"token file":        {user: clientcmdapi.AuthInfo{TokenFile: "token"}, want: true},
		"basic":             {user: clientcmdapi.AuthInfo{Username: "jane", Password: "good"}, want: true},
		"impersonation":     {user: clientcmdapi.AuthInfo{Token: "good", Impersonate: "joe"}, want: true},
		"exec plugin":       {user: clientcmdapi.AuthInfo{Exec: plugin("./plugin")}, want: true},
		"failing plugin":    {user: clientcmdapi.AuthInfo{Exec: plugin("./broken")}},
		"system CA":         {user: good, change: func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = nil }, systemCA: true, want: true},
		"another system CA": {user: good, change: func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = nil }},
		"proxy":             {user: good, change: func(c *clientcmdapi.Cluster) { away(c); c.TLSServerName = "127.0.0.1" }, want: true},
		"proxy, wrong name": {user: good, change: away},
		"malformed proxy":   {user: good, change: func(c *clientcmdapi.Cluster) { c.ProxyURL = "ftp://proxy" }},
		"server name":       {user: good, change: func(c *clientcmdapi.Cluster) { c.TLSServerName = "api.example.com" }},
		"CA and insecure":   {user: good, change: func(c *clientcmdapi.Cluster) { c.InsecureSkipTLSVerify = true }},
	} {
		at := &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: caPEM}
		if test.change != nil {
			test.change(at)
		}
		file := filepath.Join(dir, "kubeconfig")
		must.OK(t, clientcmd.WriteToFile(clientcmdapi.Config{
			Clusters: map[string]*clientcmdapi.Cluster{"c": at}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": &test.user},
			Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "me"}}, CurrentContext: "x",
		}, file))
		for _, words := range [][]string{{filepath.Join(bin, "kubectl"), "--kubeconfig", file, "auth", "whoami"}, {harness.Kubejoin(), "kubeconfig", "check", file}} {
			cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
			cmd.Env = append(os.Environ(), "SSL_CERT_DIR="+t.TempDir(), "SSL_CERT_FILE=/dev/null")
			if test.systemCA {
				cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+filepath.Join(dir, "ca.crt"))
			}
			if out, err := cmd.CombinedOutput(); (err == nil) != test.want {
				t.Errorf("%s: %s: got %v, want success %v\n%s", name, filepath.Base(words[0]), err, test.want, out)
			}
		}
	}
}
