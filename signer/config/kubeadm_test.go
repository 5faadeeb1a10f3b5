package config_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/config"
	certificates "k8s.io/api/certificates/v1"
)

// kubeadmSigners returns the signers of config.Kubeadm, with a separate CA for each file.
func kubeadmSigners(t testing.TB) signer.Authority {
	t.Helper()
	dir := t.TempDir()
	must.OK(t, os.Mkdir(filepath.Join(dir, "etcd"), 0o700))
	for _, name := range []string{"front-proxy-ca", "etcd/ca"} {
		certs, key, err := newCA(t).PEM()
		if err != nil {
			t.Fatal(err)
		}
		for suffix, content := range map[string][]byte{".crt": certs, ".key": key} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name+suffix), content, 0o600))
		}
	}
	_, signers, err := config.Compile(filepath.Join(dir, "signers.yaml"), []byte(config.Kubeadm), config.Defaults{CA: signer.Fixed(newCA(t))})
	if err != nil {
		t.Fatal(err)
	}
	return signer.Authority{Signers: signer.FixedSigners(signers), Unthrottled: true}
}

// Each signer issues only the certificates that kubeadm needs from it, and only one signer issues system:masters.
func TestKubeadmSignersIssueOnlyKubeadmCertificates(t *testing.T) {
	authority := kubeadmSigners(t)
	client, server := certificates.UsageClientAuth, certificates.UsageServerAuth
	subject := func(cn string, organizations ...string) x509.CertificateRequest {
		return x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: organizations}}
	}
	hosts := func(names ...string) x509.CertificateRequest {
		r := subject("kube-apiserver")
		r.DNSNames = names
		return r
	}
	var many []string
	for i := range 501 {
		many = append(many, fmt.Sprintf("api-%d.example.com", i))
	}
	labels := func(n int) string { return strings.TrimSuffix(strings.Repeat("a.", n), ".") }
	named := func(cn string) x509.CertificateRequest {
		r := subject(cn)
		r.DNSNames, r.IPAddresses = []string{"kubernetes.default.svc.cluster.local", "localhost", "control-1"}, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.IPv4(10, 96, 0, 1)}
		return r
	}
	for _, test := range []struct {
		signer   string
		template x509.CertificateRequest
		usage    certificates.KeyUsage
		want     string // part of the refusal; empty: issued
	}{
		{"apiserver", named("kube-apiserver"), server, ""},
		{"apiserver", named("kube-apiserver"), client, "usage"},
		{"apiserver", named("other"), server, "common name"},
		// kubeadm writes each name of a Node, and each name and wildcard in certSANs.
		{"apiserver", hosts("*.example.com", "*.com"), server, ""},
		{"apiserver", hosts("kubernetes.default.svc.k8s.dc1.corp.example.com", labels(7), labels(127)), server, ""},
		{"apiserver", hosts("12345", "node.7", strings.Repeat("a", 64)+".example.com"), server, ""},
		{"apiserver", hosts(many[:300]...), server, ""},
		{"apiserver", hosts(many...), server, "more than 500 subject alternative names"},
		{"etcd-server", hosts("*.etcd.example.com", labels(9), "12345"), server, ""},
		{"etcd-peer", hosts("*.etcd.example.com", labels(9), "12345"), client, ""},
		{"apiserver", hosts("10.0.0.1"), server, `DNS name "10.0.0.1" is not allowed`},
		{"apiserver", hosts("*.10.0.0.1"), server, "DNS name"},
		{"apiserver", hosts("a.*.example.com"), server, "DNS name"},
		{"apiserver", hosts("*.*.example.com"), server, "DNS name"},
		{"apiserver", hosts("*"), server, "DNS name"},
		{"apiserver", hosts("a_b.example.com"), server, "DNS name"},
		{"apiserver", hosts("a.example.com."), server, "DNS name"},
		{"apiserver-kubelet-client", subject("kube-apiserver-kubelet-client"), client, ""},
		{"apiserver-kubelet-client", subject("kube-apiserver-kubelet-client", "kubeadm:cluster-admins"), client, "organization"},
		{"apiserver-kubelet-client", subject("kube-apiserver-kubelet-client", "system:masters"), client, "system:masters"},
		{"front-proxy-client", subject("front-proxy-client"), client, ""},
		{"front-proxy-client", named("front-proxy-client"), client, "DNS name"},
		{"front-proxy-client", subject("front-proxy-client", "kubeadm:cluster-admins"), client, "organization"},
		{"etcd-server", named("control-1"), server, ""},
		{"etcd-peer", named("control-1"), client, ""},
		{"etcd-healthcheck-client", subject("kube-etcd-healthcheck-client"), client, ""},
		{"etcd-healthcheck-client", subject("root"), client, "common name"},
		{"apiserver-etcd-client", subject("kube-apiserver-etcd-client"), client, ""},
		{"admin.conf", subject("kubernetes-admin", "kubeadm:cluster-admins"), client, ""},
		{"admin.conf", subject("kubernetes-admin", "system:masters"), client, "system:masters"},
		{"super-admin.conf", subject("kubernetes-super-admin", "system:masters"), client, ""},
		{"super-admin.conf", subject("jane", "system:masters"), client, "system:masters"},
		{"super-admin.conf", subject("kubernetes-super-admin", "system:masters", "dev"), client, "system:masters"},
		{"super-admin.conf", subject("kubernetes-super-admin", "system:Masters"), client, "looks like"},
		{"controller-manager.conf", subject("system:kube-controller-manager"), client, ""},
		{"controller-manager.conf", subject("system:kube-scheduler"), client, "common name"},
		{"scheduler.conf", subject("system:kube-scheduler"), client, ""},
		{"kubelet.conf", subject("system:node:control-1", "system:nodes"), client, ""},
		{"kubelet.conf", subject("system:node:a/b", "system:nodes"), client, "node name"},
		{"kubelet.conf", subject("kubernetes-admin", "system:nodes"), client, "common name"},
	} {
		t.Run(fmt.Sprintf("%s %s %.60s", test.signer, test.template.Subject, strings.Join(test.template.DNSNames, ",")), func(t *testing.T) {
			r := request(t, "kubeadm.kubejoin.io/"+test.signer, test.template, certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, test.usage)
			_, err := authority.Sign(t.Context(), r)
			wantError(t, err, test.want)
			// No rule approves the request, for any requester.
			_, err = authority.Decide(t.Context(), r)
			if no := (*approval.Error)(nil); !errors.As(err, &no) || no.Err != nil || no.Verdict != approval.None {
				t.Errorf("got %v, want no decision", err)
			}
		})
	}
	t.Run("no object", func(t *testing.T) {
		r := request(t, approval.SuperAdminSigner, subject(approval.SuperAdmin, "system:masters"), client)
		r.Name = "csr-1"
		if _, err := authority.Sign(t.Context(), r); err == nil || !strings.Contains(err.Error(), "system:masters") {
			t.Errorf("got %v, want a refusal of system:masters for an object", err)
		}
	})
}
