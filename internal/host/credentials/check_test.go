package credentials_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/testing/apitest"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// An apiServer responds to the requests of a check like kube-apiserver.
type apiServer struct {
	*httptest.Server
	trusts         *tls.Certificate // client CA
	review, ofNode int              // statuses of the responses if the user is authenticated; zero means success
	authorization  string           // accepted header of a client without a certificate
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	roots := x509.NewCertPool()
	roots.AddCert(s.trusts.Leaf)
	status := s.review
	if strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		status = s.ofNode
	}
	if s.authorization != "" && r.Header.Get("Authorization") == s.authorization {
		if status == 0 {
			user := cmp.Or(r.Header.Get("Impersonate-User"), "jane")
			_, _ = fmt.Fprintf(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":%q}}}`, user)
			return
		}
	} else if len(r.TLS.PeerCertificates) == 0 {
		status = http.StatusUnauthorized
	} else if _, err := r.TLS.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		status = http.StatusUnauthorized
	}
	if status == 0 {
		status = http.StatusOK
	}
	w.WriteHeader(status)
}

// start serves with a certificate of a CA until the test ends.
func (s *apiServer) start(t *testing.T, ca *tls.Certificate) {
	t.Helper()
	s.Server = httptest.NewUnstartedServer(s)
	s.TLS = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certtest.Serving(t, ca, "127.0.0.1")}, ClientAuth: tls.RequestClientCert}
	s.StartTLS()
	t.Cleanup(s.Close)
}

// kubeconfigOf returns a kubeconfig of one user at one cluster.
func kubeconfigOf(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) *clientcmdapi.Config {
	return &clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"c": cluster}, AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": user},
		Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "me"}}, CurrentContext: "x",
	}
}

func pemOf(certs ...*tls.Certificate) (out []byte) {
	for _, c := range certs {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Leaf.Raw})...)
	}
	return out
}

func keyOf(t testing.TB, c *tls.Certificate) []byte {
	t.Helper()
	der := must.Value(x509.MarshalPKCS8PrivateKey(c.PrivateKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func nodeTemplate() *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: "system:node:worker-1", Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// Catches a check that misses a kubeconfig of a control plane with the wrong CA, or reports a problem for the right CA.
func TestCheckOfHostComparesCAInKubeconfigs(t *testing.T) {
	ca, other, now := certtest.CA(t, "kubernetes"), certtest.CA(t, "other"), time.Now()
	for name, test := range map[string]struct {
		change func(*clientcmdapi.Cluster)
		mode   os.FileMode
		want   string
	}{
		"none":       {func(*clientcmdapi.Cluster) {}, 0o600, ""},
		"mode":       {func(*clientcmdapi.Cluster) {}, 0o640, ""},
		"both CAs":   {func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = pemOf(other, ca) }, 0o600, ""},
		"another CA": {func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = pemOf(other) }, 0o600, "the CA of the file did not issue its client certificate"},
		"malformed":  {func(c *clientcmdapi.Cluster) { c.CertificateAuthorityData = []byte("x") }, 0o600, "the CA certificates in the file cannot be read"},
		"file of another CA": {func(c *clientcmdapi.Cluster) {
			c.CertificateAuthorityData, c.CertificateAuthority = nil, "pki/other.crt"
		}, 0o600, "the CA of the file did not issue its client certificate"},
		"two problems": {func(c *clientcmdapi.Cluster) {
			c.CertificateAuthorityData, c.InsecureSkipTLSVerify = pemOf(other), true
		}, 0o600, "insecure-skip-tls-verify is set"},
	} {
		dir := t.TempDir()
		write(t, dir, "pki/ca.crt", pemOf(ca))
		write(t, dir, "pki/other.crt", pemOf(other))
		template := nodeTemplate()
		template.NotBefore, template.NotAfter = now.Add(-100*time.Hour), now.Add(time.Hour) // expires soon
		kubelet := certtest.Issue(t, template, ca)
		cluster := &clientcmdapi.Cluster{Server: "https://127.0.0.1:6443", CertificateAuthorityData: pemOf(ca)}
		test.change(cluster)
		config := kubeconfigOf(cluster, &clientcmdapi.AuthInfo{ClientCertificateData: pemOf(kubelet), ClientKeyData: keyOf(t, kubelet)})
		write(t, dir, "kubelet.conf", must.Value(clientcmd.Write(*config))(t))
		must.OK(t, os.Chmod(filepath.Join(dir, "kubelet.conf"), test.mode))
		list := must.Value(credentials.KubeadmFiles{Dir: dir}.Check(t.Context()))(t)
		if got := list[0].Problem; list[0].Name != "kubelet.conf" || !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: got %+v, want problem %q", name, list[0], test.want)
		}
	}
	dir := t.TempDir()
	write(t, dir, "pki/ca.crt", pemOf(ca))
	write(t, dir, "admin.conf", []byte("{"))
	if list := must.Value(credentials.KubeadmFiles{Dir: dir}.Check(t.Context()))(t); !strings.HasSuffix(list[0].Problem, "admin.conf: want a kubeconfig: YAML with kind Config") {
		t.Errorf("got %q, want the problem of List", list[0].Problem)
	}
	if _, err := (credentials.KubeadmFiles{Dir: t.TempDir()}).Check(t.Context()); err == nil {
		t.Error("an empty folder: got no error")
	}
}

// Check must report exactly one finding for each fault, and none for a file without a fault.
func TestCheckFindsFaults(t *testing.T) {
	ca, other := certtest.CA(t, "kubernetes"), certtest.CA(t, "other")
	now := time.Now()
	type parts struct {
		config *clientcmdapi.Config
		raw    []byte // replaces the file
		mode   os.FileMode
		server *apiServer
		check  credentials.Checker
		name   string
	}
	use := func(p *parts, c *tls.Certificate) {
		u := p.config.AuthInfos["me"]
		u.ClientCertificateData, u.ClientKeyData = pemOf(c), keyOf(t, c)
	}
	template := func(change func(*x509.Certificate)) func(*parts) {
		return func(p *parts) {
			c := nodeTemplate()
			change(c)
			use(p, certtest.Issue(t, c, ca))
		}
	}
	for _, test := range []struct {
		what   string
		change func(*parts)
		want   []string
	}{
		{"none", func(*parts) {}, nil},
		{"no fault: not registered yet", func(p *parts) { p.server.ofNode = http.StatusNotFound }, nil},
		{"no fault: the API server trusts another CA for clients", func(p *parts) {
			p.server.trusts = other
			use(p, certtest.Issue(t, nodeTemplate(), other))
		}, nil},
		{"readable by others", func(p *parts) { p.mode = 0o640 }, []string{"readable-by-others"}},
		{"not YAML", func(p *parts) { p.raw = []byte("{secret-0123456789") }, []string{"malformed"}},
		{"not a kubeconfig", func(p *parts) { p.raw = []byte("kind: Config\napiVersion: v1\n") }, []string{"malformed"}},
		{"two documents", func(p *parts) { p.raw = []byte("kind: Config\nclusters: [{name: a}]\n---\nkind: Config\n") }, []string{"malformed"}},
		{"no current context", func(p *parts) { p.config.CurrentContext = "" }, []string{"no-current-context"}},
		{"unknown context", func(p *parts) { p.config.CurrentContext = "gone" }, []string{"no-current-context"}},
		{"unknown cluster", func(p *parts) { delete(p.config.Clusters, "c") }, []string{"no-cluster"}},
		{"unknown user", func(p *parts) { delete(p.config.AuthInfos, "me") }, []string{"no-user"}},
		{"address", func(p *parts) { p.config.Clusters["c"].Server = "http://api:6443" }, []string{"server-address"}},
		{"insecure", func(p *parts) { p.config.Clusters["c"].InsecureSkipTLSVerify = true }, []string{"insecure"}},
		{"no CA", func(p *parts) { p.config.Clusters["c"].CertificateAuthorityData = nil }, []string{"server-certificate"}},
		{"CA bundle with a lost certificate", func(p *parts) {
			p.config.Clusters["c"].CertificateAuthorityData = append(bytes.TrimSpace(pemOf(ca)), pemOf(other)...)
		}, []string{"no-ca"}},
		{"proxy", func(p *parts) { p.config.Clusters["c"].ProxyURL = "ftp://jane:secret-0123456789@proxy" }, []string{"proxy-url"}},
		{"missing CA file", func(p *parts) {
			p.config.Clusters["c"].CertificateAuthorityData, p.config.Clusters["c"].CertificateAuthority = nil, "gone.crt"
		}, []string{"no-ca"}},
		{"token", func(p *parts) { p.config.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: "secret-0123456789"} }, []string{"no-certificate"}},
		{"no credential", func(p *parts) { p.config.AuthInfos["me"] = &clientcmdapi.AuthInfo{} }, []string{"no-credential"}},
		{"missing certificate file", func(p *parts) {
			p.config.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientCertificate: "gone.pem", ClientKey: "gone.pem"}
		}, []string{"no-credential"}},
		{"not signed yet", func(p *parts) { p.config.AuthInfos["me"].ClientCertificateData = nil }, []string{"no-certificate"}},
		{"no key", func(p *parts) { p.config.AuthInfos["me"].ClientKeyData = nil }, []string{"no-key"}},
		{"malformed certificate", func(p *parts) { p.config.AuthInfos["me"].ClientCertificateData = []byte("secret-0123456789") }, []string{"malformed-certificate"}},
		{"malformed key", func(p *parts) { p.config.AuthInfos["me"].ClientKeyData = []byte("secret-0123456789") }, []string{"malformed-key"}},
		{"other key", func(p *parts) { p.config.AuthInfos["me"].ClientKeyData = keyOf(t, ca) }, []string{"key-differs"}},
		{"expired", template(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(-time.Hour), now.Add(-time.Minute) }), []string{"expired", "not-accepted"}},
		{"not yet valid", template(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(time.Hour), now.Add(2*time.Hour) }), []string{"not-yet-valid", "not-accepted"}},
		{"near its end", template(func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(-100*time.Hour), now.Add(time.Hour) }), []string{"near-end"}},
		{"serving certificate", template(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), []string{"not-a-client-certificate", "not-accepted"}},
		{"wrong CA", func(p *parts) { use(p, certtest.Issue(t, nodeTemplate(), other)) }, []string{"not-accepted", "wrong-ca"}},
		{"other node", func(p *parts) { p.check.Node = "worker-2" }, []string{"wrong-user"}},
		{"node without its group", template(func(c *x509.Certificate) { c.Subject.Organization = nil }), []string{"wrong-user"}},
		{"user in kubelet.conf", template(func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "jane"} }), []string{"wrong-user"}},
		{"unreachable", func(p *parts) { p.server.Close() }, []string{"unreachable"}},
		{"server certificate", func(p *parts) { p.config.Clusters["c"].CertificateAuthorityData = pemOf(ca, other)[len(pemOf(ca)):] }, []string{"server-certificate", "wrong-ca"}},
		{"server name", func(p *parts) { p.config.Clusters["c"].TLSServerName = "api.example.com" }, []string{"server-certificate"}},
		{"401", func(p *parts) { p.server.review = http.StatusUnauthorized }, []string{"not-accepted"}},
		{"403", func(p *parts) { p.server.review = http.StatusForbidden }, []string{"not-permitted"}},
		{"403 for the Node", func(p *parts) { p.server.ofNode = http.StatusForbidden }, []string{"not-permitted"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			t.Parallel()
			server := &apiServer{trusts: ca}
			server.start(t, ca)
			p := &parts{mode: 0o600, server: server, name: "kubelet.conf", config: kubeconfigOf(&clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pemOf(ca)}, &clientcmdapi.AuthInfo{})}
			use(p, certtest.Issue(t, nodeTemplate(), ca))
			test.change(p)
			content := must.Value(clientcmd.Write(*p.config))(t)
			if p.raw != nil {
				content = p.raw
			}
			file := filepath.Join(t.TempDir(), p.name)
			must.OK(t, os.WriteFile(file, content, p.mode))
			must.OK(t, os.Chmod(file, p.mode))
			report := must.Value(p.check.Check(t.Context(), file))(t)
			var ids []string
			for _, f := range report.Findings {
				ids = append(ids, f.ID)
				if f.Message == "" || f.Remedy == "" || strings.Contains(f.Message+f.Remedy, "\n") {
					t.Errorf("want one line with a remedy, got %+v", f)
				}
			}
			if !slices.Equal(ids, test.want) {
				t.Errorf("got %q, want %q\n%s", ids, test.want, report.Text())
			}
			if len(report.Unchecked) > 0 && test.want == nil {
				t.Errorf("not checked: %q", report.Unchecked)
			}
			if strings.Contains(report.Text(), "secret-0123456789") {
				t.Error("the report has a part of the file")
			}
		})
	}
}

// Catches an interrupt that is reported as an API server that is not reachable.
func TestCheckThatIsCanceledFindsNothing(t *testing.T) {
	ca := certtest.CA(t, "kubernetes")
	server := &apiServer{trusts: ca, authorization: "Bearer good"}
	server.start(t, ca)
	file := filepath.Join(t.TempDir(), "jane.conf")
	must.OK(t, clientcmd.WriteToFile(*kubeconfigOf(&clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pemOf(ca)}, &clientcmdapi.AuthInfo{Token: "good"}), file))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if report := must.Value(credentials.Checker{}.Check(ctx, file))(t); len(report.Findings) > 0 || len(report.Unchecked) != 1 {
		t.Errorf("got %+v", report)
	}
}

// Catches a check that connects to the API server in another way than kubectl, and so gets another result.
func TestCheckReachesServerAsKubectlDoes(t *testing.T) {
	ca := certtest.CA(t, "kubernetes")
	for name, test := range map[string]struct {
		accepts string // header Authorization
		cluster func(c *clientcmdapi.Cluster, proxy string)
		user    clientcmdapi.AuthInfo
		files   map[string]string
		want    string // findings, or the user
	}{
		"token":               {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Token: "good"}, want: "jane"},
		"wrong token":         {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Token: "bad"}, want: "not-accepted"},
		"token file":          {accepts: "Bearer good", user: clientcmdapi.AuthInfo{TokenFile: "token"}, files: map[string]string{"token": "good\n"}, want: "jane"},
		"missing token file":  {accepts: "Bearer good", user: clientcmdapi.AuthInfo{TokenFile: "gone"}, want: "no-credential"},
		"basic":               {accepts: "Basic amFuZTpnb29k", user: clientcmdapi.AuthInfo{Username: "jane", Password: "good"}, want: "jane"},
		"impersonation":       {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Token: "good", Impersonate: "joe"}, want: "joe"},
		"exec plugin":         {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Exec: plugin(execPlugin)}, want: "jane"},
		"failing exec plugin": {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Exec: plugin("exit 3")}, want: "no-credential"},
		"auth provider":       {user: clientcmdapi.AuthInfo{AuthProvider: &clientcmdapi.AuthProviderConfig{Name: "oidc"}}, want: "unchecked"},
		"proxy and server name": {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Token: "good"}, cluster: func(c *clientcmdapi.Cluster, proxy string) {
			c.Server, c.ProxyURL, c.TLSServerName = "https://api.invalid:6443", proxy, "127.0.0.1"
		}, want: "jane"},
		"proxy without the server name": {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Token: "good"}, cluster: func(c *clientcmdapi.Cluster, proxy string) {
			c.Server, c.ProxyURL = "https://api.invalid:6443", proxy
		}, want: "server-certificate"},
		"CA and insecure": {accepts: "Bearer good", user: clientcmdapi.AuthInfo{Token: "good"}, cluster: func(c *clientcmdapi.Cluster, _ string) { c.InsecureSkipTLSVerify = true }, want: "insecure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &apiServer{trusts: ca, authorization: test.accepts}
			server.start(t, ca)
			cluster := &clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pemOf(ca)}
			if test.cluster != nil {
				proxy := httptest.NewServer(apitest.Tunnel(server.Listener.Addr().String()))
				t.Cleanup(proxy.Close)
				test.cluster(cluster, proxy.URL)
			}
			dir := t.TempDir()
			for name, content := range test.files {
				must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o700))
			}
			file := filepath.Join(dir, "jane.conf")
			must.OK(t, clientcmd.WriteToFile(*kubeconfigOf(cluster, &test.user), file))
			report := must.Value(credentials.Checker{}.Check(t.Context(), file))(t)
			got := report.User
			switch {
			case len(report.Findings) > 0:
				got = report.Findings[0].ID
			case len(report.Unchecked) > 0:
				got = "unchecked"
			}
			if got != test.want || len(report.Findings) > 1 {
				t.Errorf("got %q, want %q: %+v", got, test.want, report)
			}
		})
	}
}

const execPlugin = `echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"good"}}'`

func plugin(script string) *clientcmdapi.ExecConfig {
	return &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "sh", Args: []string{"-c", script}, InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
}

// A temporary state of the API server must not be a finding, because nobody can fix it in the file.
func TestUnavailableServerIsUnchecked(t *testing.T) {
	ca := certtest.CA(t, "kubernetes")
	server := &apiServer{trusts: ca, review: http.StatusServiceUnavailable}
	server.start(t, ca)
	client := certtest.Issue(t, nodeTemplate(), ca)
	content := must.Value(clientcmd.Write(*kubeconfigOf(&clientcmdapi.Cluster{Server: server.URL, CertificateAuthorityData: pemOf(ca)}, &clientcmdapi.AuthInfo{ClientCertificateData: pemOf(client), ClientKeyData: keyOf(t, client)})))(t)
	file := filepath.Join(t.TempDir(), "kubelet.conf")
	must.OK(t, os.WriteFile(file, content, 0o600))
	report, err := credentials.Checker{}.Check(t.Context(), file)
	if err != nil || len(report.Findings) > 0 || len(report.Unchecked) != 1 || !strings.Contains(report.Unchecked[0], "503") {
		t.Errorf("got %+v, %v", report, err)
	}
}

// FuzzCheck checks that no file makes Check hang or panic, and that the report never contains the file's key.
func FuzzCheck(f *testing.F) {
	ca := certtest.CA(f, "kubernetes")
	client := certtest.Issue(f, nodeTemplate(), ca)
	content := must.Value(clientcmd.Write(*kubeconfigOf(&clientcmdapi.Cluster{Server: "https://127.0.0.1:6443", CertificateAuthorityData: pemOf(ca)}, &clientcmdapi.AuthInfo{ClientCertificateData: pemOf(client), ClientKeyData: keyOf(f, client)})))(f)
	f.Add(content)
	f.Add([]byte("clusters: [{name: c}]\nusers: [{name: u, user: {client-certificate: /dev/null}}]\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		file := filepath.Join(t.TempDir(), "kubelet.conf")
		must.OK(t, os.WriteFile(file, content, 0o600))
		report := must.Value(credentials.Checker{Offline: true}.Check(t.Context(), file))(t)
		if strings.Contains(report.Text(), "PRIVATE KEY") {
			t.Errorf("the report has a key: %s", report.Text())
		}
	})
}

// A kubeconfig may name a device or a pipe. Catches a check that reads an endless device, or waits for a writer of a pipe.
func TestCheckReadsOnlySmallRegularFilesThatTheKubeconfigNames(t *testing.T) {
	dir := t.TempDir()
	pipe, large := filepath.Join(dir, "pipe"), filepath.Join(dir, "large")
	must.OK(t, syscall.Mkfifo(pipe, 0o600))
	content := append(pemOf(certtest.CA(t, "kubernetes")), make([]byte, 1<<20)...)
	must.OK(t, os.WriteFile(large, content, 0o600))
	for _, file := range []string{pipe, "/dev/zero", dir, large, "pipe"} {
		config := clientcmdapi.NewConfig()
		config.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1", CertificateAuthority: file}
		config.AuthInfos["me"] = &clientcmdapi.AuthInfo{ClientCertificate: file, ClientKey: file}
		config.Contexts["at"], config.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "me"}, "at"
		kubeconfig := filepath.Join(dir, "kubeconfig")
		must.OK(t, clientcmd.WriteToFile(*config, kubeconfig))
		report := must.Value(credentials.Checker{Offline: true}.Check(t.Context(), kubeconfig))(t)
		var got []string
		for _, f := range report.Findings {
			got = append(got, f.ID)
		}
		if !slices.Equal(got, []string{"no-ca", "no-credential"}) {
			t.Errorf("%s: got findings %q, want no-ca and no-credential", file, got)
		}
	}
}
