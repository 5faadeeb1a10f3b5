package credentials_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/credentials"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// anything is a SignFunc that issues what is requested, from one CA.
func anything(ca *signer.CA) credentials.SignFunc {
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, certificates.UsageServerAuth, certificates.UsageClientAuth}
	return func(ctx context.Context, r credentials.Request) ([]byte, error) {
		one := signer.Signer{CA: signer.Fixed(ca), Profile: signer.Profile{Usages: usages}, Check: func(approval.Request) error { return nil }}
		return credentials.SignLocally(map[string]signer.Signer{r.Signer: one})(ctx, r)
	}
}

// issueFor returns a certificate of the template for the key of a request.
func issueFor(t testing.TB, ca *signer.CA, request []byte, template *x509.Certificate) []byte {
	t.Helper()
	csr, err := pkcs10.Parse(request)
	if err != nil {
		t.Fatal(err)
	}
	certs, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certs, key)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = big.NewInt(1), time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.Certificate(), csr.PublicKey, pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// write writes a file of a host, and makes its folder.
func write(t testing.TB, dir, name string, content []byte) {
	t.Helper()
	file := filepath.Join(dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
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
		content, err := keyutil.MarshalPrivateKeyToPEM(key)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	write(t, dir, "pki/apiserver.key", request("pki/apiserver", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"kubernetes"}}))
	write(t, dir, "pki/apiserver-kubelet-client.key", request("pki/apiserver-kubelet-client", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kube-apiserver-kubelet-client"}}))
	config, err := clientcmd.Write(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"c": {Server: "https://127.0.0.1:6443"}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"me": {ClientKeyData: request("scheduler.conf", &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:kube-scheduler"}})}},
		Contexts:  map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "me"}}, CurrentContext: "x",
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "scheduler.conf", config)
	return dir
}

// files returns the content of all files below a folder.
func files(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// If one certificate is not issued, or cannot be used on this host, no file changes.
func TestSignWritesNothingUnlessAllIsIssued(t *testing.T) {
	ca := newCA(t)
	for _, test := range []struct {
		what   string
		change func(dir string)
		sign   credentials.SignFunc
		want   string
	}{
		{"no CA", func(dir string) { _ = os.Remove(filepath.Join(dir, "pki/ca.crt")) }, anything(ca), "needs the certificate of its CA, not the key"},
		{"malformed CA", func(dir string) { write(t, dir, "pki/ca.crt", []byte("x")) }, anything(ca), "no certificate in PEM"},
		{"no request", func(dir string) { _ = os.Remove(filepath.Join(dir, "pki/apiserver.csr")) }, anything(ca), "kubeadm certs generate-csr"},
		{"malformed request", func(dir string) { write(t, dir, "pki/apiserver.csr", []byte("x")) }, anything(ca), "not PEM"},
		{"request of another key", func(dir string) {
			write(t, dir, "pki/apiserver.csr", csrtest.PEM(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "kube-apiserver"}}, csrtest.NewKey()))
		}, anything(ca), "not for the key beside it"},
		{"malformed key", func(dir string) { write(t, dir, "pki/apiserver.key", []byte("secret-0123456789")) }, anything(ca), "no private key"},
		{"malformed kubeconfig", func(dir string) { write(t, dir, "scheduler.conf", []byte("{secret-0123456789")) }, anything(ca), "want a kubeconfig"},
		{"kubeconfig without context", func(dir string) { write(t, dir, "scheduler.conf", []byte("kind: Config\n")) }, anything(ca), "want a current context"},
		{"another CA", func(string) {}, anything(newCA(t)), "not of CA pki/ca"},
		{"the last one fails", func(string) {}, func(ctx context.Context, r credentials.Request) ([]byte, error) {
			if strings.HasSuffix(r.Signer, "/scheduler.conf") {
				return nil, errors.New("no longer")
			}
			return anything(ca)(ctx, r)
		}, "scheduler.conf: no longer"},
		{"certificate of another key", func(string) {}, func(context.Context, credentials.Request) ([]byte, error) {
			return pemOf(certtest.Issue(t, nodeTemplate(), nil)), nil
		}, "certificate and key differ"},
		{"other names", func(string) {}, func(_ context.Context, r credentials.Request) ([]byte, error) {
			return issueFor(t, ca, r.CSR, &x509.Certificate{Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: []string{"kubernetes", "more"}}), nil
		}, "with another subject or other names"},
		{"other subject", func(string) {}, func(_ context.Context, r credentials.Request) ([]byte, error) {
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
			names, err := credentials.Host{Dir: dir}.Sign(t.Context(), test.sign)
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

// Renewal is complete or does not happen, and leaves kubelet.conf to the kubelet.
func TestRenewIsCompleteOrDoesNotHappen(t *testing.T) {
	ca := newCA(t)
	h := credentials.Host{Dir: newHost(t, ca)}
	if _, _, err := h.Renew(t.Context(), anything(ca), nil); err == nil || !strings.Contains(err.Error(), "has no certificates of kubeadm") {
		t.Errorf("before the first certificate: %v", err)
	}
	if _, err := h.Sign(t.Context(), anything(ca)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubelet.conf", "ca", "../apiserver"} {
		if _, _, err := h.Renew(t.Context(), anything(ca), []string{name}); err == nil || !strings.Contains(err.Error(), "is not a certificate that can be renewed") {
			t.Errorf("%s: %v", name, err)
		}
	}
	before := files(t, h.Dir)
	if _, _, err := h.Renew(t.Context(), anything(newCA(t)), nil); err == nil || !maps.Equal(before, files(t, h.Dir)) {
		t.Errorf("another CA: got %v, want an error and no change", err)
	}
	names, backup, err := h.Renew(t.Context(), anything(ca), []string{"apiserver"})
	if err != nil || len(names) != 1 || names[0] != "apiserver" {
		t.Fatalf("got %q, %v", names, err)
	}
	old := filepath.Join(h.Dir, "pki", "apiserver.crt")
	after := files(t, h.Dir)
	if after[filepath.Join(backup, "pki", "apiserver.crt")] != before[old] || after[old] == before[old] {
		t.Error("want a new certificate, and the old one in the backup")
	}
	for path, content := range before {
		if path != old && after[path] != content {
			t.Errorf("%s changed", path)
		}
	}
}

// The list names what is wrong, and each CA whose key is on the host.
func TestListNamesProblems(t *testing.T) {
	ca := newCA(t)
	h := credentials.Host{Dir: newHost(t, ca)}
	problems := func() string {
		t.Helper()
		list, err := h.List()
		if err != nil {
			t.Fatal(err)
		}
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
	if _, err := h.Sign(t.Context(), anything(ca)); err != nil {
		t.Fatal(err)
	}
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
	if _, err := (credentials.Host{Dir: t.TempDir()}).List(); err == nil {
		t.Error("an empty folder: got no error")
	}
}

// FuzzHost shows that no file of a host stops the list or the signing, and that errors have no part of a key.
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
		h := credentials.Host{Dir: dir}
		list, err := h.List()
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		if _, err := h.Sign(t.Context(), anything(ca)); err != nil && strings.Contains(err.Error(), "-----BEGIN") {
			t.Errorf("the error has a key: %v", err)
		}
	})
}

// An intermediate CA signs, and pki/ca.crt has the root. Catches a check that ignores the intermediates beside the
// certificate: it reports a certificate that kubejoin has just written, and Sign has it signed again and again.
func TestIntermediatesBesideCertificateCount(t *testing.T) {
	root := certtest.CA(t, "root")
	key := csrtest.NewKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "intermediate"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, root.Leaf, key.Public(), root.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	intermediate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := signer.NewCA([]*x509.Certificate{intermediate, root.Leaf}, key)
	if err != nil {
		t.Fatal(err)
	}
	dir := newHost(t, newCA(t))
	write(t, dir, "pki/ca.crt", pemOf(root))
	host := credentials.Host{Dir: dir}
	for _, want := range []int{3, 0} {
		if names, err := host.Sign(t.Context(), anything(ca)); err != nil || len(names) != want {
			t.Fatalf("signed %q, %v, want %d", names, err, want)
		}
	}
	list, err := host.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, held := range list {
		if held.Problem != "" {
			t.Errorf("%s: %s, want no problem", held.Name, held.Problem)
		}
	}
}

// Catches a new certificate that the owner of the old one cannot read.
func TestHostKeepsOwnersAndModes(t *testing.T) {
	ca := newCA(t)
	h := credentials.Host{Dir: newHost(t, ca)}
	config := filepath.Join(h.Dir, "scheduler.conf")
	if err := os.Chmod(config, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Sign(t.Context(), anything(ca)); err != nil {
		t.Fatal(err)
	}
	cert := filepath.Join(h.Dir, "pki/apiserver.crt")
	if err := os.Chmod(cert, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Renew(t.Context(), anything(ca), nil); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]fs.FileMode{config: 0o640, cert: 0o604, filepath.Join(h.Dir, "pki/apiserver-kubelet-client.crt"): 0o644} {
		if info, err := os.Stat(file); err != nil || info.Mode() != want {
			t.Errorf("%s: got mode %v, %v, want %v", file, info.Mode(), err, want)
		}
	}
}

// Catches a command of root that reads a pipe without an end, or a file that fills the memory.
func TestHostReadsOnlySmallRegularFiles(t *testing.T) {
	for _, name := range []string{"scheduler.conf", "pki/apiserver.key", "pki/apiserver.csr", "pki/apiserver.crt", "pki/ca.crt"} {
		for what, replace := range map[string]func(file string) error{
			"a pipe":       func(file string) error { return syscall.Mkfifo(file, 0o600) },
			"a large file": func(file string) error { return os.WriteFile(file, make([]byte, 1<<20+1), 0o600) },
		} {
			ca := newCA(t)
			h := credentials.Host{Dir: newHost(t, ca)}
			file := filepath.Join(h.Dir, name)
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if err := replace(file); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Sign(t.Context(), anything(ca)); err == nil || !strings.Contains(err.Error(), name+": want a regular file of at most 1048576 bytes") {
				t.Errorf("%s is %s: got %v, want a refusal", name, what, err)
			}
		}
	}
}
