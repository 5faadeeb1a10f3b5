package ca

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

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	authorization "k8s.io/api/authorization/v1"
	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const etcdPeer = "example.com/etcd-peer"

// TestSignerConfigReloads adds, breaks and repairs a custom signer while kubejoin runs. It catches a change that needs
// a restart, and an unusable file that replaces a valid one.
func TestSignerConfigReloads(t *testing.T) {
	harness.Parallel(t)
	dir := t.TempDir()
	file, certFile, keyFile := filepath.Join(dir, "signers.yaml"), filepath.Join(dir, "etcd", "ca.crt"), filepath.Join(dir, "etcd", "ca.key")
	must.OK(t, os.Mkdir(filepath.Dir(certFile), 0o700))
	caCert, caKey := makeCA(t, "etcd", time.Now().Add(365*24*time.Hour))
	harness.ReplaceFile(t, certFile, caCert)
	harness.ReplaceFile(t, keyFile, caKey)
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
	harness.ReplaceFile(t, file, []byte(kubelets))
	s := harness.NewSite(t, cluster.Options{}, "--signer-config="+file)
	s.RunKubectl(t, "apply", "-f", harness.RepositoryFile(t, "deploy/custom-signers.yaml"))
	etcd := etcdOperator(t, s)
	n := 0
	ask := func(lifetime time.Duration, name string, curve elliptic.Curve) string {
		t.Helper()
		n++
		return requestPeerCertificate(t, etcd, fmt.Sprint("peer-", n), lifetime, name, curve)
	}
	wantIssued := func(name string, ca []byte, lifetime time.Duration) {
		t.Helper()
		leaf := s.WaitIssued(t, name)
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool(ca), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := issuedLifetime(leaf); got != lifetime {
			t.Errorf("%s: got lifetime %s, want %s", name, got, lifetime)
		}
	}

	// kubejoin serves only the signers in the file.
	first := ask(0, "a.etcd.example.com", elliptic.P256())
	other := "other-signer"
	must.OK(t, harness.CreateRequest(t.Context(), s.Client(), other, certificates.KubeAPIServerClientSignerName, "worker-1"))
	must.OK(t, harness.Decide(t.Context(), s.Client(), other, certificates.CertificateApproved))
	// The token sets the lifetime of a node's certificate, within the limits of the file.
	for id, test := range map[string]struct {
		duration string
		want     time.Duration
	}{"abc124": {"2h", 2 * time.Hour}, "abc125": {"1000h", 48 * time.Hour}, "abc126": {"", 24 * time.Hour}} {
		var limits map[string]string
		if test.duration != "" {
			limits = map[string]string{"kubejoin.io/max-nodes": "1", "kubejoin.io/certificate-duration": test.duration}
		}
		must.OK(t, harness.StoreToken(t.Context(), s.Client(), id, limits))
		must.OK(t, harness.CreateRequest(t.Context(), harness.AsToken(t, s.Cluster, id), "node-"+id, certificates.KubeAPIServerClientKubeletSignerName, "worker-"+id))
		leaf := s.WaitIssued(t, "node-"+id)
		if got := issuedLifetime(leaf); got != test.want {
			t.Errorf("%s: got lifetime %s, want %s", id, got, test.want)
		}
	}
	for _, name := range []string{first, other} {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(r.Status.Certificate) > 0 || name == first && len(r.Status.Conditions) > 0 {
			t.Errorf("%s: its signer is not in the file, got conditions %v, %v, want no decision", name, r.Status.Conditions, err)
		}
	}

	// The operator adds the signer, and kubejoin decides the waiting request.
	harness.ReplaceFile(t, file, []byte(kubelets+peers))
	wantIssued(first, caCert, 12*time.Hour)
	waitReported(t, s, "files changed, using new ones", `kubejoin_files_in_use{files="signer-config"} 1`, "ok", "SignerConfigReplaced example.com/etcd-peer, kubernetes.io/kube-apiserver-client-kubelet")
	wantIssued(ask(time.Hour, "a.etcd.example.com", elliptic.P256()), caCert, time.Hour)
	wantIssued(ask(10*time.Minute, "a.etcd.example.com", elliptic.P256()), caCert, 30*time.Minute)
	wantIssued(ask(1000*time.Hour, "a.etcd.example.com", elliptic.P256()), caCert, 72*time.Hour)
	for name, want := range map[string]string{
		ask(0, "a.example.com", elliptic.P256()):      `DNS name "a.example.com" is not allowed, want one of ["*.etcd.example.com"]`,
		ask(0, "*.etcd.example.com", elliptic.P256()): `DNS name "*.etcd.example.com" is not allowed`,
		ask(0, "a.etcd.example.com", elliptic.P384()): "the ECDSA key is on curve P-384, want ECDSA P-256",
	} {
		waitDenied(t, s, name, want)
	}

	// kubejoin keeps the last valid configuration.
	harness.ReplaceFile(t, file, []byte(kubelets+peers+"  duration: {max: 3y}\n"))
	waitReported(t, s, "duration: duplicate field, first in line 9", `kubejoin_files_in_use{files="signer-config"} 0`,
		"signer-config failed: the new signer configuration, or a CA in it, cannot be used", "SignerConfigUnusable signers.yaml:15: signers[1].duration: duplicate field, first in line 9")
	wantIssued(ask(0, "a.etcd.example.com", elliptic.P256()), caCert, 12*time.Hour)
	harness.ReplaceFile(t, file, []byte(kubelets+peers))
	waitReported(t, s, "files are valid again", `kubejoin_files_in_use{files="signer-config"} 1`, "ok", "SignerConfigReplaced")

	// kubejoin ignores a CA certificate without its key, and uses the new CA once both files exist.
	end := time.Now().Add(10 * time.Hour).Truncate(time.Second)
	nextCert, nextKey := makeCA(t, "etcd next", end)
	harness.ReplaceFile(t, certFile, nextCert)
	waitReported(t, s, "matches none of the 1 certificates", `kubejoin_files_in_use{files="signer-config"} 0`,
		"signer-config failed: ", "SignerConfigUnusable signers[1].ca: CA certificate")
	wantIssued(ask(0, "a.etcd.example.com", elliptic.P256()), caCert, 12*time.Hour)
	harness.ReplaceFile(t, keyFile, nextKey)
	waitReported(t, s, "CA replaced", `kubejoin_signer_ca_not_after_timestamp_seconds{signer="example.com/etcd-peer"}`,
		"[+]signer-config ok: signer example.com/etcd-peer: the CA expires at ", "CAReplaced Signer example.com/etcd-peer: kubejoin uses the new CA files")
	if leaf := s.WaitIssued(t, ask(0, "a.etcd.example.com", elliptic.P256())); leaf.Issuer.CommonName != "etcd next" || !leaf.NotAfter.Equal(end) {
		t.Errorf("issued by %s until %s, want etcd next until %s", leaf.Issuer, leaf.NotAfter, end)
	}
}

// issuedLifetime returns the lifetime for which the signer issued the certificate, in whole minutes.
func issuedLifetime(leaf *x509.Certificate) time.Duration {
	d := leaf.NotAfter.Sub(leaf.NotBefore)
	if d < 8*time.Hour {
		d -= 5 * time.Minute // the signer backdates short-lived certificates
	}
	return d.Round(time.Minute)
}

// etcdOperator returns a client of a user who may request certificates of etcd-peer.
func etcdOperator(t *testing.T, s *harness.Site) kubernetes.Interface {
	t.Helper()
	config := s.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "eve", Groups: []string{"etcd-operators", "system:authenticated"}}
	client := must.Value(kubernetes.NewForConfig(config))(t)
	// The authorizer's caches lag behind new rights.
	harness.Wait(t, "rights of etcd-operators and of kubejoin", func() error {
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
				return errors.New(who.user + " has no permission yet")
			}
		}
		return nil
	})
	return client
}

func requestPeerCertificate(t *testing.T, client kubernetes.Interface, object string, lifetime time.Duration, name string, curve elliptic.Curve) string {
	t.Helper()
	key := must.Value(ecdsa.GenerateKey(curve, rand.Reader))(t)
	der := must.Value(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "etcd-0"}, DNSNames: []string{name}}, key))(t)
	csr := &certificates.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: object}, Spec: certificates.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: etcdPeer,
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageServerAuth},
	}}
	if lifetime > 0 {
		seconds := int32(lifetime / time.Second)
		csr.Spec.ExpirationSeconds = &seconds
	}
	must.Value(client.CertificatesV1().CertificateSigningRequests().Create(t.Context(), csr, metav1.CreateOptions{}))(t)
	return object
}

// waitDenied waits until kubejoin denies a request, with a text in the message.
func waitDenied(t *testing.T, s *harness.Site, name, message string) {
	t.Helper()
	harness.Wait(t, "denial of "+name, func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range r.Status.Conditions {
			if c.Type == certificates.CertificateDenied && strings.Contains(c.Message, message) {
				return nil
			}
		}
		return fmt.Errorf("got conditions %v, want Denied: %s", r.Status.Conditions, message)
	})
}
