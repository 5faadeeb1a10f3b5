package credentials_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/credentials"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// anything returns a SignFunc that issues every requested certificate from one CA.
func anything(ca *signer.CA) credentials.SignFunc {
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, certificates.UsageServerAuth, certificates.UsageClientAuth}
	return func(ctx context.Context, r credentials.SigningRequest) ([]byte, error) {
		one, err := signer.NewSigner(r.Signer, signer.Fixed(ca), signer.ProfileConfig{Usages: usages}, func(approval.Request) error { return nil })
		if err != nil {
			return nil, err
		}
		return credentials.SignLocally(map[string]signer.Signer{r.Signer: one})(ctx, r)
	}
}

// issueFor returns a certificate of the template for the key of a request.
func issueFor(t testing.TB, ca *signer.CA, request []byte, template *x509.Certificate) []byte {
	t.Helper()
	csr := must.Value(pkcs10.Parse(request))(t)
	certs, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	pair := must.Value(tls.X509KeyPair(certs, key))(t)
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	der := must.Value(x509.CreateCertificate(rand.Reader, template, ca.Certificate(), csr.PublicKey, pair.PrivateKey))(t)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// write writes a file of a host, and creates its folder.
func write(t testing.TB, dir, name string, content []byte) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must.OK(t, os.WriteFile(file, content, 0o600))
}

// newHost returns a folder with the keys and requests of two certificates and a kubeconfig, as kubeadm writes them.
func newHost(t testing.TB, ca *signer.CA) string {
	t.Helper()
	dir := t.TempDir()
	certs, _, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "pki/ca.crt", certs)
	request := func(name string, template *x509.CertificateRequest) []byte {
		key := csrtest.NewKey()
		write(t, dir, name+".csr", csrtest.PEM(t, template, key))
		return must.Value(keyutil.MarshalPrivateKeyToPEM(key))(t)
	}
	write(t, dir, "pki/apiserver.key", request("pki/apiserver", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"kubernetes"}}))
	write(t, dir, "pki/apiserver-kubelet-client.key", request("pki/apiserver-kubelet-client", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kube-apiserver-kubelet-client"}}))
	config := must.Value(clientcmd.Write(*kubeconfigOf(&clientcmdapi.Cluster{Server: "https://127.0.0.1:6443"}, &clientcmdapi.AuthInfo{ClientKeyData: request("scheduler.conf", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:kube-scheduler"}})})))(t)
	write(t, dir, "scheduler.conf", config)
	return dir
}

// files returns the content of all files below a folder.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	must.OK(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = string(content)
		return err
	}))
	return all
}

// If one certificate is not issued, or is unusable on this host, Sign must change no file.
func TestSignWritesNothingUnlessAllIsIssued(t *testing.T) {
	ca := newCA(t)
	for _, test := range []struct {
		what   string
		change func(dir string)
		sign   credentials.SignFunc
		want   string
	}{
		{"no CA", func(dir string) { _ = os.Remove(filepath.Join(dir, "pki/ca.crt")) }, anything(ca), "needs the certificate of its CA, not the key"},
		{"malformed CA", func(dir string) { write(t, dir, "pki/ca.crt", []byte("x")) }, anything(ca), "no certificate found"},
		{"no request", func(dir string) { _ = os.Remove(filepath.Join(dir, "pki/apiserver.csr")) }, anything(ca), "kubeadm certs generate-csr"},
		{"malformed request", func(dir string) { write(t, dir, "pki/apiserver.csr", []byte("x")) }, anything(ca), "not PEM"},
		{"request of another key", func(dir string) {
			write(t, dir, "pki/apiserver.csr", csrtest.PEM(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kube-apiserver"}}, csrtest.NewKey()))
		}, anything(ca), "not for the key beside it"},
		{"malformed key", func(dir string) { write(t, dir, "pki/apiserver.key", []byte("secret-0123456789")) }, anything(ca), "no private key"},
		{"malformed kubeconfig", func(dir string) { write(t, dir, "scheduler.conf", []byte("{secret-0123456789")) }, anything(ca), "want a kubeconfig"},
		{"kubeconfig without context", func(dir string) { write(t, dir, "scheduler.conf", []byte("kind: Config\n")) }, anything(ca), "with a current context"},
		{"another CA", func(string) {}, anything(newCA(t)), "not of CA pki/ca"},
		{"the last one fails", func(string) {}, func(ctx context.Context, r credentials.SigningRequest) ([]byte, error) {
			if strings.HasSuffix(r.Signer, "/scheduler.conf") {
				return nil, errors.New("no longer")
			}
			return anything(ca)(ctx, r)
		}, "scheduler.conf: no longer"},
		{"certificate of another key", func(string) {}, func(context.Context, credentials.SigningRequest) ([]byte, error) {
			return pemOf(certtest.Issue(t, nodeTemplate(), nil)), nil
		}, "for another key"},
		{"other names", func(string) {}, func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
			return issueFor(t, ca, r.CSR, &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"kubernetes", "more"}}), nil
		}, "with another subject or other names"},
		{"other subject", func(string) {}, func(_ context.Context, r credentials.SigningRequest) ([]byte, error) {
			return issueFor(t, ca, r.CSR, &x509.Certificate{Subject: pkix.Name{CommonName: "root"}, DNSNames: []string{"kubernetes"}}), nil
		}, "with another subject or other names"},
		{"nothing", func(dir string) { _ = os.RemoveAll(dir) }, anything(ca), "has no keys of kubeadm"},
	} {
		t.Run(test.what, func(t *testing.T) {
			dir := newHost(t, ca)
			test.change(dir)
			before := map[string]string{}
			if _, err := os.Stat(dir); err == nil {
				before = files(t, dir)
			}
			names, err := credentials.KubeadmFiles{Dir: dir}.Sign(t.Context(), test.sign)
			if err == nil || !strings.Contains(err.Error(), test.want) || len(names) > 0 {
				t.Errorf("got %q, %v, want %q", names, err, test.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret-0123456789") {
				t.Error("the error has a part of a file")
			}
			if len(before) > 0 && !maps.Equal(before, files(t, dir)) {
				t.Error("files changed")
			}
		})
	}
}

// Certificates that an older kubeadm created must get today's groups. Catches a group that gets rights by mistake, and a
// subject that an operator chose and kubejoin silently replaces.
func TestCertificatesGetTodaysGroups(t *testing.T) {
	const admins, masters = "kubeadm:cluster-admins", "system:masters"
	groups := func(groups ...string) []string { return groups }
	for _, test := range []struct {
		file     string
		cn       string
		old, now []string
		want     string // part of the error
	}{
		{file: "pki/apiserver-kubelet-client", cn: "kube-apiserver-kubelet-client"},
		{file: "pki/apiserver-kubelet-client", cn: "kube-apiserver-kubelet-client", old: groups(admins)},
		{file: "pki/apiserver-kubelet-client", cn: "kube-apiserver-kubelet-client", old: groups(masters)},
		{file: "pki/apiserver-etcd-client", cn: "kube-apiserver-etcd-client", old: groups(masters)},
		{file: "pki/etcd/healthcheck-client", cn: "kube-etcd-healthcheck-client", old: groups(masters)},
		{file: "admin.conf", cn: "kubernetes-admin", old: groups(masters), now: groups(admins)},
		{file: "admin.conf", cn: "kubernetes-admin", old: groups(admins), now: groups(admins)},
		{file: "super-admin.conf", cn: "kubernetes-super-admin", old: groups(masters), now: groups(masters)},
		{file: "pki/etcd/peer", cn: "control-1"},
		{file: "kubelet.conf", cn: "system:node:control-1", old: groups("system:nodes"), now: groups("system:nodes")},
		// No component reads groups from these certificates.
		{file: "pki/front-proxy-client", cn: "front-proxy-client", old: groups(admins)},
		{file: "pki/apiserver", cn: "kube-apiserver", old: groups(masters, "dev")},
		{file: "pki/etcd/server", cn: "control-1", old: groups("etcd", "dev")},

		{file: "admin.conf", cn: "kubernetes-admin", want: `subject "CN=kubernetes-admin" given, want "CN=kubernetes-admin,O=kubeadm:cluster-admins"`},
		{file: "admin.conf", cn: "jane", old: groups(admins), want: `"CN=jane,O=kubeadm:cluster-admins" given`},
		{file: "super-admin.conf", cn: "kubernetes-super-admin", old: groups(admins), want: `want "CN=kubernetes-super-admin,O=system:masters"`},
		{file: "kubelet.conf", cn: "system:node:control-1", old: groups("system:nodes", "dev"), want: `want "CN=system:node:control-1,O=system:nodes"`},
		{file: "pki/etcd/server", want: `subject "" given`},
		{file: "scheduler.conf", cn: "system:kube-scheduler", old: groups(masters), want: `want "CN=system:kube-scheduler"`},
		{file: "pki/apiserver-kubelet-client", cn: "kube-apiserver-kubelet-client", old: groups("dev"), want: `"CN=kube-apiserver-kubelet-client,O=dev" given, want "CN=kube-apiserver-kubelet-client"`},
		{file: "pki/apiserver-kubelet-client", cn: "kube-apiserver-kubelet-client", old: groups(admins, "more:cluster-administrators"), want: "O=kubeadm:cluster-admins+O=more:cluster-administrators"},
		{file: "pki/apiserver-kubelet-client", cn: "kube-apiserver-kubelet-client", old: groups("x\nsecret"), want: `O=x secret" given`},
	} {
		t.Run(test.file+" "+test.cn+strings.Join(test.old, "+"), func(t *testing.T) {
			ca := newCA(t)
			subject := pkix.Name{CommonName: test.cn, Organization: test.old}
			h := hostOf(t, ca, test.file, subject)
			file := filepath.Join(h.Dir, test.file)
			_, err := h.Sign(t.Context(), anything(ca))
			checkSubject(t, "sign", h, test.file, err, file+".csr", test.cn, test.now, test.want)

			// Renewal of a certificate with the old subject must give the same result.
			h = hostOf(t, ca, test.file, subject)
			file = filepath.Join(h.Dir, test.file)
			request := must.Value(os.ReadFile(file + ".csr"))(t)
			setCertificate(t, h, test.file, issueFor(t, ca, request, &x509.Certificate{Subject: subject, DNSNames: []string{"kubernetes"}}))
			if test.file == "kubelet.conf" {
				return // the kubelet renews kubelet.conf
			}
			if _, err := os.Stat(file); err != nil {
				file += ".crt"
			}
			_, err = renew(t, h, anything(ca), credentials.Renewal{})
			checkSubject(t, "renew", h, test.file, err, file, test.cn, test.now, test.want)
		})
	}
}

// Renewal drops subject attributes that kubeadm does not write, like 'kubeadm certs renew'. The list must announce this before.
func TestCertificatesLoseOtherAttributes(t *testing.T) {
	for _, name := range append(credentials.Renewable(), "kubelet.conf") {
		t.Run(name, func(t *testing.T) {
			file := map[string]string{"etcd-server": "pki/etcd/server", "etcd-peer": "pki/etcd/peer", "etcd-healthcheck-client": "pki/etcd/healthcheck-client"}[name]
			if file == "" && strings.HasSuffix(name, ".conf") {
				file = name
			} else if file == "" {
				file = "pki/" + name
			}
			today := map[string]pkix.Name{
				"admin.conf": {CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}}, "apiserver": {CommonName: "kube-apiserver"},
				"apiserver-etcd-client": {CommonName: "kube-apiserver-etcd-client"}, "apiserver-kubelet-client": {CommonName: "kube-apiserver-kubelet-client"},
				"controller-manager.conf": {CommonName: "system:kube-controller-manager"}, "etcd-healthcheck-client": {CommonName: "kube-etcd-healthcheck-client"},
				"etcd-peer": {CommonName: "control-1"}, "etcd-server": {CommonName: "control-1"}, "front-proxy-client": {CommonName: "front-proxy-client"},
				"kubelet.conf": {CommonName: "system:node:control-1", Organization: []string{"system:nodes"}}, "scheduler.conf": {CommonName: "system:kube-scheduler"},
				"super-admin.conf": {CommonName: "kubernetes-super-admin", Organization: []string{"system:masters"}},
			}[name]
			old := today
			old.OrganizationalUnit, old.Locality, old.Country = []string{"ops"}, []string{"Bern"}, []string{"CH"}
			ca := newCA(t)
			h := hostOf(t, ca, file, old)
			_, err := h.Sign(t.Context(), anything(ca))
			checkSubject(t, "sign", h, file, err, "", today.CommonName, today.Organization, "")
			if got := note(t, h, name); got != "" {
				t.Errorf("note of a new certificate: %q", got)
			}
			request := must.Value(os.ReadFile(filepath.Join(h.Dir, file+".csr")))(t)
			setCertificate(t, h, file, issueFor(t, ca, request, &x509.Certificate{Subject: old, DNSNames: []string{"kubernetes"}}))
			want := fmt.Sprintf("renewal replaces the subject %q by %q", old, today)
			if got := note(t, h, name); got != want {
				t.Errorf("note: %q, want %q", got, want)
			}
			if name == "kubelet.conf" {
				return
			}
			done, err := renew(t, h, anything(ca), credentials.Renewal{})
			checkSubject(t, "renew", h, file, err, "", today.CommonName, today.Organization, "")
			if !slices.Equal(done.Changes, []credentials.Note{{Name: name, Text: want}}) {
				t.Errorf("changes: %q", done.Changes)
			}
		})
	}
}

// renew renews certificates, and writes the new files.
func renew(t *testing.T, h credentials.KubeadmFiles, sign credentials.SignFunc, r credentials.Renewal) (credentials.Renewed, error) {
	t.Helper()
	before := files(t, h.Dir)
	all, done, err := h.Renew(t.Context(), sign, r)
	if !maps.Equal(before, files(t, h.Dir)) {
		t.Error("Renew wrote a file")
	}
	if err == nil {
		for name, content := range all {
			write(t, h.Dir, name, content)
		}
	}
	return done, err
}

// note returns the note of a certificate in the list.
func note(t *testing.T, h credentials.KubeadmFiles, name string) string {
	t.Helper()
	list := must.Value(h.List())(t)
	for _, status := range list {
		if status.Name == name {
			return status.Note
		}
	}
	t.Fatalf("%s is not in the list", name)
	return ""
}

// The list must also show a certificate that cannot be renewed.
func TestListShowsSubjectThatCannotBeRenewed(t *testing.T) {
	ca := newCA(t)
	h := hostOf(t, ca, "admin.conf", pkix.Name{})
	request := must.Value(os.ReadFile(filepath.Join(h.Dir, "admin.conf.csr")))(t)
	setCertificate(t, h, "admin.conf", issueFor(t, ca, request, &x509.Certificate{Subject: pkix.Name{CommonName: "jane"}}))
	if got := note(t, h, "admin.conf"); !strings.HasPrefix(got, `subject "CN=jane" given, want "CN=kubernetes-admin,O=kubeadm:cluster-admins"; make it again in an empty folder: kubeadm certs generate-csr`) {
		t.Errorf("got %q", got)
	}
}

// If the CA of a certificate is missing, Renew must still renew the other certificates. If the caller named the
// certificate, Renew must return an error.
func TestRenewLeavesOutCertificatesWithoutCA(t *testing.T) {
	ca := newCA(t)
	newFolder := func() credentials.KubeadmFiles {
		h := credentials.KubeadmFiles{Dir: newHost(t, ca)}
		must.Value(h.Sign(t.Context(), anything(ca)))(t)
		request := must.Value(os.ReadFile(filepath.Join(h.Dir, "pki/apiserver.csr")))(t)
		key := must.Value(os.ReadFile(filepath.Join(h.Dir, "pki/apiserver.key")))(t)
		write(t, h.Dir, "pki/apiserver-etcd-client.key", key)
		// With an external etcd, the certificate has another subject than kubeadm's.
		write(t, h.Dir, "pki/apiserver-etcd-client.crt", issueFor(t, newCA(t), request, &x509.Certificate{Subject: pkix.Name{CommonName: "root"}}))
		return h
	}
	noSigner := func(ctx context.Context, r credentials.SigningRequest) ([]byte, error) {
		if r.Signer == "kubeadm.kubejoin.io/scheduler.conf" {
			return nil, fmt.Errorf("%w: not configured", credentials.ErrNoCA)
		}
		return anything(ca)(ctx, r)
	}
	for _, test := range []struct {
		what    string
		noCA    map[string]string
		sign    credentials.SignFunc
		aside   string // name and part of the reason
		renewed []string
	}{
		{"no CA certificate on the host", nil, anything(ca), "apiserver-etcd-client needs the certificate of its CA", []string{"apiserver", "apiserver-kubelet-client", "scheduler.conf"}},
		{"no CA key", map[string]string{"apiserver-etcd-client": "x/etcd/ca.key does not exist"}, anything(ca), "x/etcd/ca.key does not exist", []string{"apiserver", "apiserver-kubelet-client", "scheduler.conf"}},
		{"no signer at the server", map[string]string{"apiserver-etcd-client": "x"}, noSigner, "no CA: not configured", []string{"apiserver", "apiserver-kubelet-client"}},
	} {
		t.Run(test.what, func(t *testing.T) {
			h := newFolder()
			h.NoCA = test.noCA
			done, err := renew(t, h, test.sign, credentials.Renewal{})
			if err != nil || !slices.Equal(done.Names, test.renewed) || !strings.Contains(fmt.Sprint(done.SetAside), test.aside) {
				t.Fatalf("got %+v, %v", done, err)
			}
			name := done.SetAside[len(done.SetAside)-1].Name
			before := files(t, h.Dir)
			done, err = renew(t, h, test.sign, credentials.Renewal{Names: []string{"apiserver", name}})
			if err == nil || !strings.HasPrefix(err.Error(), name+": ") || !strings.Contains(err.Error(), test.aside) || !maps.Equal(before, files(t, h.Dir)) {
				t.Errorf("%s asked for: got %+v, %v, want an error and no change", name, done, err)
			}
		})
	}
	h := newFolder()
	h.NoCA = map[string]string{}
	for _, name := range credentials.Renewable() {
		h.NoCA[name] = "x does not exist"
	}
	if _, err := renew(t, h, anything(ca), credentials.Renewal{}); err == nil || err.Error() != "nothing to renew without these CAs: apiserver: x does not exist" {
		t.Errorf("no CA at all: %v", err)
	}
	must.OK(t, os.Remove(filepath.Join(h.Dir, "pki/apiserver.crt")))
	if _, err := h.Sign(t.Context(), anything(ca)); err == nil || err.Error() != "apiserver: x does not exist" {
		t.Errorf("sign without a CA: %v", err)
	}
}

// Renewal must add names as kubeadm reads them from certSANs, each once, and report names that it drops.
func TestRenewAddsAndDropsNames(t *testing.T) {
	ca := newCA(t)
	h := hostOf(t, ca, "pki/apiserver", pkix.Name{CommonName: "kube-apiserver"})
	request := must.Value(os.ReadFile(filepath.Join(h.Dir, "pki/apiserver.csr")))(t)
	san := must.Value(asn1.Marshal([]asn1.RawValue{
		{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte("kubernetes")}, {Class: asn1.ClassContextSpecific, Tag: 7, Bytes: []byte{10, 0, 0, 1}},
		{Class: asn1.ClassContextSpecific, Tag: 1, Bytes: []byte("ops@example.com")}, {Class: asn1.ClassContextSpecific, Tag: 6, Bytes: []byte("spiffe://a/b")},
		{Class: asn1.ClassContextSpecific, Tag: 8, Bytes: []byte{42}},
	}))(t)
	setCertificate(t, h, "pki/apiserver", issueFor(t, ca, request, &x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Value: san}},
	}))
	const drops = `renewal drops what kubeadm does not write: email "ops@example.com", URI "spiffe://a/b", a name of kind 8`
	if got := note(t, h, "apiserver"); got != drops {
		t.Errorf("note: %q, want %q", got, drops)
	}
	done := must.Value(renew(t, h, anything(ca), credentials.Renewal{Add: map[string][]string{
		"apiserver": {"lb.example.com", "Kubernetes", "kubernetes", "*.example.com", "10.0.0.1", "010.0.0.2", "2001:db8::1", "a_b", "lb.example.com", ""},
	}}))(t)
	var got []string
	for _, change := range done.Changes {
		got = append(got, change.Text)
	}
	const invalid = ` given, want an IP address, a DNS name in lower case, or a wildcard such as *.example.com`
	want := []string{
		drops, `renewal adds the name "lb.example.com"`, `renewal leaves out a name: "Kubernetes"` + invalid, `renewal adds the name "*.example.com"`, `renewal adds the name "010.0.0.2"`,
		`renewal adds the name "2001:db8::1"`, `renewal leaves out a name: "a_b"` + invalid, `renewal leaves out a name: ""` + invalid,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	content := must.Value(os.ReadFile(filepath.Join(h.Dir, "pki/apiserver.crt")))(t)
	block, _ := pem.Decode(content)
	leaf := must.Value(x509.ParseCertificate(block.Bytes))(t)
	if names := fmt.Sprint(leaf.DNSNames, leaf.IPAddresses, leaf.EmailAddresses, leaf.URIs); names != "[kubernetes lb.example.com *.example.com] [10.0.0.1 10.0.0.2 2001:db8::1] [] []" {
		t.Errorf("names: %s", names)
	}
	if _, err := renew(t, h, anything(ca), credentials.Renewal{Add: map[string][]string{"apiserver": make([]string, pkcs10.MaxNames+1)}}); err == nil || !strings.Contains(err.Error(), "501 names to add given, want at most 500") {
		t.Errorf("too many: %v", err)
	}
}

// hostOf returns a folder with the key and request of one certificate.
func hostOf(t *testing.T, ca *signer.CA, file string, subject pkix.Name) credentials.KubeadmFiles {
	t.Helper()
	dir := t.TempDir()
	certs, _, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pki/ca.crt", "pki/front-proxy-ca.crt", "pki/etcd/ca.crt"} {
		write(t, dir, name, certs)
	}
	key := csrtest.NewKey()
	write(t, dir, file+".csr", csrtest.PEM(t, &x509.CertificateRequest{Subject: subject, DNSNames: []string{"kubernetes"}}, key))
	content := must.Value(keyutil.MarshalPrivateKeyToPEM(key))(t)
	if !strings.HasSuffix(file, ".conf") {
		write(t, dir, file+".key", content)
		return credentials.KubeadmFiles{Dir: dir}
	}
	config := must.Value(clientcmd.Write(*kubeconfigOf(&clientcmdapi.Cluster{Server: "https://127.0.0.1:6443"}, &clientcmdapi.AuthInfo{ClientKeyData: content})))(t)
	write(t, dir, file, config)
	return credentials.KubeadmFiles{Dir: dir}
}

// setCertificate writes the certificate of a file of hostOf.
func setCertificate(t *testing.T, h credentials.KubeadmFiles, file string, certificate []byte) {
	t.Helper()
	if !strings.HasSuffix(file, ".conf") {
		write(t, h.Dir, file+".crt", certificate)
		return
	}
	config := must.Value(clientcmd.LoadFromFile(filepath.Join(h.Dir, file)))(t)
	config.AuthInfos["me"].ClientCertificateData = certificate
	must.OK(t, clientcmd.WriteToFile(*config, filepath.Join(h.Dir, file)))
}

// checkSubject checks the certificate of a file of hostOf, or an error that names the file.
func checkSubject(t *testing.T, what string, h credentials.KubeadmFiles, file string, err error, named, cn string, groups []string, want string) {
	t.Helper()
	if want != "" {
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), named+": ") {
			t.Errorf("%s: got %v, want %s and %s", what, err, named, want)
		}
		return
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	content, err := os.ReadFile(filepath.Join(h.Dir, file+".crt"))
	if strings.HasSuffix(file, ".conf") {
		config := must.Value(clientcmd.LoadFromFile(filepath.Join(h.Dir, file)))(t)
		content = config.AuthInfos["me"].ClientCertificateData
	} else if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(content)
	leaf := must.Value(x509.ParseCertificate(block.Bytes))(t)
	if leaf.Subject.CommonName != cn || !slices.Equal(leaf.Subject.Organization, groups) || !slices.Equal(leaf.DNSNames, []string{"kubernetes"}) {
		t.Errorf("%s: got %s with names %q, want CN %s, groups %q and the name kubernetes", what, leaf.Subject, leaf.DNSNames, cn, groups)
	}
}

// 'kubejoin sign' uses the new certificate for a request to the cluster before it writes admin.conf.
func TestAdminConfigTakesNewCertificate(t *testing.T) {
	ca := newCA(t)
	h := hostOf(t, ca, "admin.conf", pkix.Name{CommonName: "kubernetes-admin", Organization: []string{"kubeadm:cluster-admins"}})
	want, _, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	config, err := h.AdminConfig([]byte("chain"))
	if err != nil || config.Host != "https://127.0.0.1:6443" || string(config.CertData) != "chain" || len(config.KeyData) == 0 || string(config.CAData) != string(want) {
		t.Errorf("got %v, %v", config, err)
	}
	if _, err := (credentials.KubeadmFiles{Dir: t.TempDir()}).AdminConfig(nil); err == nil || !strings.Contains(err.Error(), "has no admin.conf") {
		t.Errorf("without the file: got %v", err)
	}
}

// Renewal must change all files or none. It must not change kubelet.conf, which the kubelet renews.
func TestRenewIsCompleteOrDoesNotHappen(t *testing.T) {
	ca := newCA(t)
	h := credentials.KubeadmFiles{Dir: newHost(t, ca)}
	if _, err := renew(t, h, anything(ca), credentials.Renewal{}); err == nil || !strings.Contains(err.Error(), "has no certificates of kubeadm") {
		t.Errorf("before the first certificate: %v", err)
	}
	must.Value(h.Sign(t.Context(), anything(ca)))(t)
	for _, name := range []string{"kubelet.conf", "ca", "../apiserver"} {
		if _, err := renew(t, h, anything(ca), credentials.Renewal{Names: []string{name}}); err == nil || !strings.Contains(err.Error(), "is not a certificate that can be renewed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	before := files(t, h.Dir)
	if _, err := renew(t, h, anything(newCA(t)), credentials.Renewal{}); err == nil || !maps.Equal(before, files(t, h.Dir)) {
		t.Errorf("another CA: got %v, want an error and no change", err)
	}
	done, err := renew(t, h, anything(ca), credentials.Renewal{Names: []string{"apiserver"}})
	if err != nil || !slices.Equal(done.Names, []string{"apiserver"}) {
		t.Fatalf("got %q, %v", done.Names, err)
	}
	old := filepath.Join(h.Dir, "pki", "apiserver.crt")
	after := files(t, h.Dir)
	if after[old] == before[old] {
		t.Error("the certificate is the old one")
	}
	before[old] = after[old]
	if !maps.Equal(before, after) {
		t.Error("another file would change")
	}
	must.OK(t, os.Rename(old, old+".real")) // Renew would replace a link by a file
	must.OK(t, os.Symlink(old+".real", old))
	before = files(t, h.Dir)
	if _, err := renew(t, h, anything(ca), credentials.Renewal{}); err == nil || !strings.Contains(err.Error(), old+" is a symbolic link, want a regular file") || !maps.Equal(before, files(t, h.Dir)) {
		t.Errorf("a link: got %v, want an error and no change", err)
	}
}

// The list must show all problems, and each CA whose key is on the host.
func TestListNamesProblems(t *testing.T) {
	ca := newCA(t)
	h := credentials.KubeadmFiles{Dir: newHost(t, ca)}
	problems := func() string {
		t.Helper()
		list := must.Value(h.List())(t)
		var lines []string
		for _, held := range list {
			if held.Problem != "" || held.KeyOnHost {
				lines = append(lines, strings.TrimSpace(held.Name+" "+held.Problem))
			}
		}
		return strings.Join(lines, "; ")
	}
	if got, want := problems(), "apiserver not signed yet; apiserver-kubelet-client not signed yet; scheduler.conf not signed yet"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	must.Value(h.Sign(t.Context(), anything(ca)))(t)
	if got := problems(); got != "" {
		t.Errorf("got %q, want none", got)
	}
	certs, _, err := newCA(t).PEM()
	if err != nil {
		t.Fatal(err)
	}
	write(t, h.Dir, "pki/ca.crt", certs)
	write(t, h.Dir, "pki/ca.key", nil)
	if got := problems(); strings.Count(got, "not of CA pki/ca") != 3 || !strings.HasSuffix(got, "; ca") {
		t.Errorf("got %q, want three of another CA, and the CA key", got)
	}
	if _, err := (credentials.KubeadmFiles{Dir: t.TempDir()}).List(); err == nil {
		t.Error("an empty folder: got no error")
	}
}

// Catches an unusable certificate that has no row in the list. The exit code would then be 0.
func TestListShowsWhatCannotBeUsed(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	authority := func(name string, from, to time.Duration) *tls.Certificate {
		return certtest.Issue(t, &x509.Certificate{
			Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotBefore: now.Add(from), NotAfter: now.Add(to),
		}, nil)
	}
	const hour = time.Hour
	ca, next := authority("kubernetes", -9*hour, 9*hour), authority("kubernetes", -hour, 90*hour)
	past, future := authority("kubernetes", -9*hour, -hour), authority("kubernetes", hour, 9*hour)
	leaf := func(issuer *tls.Certificate, usage x509.ExtKeyUsage, from, to time.Duration) *tls.Certificate {
		return certtest.Issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, ExtKeyUsage: []x509.ExtKeyUsage{usage}, NotBefore: now.Add(from), NotAfter: now.Add(to)}, issuer)
	}
	const server, client = x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth
	apiserver := func(dir string, c *tls.Certificate) {
		write(t, dir, "pki/apiserver.crt", pemOf(c))
		write(t, dir, "pki/apiserver.key", keyOf(t, c))
	}
	naming := func(dir, kubeconfig, certificate, key string) {
		content := must.Value(clientcmd.Write(*kubeconfigOf(&clientcmdapi.Cluster{Server: "https://127.0.0.1:6443"}, &clientcmdapi.AuthInfo{ClientCertificate: certificate, ClientKey: key})))(t)
		write(t, dir, kubeconfig, content)
	}
	row := func(name string, end time.Duration, problem string) string {
		return strings.TrimSpace(name + " " + now.Add(end).UTC().Format(time.RFC3339) + " " + problem)
	}
	good := row("ca", 9*hour, "")
	for name, test := range map[string]struct {
		change func(dir string)
		want   []string // a prefix of each row
	}{
		"good": {func(dir string) { apiserver(dir, leaf(ca, server, -hour, hour)) }, []string{row("apiserver", hour, ""), good}},
		"expired file of a kubeconfig": {func(dir string) {
			c := leaf(ca, client, -2*hour, -hour)
			write(t, dir, "admin.pem", append(pemOf(c), keyOf(t, c)...))
			naming(dir, "admin.conf", "admin.pem", "admin.pem")
		}, []string{row("admin.conf", -hour, "expired"), good}},
		"good file of kubelet.conf": {func(dir string) {
			c := leaf(ca, client, -hour, hour)
			write(t, dir, "kubelet.pem", append(pemOf(c), keyOf(t, c)...))
			naming(dir, "kubelet.conf", filepath.Join(dir, "kubelet.pem"), filepath.Join(dir, "kubelet.pem"))
		}, []string{row("kubelet.conf", hour, ""), good}},
		"missing file of a kubeconfig": {func(dir string) { naming(dir, "admin.conf", "gone.crt", "gone.key") }, []string{"admin.conf - DIR/admin.conf: client-certificate: DIR/gone.crt: no such file", good}},
		"client certificate of the API server": {func(dir string) { apiserver(dir, leaf(ca, client, -hour, hour)) },
			[]string{row("apiserver", hour, `wrong certificate: subject "CN=kube-apiserver", without usage server auth`), good}},
		"no key":          {func(dir string) { write(t, dir, "pki/apiserver.crt", pemOf(leaf(ca, server, -hour, hour))) }, []string{"apiserver - there is no key DIR/pki/apiserver.key", good}},
		"not yet valid":   {func(dir string) { apiserver(dir, leaf(ca, server, hour, 2*hour)) }, []string{row("apiserver", 2*hour, "not yet valid: it begins at "+now.Add(hour).UTC().Format(time.RFC3339)), good}},
		"outlives its CA": {func(dir string) { apiserver(dir, leaf(ca, server, -hour, 90*hour)) }, []string{row("apiserver", 9*hour, ""), good}},
		"two CAs": {func(dir string) {
			apiserver(dir, leaf(ca, server, -hour, 30*hour))
			write(t, dir, "pki/ca.crt", pemOf(next, ca))
			write(t, dir, "pki/ca.key", keyOf(t, ca))
		}, []string{row("apiserver", 9*hour, ""), row("ca", 90*hour, ""), row("ca-2", 9*hour, "") + " key"}},
		"one of two CAs expired": {func(dir string) {
			apiserver(dir, leaf(past, server, -2*hour, 2*hour))
			write(t, dir, "pki/ca.crt", pemOf(ca, past))
		}, []string{row("apiserver", -hour, "its CA cannot be used: expired"), good, row("ca-2", -hour, "expired")}},
		"expired CA that issued nothing": {func(dir string) {
			apiserver(dir, leaf(ca, server, -hour, hour))
			write(t, dir, "pki/ca.crt", pemOf(ca, past))
		}, []string{row("apiserver", hour, ""), good, row("ca-2", -hour, "")}},
		"CA not yet valid": {func(dir string) {
			apiserver(dir, leaf(future, server, -hour, hour))
			write(t, dir, "pki/ca.crt", pemOf(future))
		}, []string{row("apiserver", hour, "its CA cannot be used: not yet valid"), row("ca", 9*hour, "not yet valid")}},
		"leaf in place of a CA": {func(dir string) { write(t, dir, "pki/ca.crt", pemOf(leaf(ca, server, -hour, hour))) }, []string{row("ca", hour, "not a CA certificate")}},
		"damaged bundle":        {func(dir string) { write(t, dir, "pki/ca.crt", bytes.TrimSpace(append(pemOf(ca), pemOf(next)[:99]...))) }, []string{"ca - DIR/pki/ca.crt: PEM block 2 (line "}},
		"another CA":            {func(dir string) { apiserver(dir, leaf(next, server, -hour, hour)) }, []string{row("apiserver", hour, "not of CA pki/ca"), good}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "pki/ca.crt", pemOf(ca))
			test.change(dir)
			list := must.Value(credentials.KubeadmFiles{Dir: dir}.List())(t)
			var got []string
			for _, status := range list {
				end := "-"
				if status.NotAfter != nil {
					end = status.NotAfter.UTC().Format(time.RFC3339)
				}
				line := strings.TrimSpace(status.Name + " " + end + " " + status.Problem)
				if status.KeyOnHost {
					line += " key"
				}
				got = append(got, strings.ReplaceAll(line, dir, "DIR"))
			}
			if !slices.EqualFunc(got, test.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			for i, line := range got { // if a row shows no problem, want is the whole row
				if i < len(test.want) && strings.HasSuffix(test.want[i], "Z") && line != test.want[i] {
					t.Errorf("got %q, want %q", line, test.want[i])
				}
			}
		})
	}
}

// FuzzHost checks that no file of a host makes List or Sign hang or panic, and that errors contain no part of a key.
func FuzzHost(f *testing.F) {
	ca := newCA(f)
	dir := newHost(f, ca)
	all := files(f, dir)
	f.Add([]byte(all[filepath.Join(dir, "scheduler.conf")]), []byte(all[filepath.Join(dir, "pki/apiserver.csr")]), []byte(all[filepath.Join(dir, "pki/apiserver.key")]), []byte(all[filepath.Join(dir, "pki/ca.crt")]))
	f.Fuzz(func(t *testing.T, config, csr, key, roots []byte) {
		dir := t.TempDir()
		write(t, dir, "scheduler.conf", config)
		write(t, dir, "scheduler.conf.csr", csr)
		write(t, dir, "pki/apiserver.csr", csr)
		write(t, dir, "pki/apiserver.key", key)
		write(t, dir, "pki/ca.crt", roots)
		h := credentials.KubeadmFiles{Dir: dir}
		list, err := h.List()
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		if _, err := h.Sign(t.Context(), anything(ca)); err != nil && strings.Contains(err.Error(), "-----BEGIN") {
			t.Errorf("the error has a key: %v", err)
		}
	})
}

// An intermediate CA signs, and pki/ca.crt contains the root. Catches a check that ignores the intermediates in the certificate
// file. It would report a certificate that kubejoin has just written, and Sign would request the certificate again each time.
func TestIntermediatesBesideCertificateCount(t *testing.T) {
	root := certtest.CA(t, "root")
	key := csrtest.NewKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "intermediate"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must.Value(x509.CreateCertificate(rand.Reader, template, root.Leaf, key.Public(), root.PrivateKey))(t)
	intermediate := must.Value(x509.ParseCertificate(der))(t)
	ca := must.Value(signer.NewCA([]*x509.Certificate{intermediate, root.Leaf}, key))(t)
	dir := newHost(t, newCA(t))
	write(t, dir, "pki/ca.crt", pemOf(root))
	host := credentials.KubeadmFiles{Dir: dir}
	for _, want := range []int{3, 0} {
		if names, err := host.Sign(t.Context(), anything(ca)); err != nil || len(names) != want {
			t.Fatalf("signed %q, %v, want %d", names, err, want)
		}
	}
	list := must.Value(host.List())(t)
	for _, held := range list {
		if held.Problem != "" {
			t.Errorf("%s: %s, want no problem", held.Name, held.Problem)
		}
	}
}

// The note must be about the CA that expires last. During a rotation, it is normal that the old CA expires soon.
func TestListSaysWhenCAExpiresSoon(t *testing.T) {
	const day = 24 * time.Hour
	dir := newHost(t, newCA(t))
	bundle := func(lifetimes ...time.Duration) (content []byte) {
		for _, lifetime := range lifetimes {
			certs, _, err := must.Value(signer.GenerateCA("kubernetes", time.Now(), lifetime))(t).PEM()
			if err != nil {
				t.Fatal(err)
			}
			content = append(content, certs...)
		}
		return content
	}
	write(t, dir, "pki/ca.crt", bundle(80*day))
	write(t, dir, "pki/etcd/ca.crt", bundle(20*day, 10*day))
	write(t, dir, "pki/front-proxy-ca.crt", bundle(20*day, 3650*day))
	got := map[string]string{}
	for _, held := range must.Value(credentials.KubeadmFiles{Dir: dir}.List())(t) {
		if held.CA == "" {
			got[held.Name] = held.Note
		}
	}
	want := map[string]string{
		"ca":      "expires within 90 days; run: kubejoin ca prepare",
		"etcd-ca": "expires within 30 days; run: kubejoin ca prepare --ca etcd", "etcd-ca-2": "",
		"front-proxy-ca": "", "front-proxy-ca-2": "",
	}
	if !maps.Equal(got, want) {
		t.Errorf("notes are %q, want %q", got, want)
	}
}

// Catches a new certificate that the owner of the old one cannot read.
func TestHostKeepsOwnersAndModes(t *testing.T) {
	ca := newCA(t)
	h := credentials.KubeadmFiles{Dir: newHost(t, ca)}
	config := filepath.Join(h.Dir, "scheduler.conf")
	must.OK(t, os.Chmod(config, 0o640))
	must.Value(h.Sign(t.Context(), anything(ca)))(t)
	for file, want := range map[string]fs.FileMode{config: 0o640, filepath.Join(h.Dir, "pki/apiserver-kubelet-client.crt"): 0o644} {
		if info, err := os.Stat(file); err != nil || info.Mode() != want {
			t.Errorf("%s: got mode %v, %v, want %v", file, info.Mode(), err, want)
		}
	}
}

// Catches a command of root that reads an endless pipe, or a file that fills the memory.
func TestHostReadsOnlySmallRegularFiles(t *testing.T) {
	for _, name := range []string{"scheduler.conf", "pki/apiserver.key", "pki/apiserver.csr", "pki/apiserver.crt", "pki/ca.crt"} {
		for what, replace := range map[string]func(file string) error{
			"a pipe":       func(file string) error { return syscall.Mkfifo(file, 0o600) },
			"a large file": func(file string) error { return os.WriteFile(file, make([]byte, 1<<20+1), 0o600) },
		} {
			ca := newCA(t)
			h := credentials.KubeadmFiles{Dir: newHost(t, ca)}
			file := filepath.Join(h.Dir, name)
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			must.OK(t, replace(file))
			if _, err := h.Sign(t.Context(), anything(ca)); err == nil || !strings.Contains(err.Error(), name+": want a regular file of at most 1048576 bytes") {
				t.Errorf("%s is %s: got %v, want a refusal", name, what, err)
			}
		}
	}
}
