package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const etcdPeer = "example.com/etcd-peer"

// TestSignerConfig has a signer of the operator's own come, change and go while kubejoin runs.
func TestSignerConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, certFile, keyFile := filepath.Join(dir, "signers.yaml"), filepath.Join(dir, "etcd", "ca.crt"), filepath.Join(dir, "etcd", "ca.key")
	if err := os.Mkdir(filepath.Dir(certFile), 0o700); err != nil {
		t.Fatal(err)
	}
	caCert, caKey := makeCA(t, "etcd", nil, time.Now().Add(365*24*time.Hour))
	replace(t, certFile, caCert)
	replace(t, keyFile, caKey)
	const kubelets = `apiVersion: kubejoin.io/v1alpha1
kind: SignerConfiguration
signers:
- name: kubernetes.io/kube-apiserver-client-kubelet
  duration: {default: 24h, max: 48h}
  approval: [selfnodeclient, nodeclient]
`
	const peers = `- name: example.com/etcd-peer
  ca: {certFile: etcd/ca.crt, keyFile: etcd/ca.key}
  duration: {min: 30m, default: 12h, max: 72h}
  usages: [digital signature, server auth, client auth]
  subject: {commonNames: ["etcd-*"]}
  names: {dns: ["*.etcd.example.com"]}
  keys: {ecdsa: [P-256]}
  approval: [may-sign]
`
	replace(t, file, []byte(kubelets))
	s := newSite(t, cluster.Options{}, "--signer-config="+file)
	s.kubectl(t, "apply", "-f", "../deploy/custom-signers.yaml")
	etcd := s.etcdOperator(t)
	n := 0
	ask := func(lifetime time.Duration, name string, curve elliptic.Curve) string {
		t.Helper()
		n++
		return askPeer(t, etcd, fmt.Sprint("peer-", n), lifetime, name, curve)
	}
	issued := func(name string, ca []byte, lifetime time.Duration) {
		t.Helper()
		leaf := s.issued(t, name)
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool(ca), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := lasts(leaf); got != lifetime {
			t.Errorf("%s lasts for %s, want %s", name, got, lifetime)
		}
	}

	// The file is all that there is.
	first := ask(0, "a.etcd.example.com", elliptic.P256())
	other := "other-signer"
	if err := request(t.Context(), s.Client(), other, certificates.KubeAPIServerClientSignerName, "worker-1"); err != nil {
		t.Fatal(err)
	}
	if err := decide(t.Context(), s.Client(), other, certificates.CertificateApproved); err != nil {
		t.Fatal(err)
	}
	// A node gets what its token says, inside what the file says.
	for id, test := range map[string]struct {
		duration string
		want     time.Duration
	}{"abc124": {"2h", 2 * time.Hour}, "abc125": {"1000h", 48 * time.Hour}, "abc126": {"", 24 * time.Hour}} {
		var limits map[string]string
		if test.duration != "" {
			limits = map[string]string{"kubejoin.io/max-nodes": "1", "kubejoin.io/certificate-duration": test.duration}
		}
		if err := storeToken(t.Context(), s.Client(), id, limits); err != nil {
			t.Fatal(err)
		}
		if err := request(t.Context(), asToken(t, s.Cluster, id), "node-"+id, certificates.KubeAPIServerClientKubeletSignerName, "worker-"+id); err != nil {
			t.Fatal(err)
		}
		leaf := s.issued(t, "node-"+id)
		if got := lasts(leaf); got != test.want {
			t.Errorf("%s: the certificate lasts for %s, want %s", id, got, test.want)
		}
	}
	for _, name := range []string{first, other} {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(r.Status.Certificate) > 0 || name == first && len(r.Status.Conditions) > 0 {
			t.Errorf("%s is of no signer in the file: %v %v", name, r.Status.Conditions, err)
		}
	}

	// The signer comes, and what waits is decided.
	replace(t, file, []byte(kubelets+peers))
	issued(first, caCert, 12*time.Hour)
	s.seen(t, "files changed and are in use now", `kubejoin_files_in_use{files="signer-config"} 1`, "ok", "SignerConfigReplaced example.com/etcd-peer, kubernetes.io/kube-apiserver-client-kubelet")
	issued(ask(time.Hour, "a.etcd.example.com", elliptic.P256()), caCert, time.Hour)
	issued(ask(10*time.Minute, "a.etcd.example.com", elliptic.P256()), caCert, 30*time.Minute)
	issued(ask(1000*time.Hour, "a.etcd.example.com", elliptic.P256()), caCert, 72*time.Hour)
	for name, want := range map[string]string{
		ask(0, "a.example.com", elliptic.P256()):      `DNS name "a.example.com" is asked for, allowed are ["*.etcd.example.com"]`,
		ask(0, "*.etcd.example.com", elliptic.P256()): `DNS name "*.etcd.example.com" is asked for`,
		ask(0, "a.etcd.example.com", elliptic.P384()): "an ECDSA key on P-384 is given, want ECDSA P-256",
	} {
		s.denied(t, name, want)
	}

	// What cannot be used leaves what was.
	replace(t, file, []byte(kubelets+peers+"  duration: {max: 3y}\n"))
	s.seen(t, "duration: given twice, first in line 9", `kubejoin_files_in_use{files="signer-config"} 0`,
		"signer-config failed: the signer configuration, or a CA that it names, has changed and cannot be used", "SignerConfigUnusable signers.yaml:15: signers[1].duration: given twice, first in line 9")
	issued(ask(0, "a.etcd.example.com", elliptic.P256()), caCert, 12*time.Hour)
	replace(t, file, []byte(kubelets+peers))
	s.seen(t, "files can be used again", `kubejoin_files_in_use{files="signer-config"} 1`, "ok", "SignerConfigReplaced")

	// Nor does half a CA; the whole is another one.
	end := time.Now().Add(10 * time.Hour).Truncate(time.Second)
	nextCert, nextKey := makeCA(t, "etcd next", nil, end)
	replace(t, certFile, nextCert)
	s.seen(t, "matches none of the 1 certificates", `kubejoin_files_in_use{files="signer-config"} 0`,
		"signer-config failed: ", "SignerConfigUnusable signers[1].ca: CA certificate")
	issued(ask(0, "a.etcd.example.com", elliptic.P256()), caCert, 12*time.Hour)
	replace(t, keyFile, nextKey)
	s.seen(t, "another CA signs, or is trusted, now", `kubejoin_signer_ca_not_after_timestamp_seconds{signer="example.com/etcd-peer"}`,
		"[+]signer-config ok: signer example.com/etcd-peer: the CA expires at ", "CAReplaced Signer example.com/etcd-peer: The CA files have changed")
	if leaf := s.issued(t, ask(0, "a.etcd.example.com", elliptic.P256())); leaf.Issuer.CommonName != "etcd next" || !leaf.NotAfter.Equal(end) {
		t.Errorf("issued by %s until %s, want the new CA's end, %s", leaf.Issuer, leaf.NotAfter, end)
	}
}

// lasts is the lifetime that a certificate was issued for, to the minute.
func lasts(leaf *x509.Certificate) time.Duration {
	d := leaf.NotAfter.Sub(leaf.NotBefore)
	if d < 8*time.Hour {
		d -= 5 * time.Minute // by which it began before it was issued
	}
	return d.Round(time.Minute)
}

// etcdOperator is somebody who may have certificates of etcd-peer.
func (s *site) etcdOperator(t *testing.T) kubernetes.Interface {
	t.Helper()
	config := s.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "eve", Groups: []string{"etcd-operators", "system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// The authorizer learns of new rights a little later.
	wait(t, "rights of etcd-operators and of kubejoin", func() error {
		for _, who := range []struct {
			user, verb string
			groups     []string
		}{
			{"eve", "sign", []string{"etcd-operators"}},
			{"system:serviceaccount:kubejoin-system:kubejoin", "approve", nil},
		} {
			review, err := s.Client().AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorization.SubjectAccessReview{
				Spec: authorization.SubjectAccessReviewSpec{User: who.user, Groups: who.groups, ResourceAttributes: &authorization.ResourceAttributes{
					Group: "certificates.k8s.io", Resource: "signers", Name: etcdPeer, Verb: who.verb,
				}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if !review.Status.Allowed {
				return errors.New(who.user + " may not yet")
			}
		}
		return nil
	})
	return client
}

func askPeer(t *testing.T, client kubernetes.Interface, object string, lifetime time.Duration, name string, curve elliptic.Curve) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "etcd-0"}, DNSNames: []string{name}}, key)
	if err != nil {
		t.Fatal(err)
	}
	csr := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: object}, Spec: certificates.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: etcdPeer,
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth},
	}}
	if lifetime > 0 {
		seconds := int32(lifetime / time.Second)
		csr.Spec.ExpirationSeconds = &seconds
	}
	if _, err := client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), csr, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return object
}

// denied waits until a request is, with a text in the message.
func (s *site) denied(t *testing.T, name, message string) {
	t.Helper()
	wait(t, "denial of "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range r.Status.Conditions {
			if c.Type == certificates.CertificateDenied && strings.Contains(c.Message, message) {
				return nil
			}
		}
		return fmt.Errorf("conditions %v, want Denied: %s", r.Status.Conditions, message)
	})
}
