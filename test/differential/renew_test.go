package differential

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
	"k8s.io/client-go/util/keyutil"
)

// edit replaces texts in the configuration. Its arguments are pairs of an old and a new text.
func (h host) edit(t *testing.T, oldNew ...string) {
	t.Helper()
	content := must.Value(os.ReadFile(h.config))(t)
	must.OK(t, os.WriteFile(h.config, []byte(strings.NewReplacer(oldNew...).Replace(string(content))), 0o600))
}

var clientCertificate = regexp.MustCompile(`client-certificate-data: (\S+)`)

// resign changes a certificate of the host, as if another program or version had made it, and signs it again.
func (h host) resign(t *testing.T, path, ca string, change func(*x509.Certificate)) {
	t.Helper()
	certs, _ := h.certificates(t)
	content := must.Value(os.ReadFile(filepath.Join(h.dir, ca+".key")))(t)
	key := must.Value(keyutil.ParsePrivateKeyPEM(content))(t)
	template := *certs["/"+path]
	template.RawSubject = nil
	change(&template)
	der := must.Value(x509.CreateCertificate(rand.Reader, &template, certs["/"+ca+".crt"], template.PublicKey, key.(crypto.Signer)))(t)
	file := filepath.Join(h.dir, path)
	content = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if strings.HasSuffix(path, ".conf") {
		config := must.Value(os.ReadFile(file))(t)
		content = clientCertificate.ReplaceAll(config, []byte("client-certificate-data: "+base64.StdEncoding.EncodeToString(content)))
	}
	must.OK(t, os.WriteFile(file, content, 0o600))
}

// The certificates in pki, by kubeadm's names. kubeadm renews kubeconfigs only in /etc/kubernetes.
var inPKI = map[string]string{
	"apiserver": "apiserver", "apiserver-etcd-client": "apiserver-etcd-client", "apiserver-kubelet-client": "apiserver-kubelet-client", "front-proxy-client": "front-proxy-client",
	"etcd-healthcheck-client": "etcd/healthcheck-client", "etcd-peer": "etcd/peer", "etcd-server": "etcd/server",
}

// kubejoin must renew certificates of an older kubeadm, and with additional fields in the subject, as kubeadm does: with
// the current subjects.
func TestRenewsCertificatesOfOlderKubeadm(t *testing.T) {
	harness.Parallel(t)
	h, kubeadm := newKubeadmHost(t, "ECDSA-P256")
	today, _ := h.certificates(t)
	pki := filepath.Join(h.dir, "pki")
	masters := func(c *x509.Certificate) { c.Subject.Organization = []string{"system:masters"} }
	more := func(c *x509.Certificate) {
		c.Subject.OrganizationalUnit, c.Subject.Locality = []string{"ops"}, []string{"Bern"}
	}
	age := func() map[string]*x509.Certificate {
		for path, change := range map[string]func(*x509.Certificate){
			"admin.conf": masters, "pki/apiserver-kubelet-client.crt": masters, "pki/apiserver.crt": more, "scheduler.conf": more, "controller-manager.conf": more, "super-admin.conf": more,
		} {
			h.resign(t, path, "pki/ca", change)
		}
		for path, change := range map[string]func(*x509.Certificate){
			"pki/apiserver-etcd-client.crt": masters, "pki/etcd/healthcheck-client.crt": masters, "pki/etcd/server.crt": more, "pki/etcd/peer.crt": more,
		} {
			h.resign(t, path, "pki/etcd/ca", change)
		}
		h.resign(t, "pki/front-proxy-client.crt", "pki/front-proxy-ca", more)
		old, _ := h.certificates(t)
		return old
	}
	old := age()
	for name, path := range inPKI {
		command(t, kubeadm, "certs", "renew", name, "--config", h.config)
		if certs, _ := h.certificates(t); certs["/pki/"+path+".crt"].Equal(old["/pki/"+path+".crt"]) {
			t.Errorf("kubeadm did not renew %s", name)
		}
	}
	old = age()
	if out := command(t, harness.Kubejoin(), "certs", "check", h.dir); strings.Count(out, "renewal replaces the subject") != 11 {
		t.Errorf("check: want a note for 11 certificates, got\n%s", out)
	}
	if out := command(t, harness.Kubejoin(), "certs", "check", h.dir, "-o", "jsonpath={.certificates[?(@.name=='admin.conf')].note}"); !strings.Contains(out, `O=system:masters" by "CN=kubernetes-admin,O=kubeadm:cluster-admins"`) {
		t.Errorf("check as JSON: %s", out)
	}
	out := command(t, harness.Kubejoin(), "certs", "renew", h.dir, "--pki-dir", pki)
	if strings.Count(out, "kubejoin: renewed") != 11 || strings.Count(out, "renewal replaces the subject") != 11 {
		t.Errorf("renew:\n%s", out)
	}
	after, _ := h.certificates(t)
	for name, cert := range after {
		want := today[name].Subject.String()
		if name == "/pki/apiserver-kubelet-client.crt" { // kubeadm before 1.35.5 gives it a group
			want = "CN=kube-apiserver-kubelet-client"
		}
		if !cert.IsCA && name != "/kubelet.conf" && cert.Equal(old[name]) || cert.Subject.String() != want {
			t.Errorf("%s: got %s, want a new certificate for %s", name, cert.Subject, want)
		}
	}
	if out := command(t, harness.Kubejoin(), "certs", "check", h.dir); strings.Contains(out, "renewal") {
		t.Errorf("check after renewal:\n%s", out)
	}
}

// The built-in signers must issue certificates for all names that kubeadm writes.
func TestSignsNamesOfKubeadm(t *testing.T) {
	harness.Parallel(t)
	sans := []string{"'*.example.com'", "a.b.c.d.e.f.g.example.com", "7.example.7"}
	for i := range 150 {
		sans = append(sans, fmt.Sprintf("api-%d.example.com", i))
	}
	const given = "certSANs: [other.example.com, 198.51.100.7]"
	edit := []string{given, "certSANs: [" + strings.Join(sans, ", ") + "]", "name: control-1", "name: '12345'",
		"\napiServer:", "\nnetworking: {dnsDomain: k8s.dc1.corp.example}\netcd: {local: {dataDir: /nonexistent, serverCertSANs: ['*.etcd.example.com'], peerCertSANs: [a.b.c.d.e.f.g.h]}}\napiServer:"}
	theirs, kubeadm := newKubeadmHost(t, "ECDSA-P256", edit...)
	ours, pki := newCSRHost(t, kubeadm, theirs), filepath.Join(theirs.dir, "pki")
	command(t, harness.Kubejoin(), "sign", "--kubeadm-dir", ours.dir, "--pki-dir", pki)
	want, _ := theirs.certificates(t)
	got, _ := ours.certificates(t)
	compare(t, want, got)

	// kubeadm ignores new certSANs when it renews.
	theirs.edit(t, "certSANs: [", "certSANs: [new.example.com, ")
	command(t, kubeadm, "certs", "renew", "apiserver", "--config", theirs.config)
	if certs, _ := theirs.certificates(t); slices.Contains(certs["/pki/apiserver.crt"].DNSNames, "new.example.com") {
		t.Error("kubeadm now adds new certSANs: say so in docs/credentials.md")
	}
}
