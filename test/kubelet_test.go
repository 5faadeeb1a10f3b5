package test

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/cluster"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A real kubelet gets both of its certificates on evidence, with no person in between. By the
// serving certificate kube-apiserver knows the kubelet when it verifies, as it does not without
// one and by another CA. Both renew by themselves.
func TestKubeletIsReachedVerified(t *testing.T) {
	t.Parallel()
	cluster.NeedRoot(t)
	ranges := ownRanges(t)
	s := prepare(t, cluster.Options{ServerTLSBootstrap: true, KubeletAddress: "0.0.0.0"}, "--cluster-signing-duration=3m")
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	restart := func(ca string) {
		t.Helper()
		s.StopAPIServer()
		if err := s.StartAPIServer(ctx, "--kubelet-certificate-authority="+ca, "--kubelet-preferred-address-types=InternalIP"); err != nil {
			t.Fatal(err)
		}
	}
	restart(s.CAFile())
	reached := func() error {
		out, err := s.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/worker-1/proxy/healthz")
		if err == nil && out != "ok" {
			err = fmt.Errorf("the kubelet says %q", out)
		}
		return err
	}

	// With nothing configured the request waits, and says so.
	s.start(t)
	args, _ := s.join(t, "")
	node, err := s.Join(ctx, "worker-1", args)
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "Event of the request that waits", func() error {
		if out := s.kubectl(t, "get", "events", "-n", "default", "--field-selector=reason=ServingScopeNotConfigured", "-o", "name"); out == "" {
			return errNotYet
		}
		return nil
	})
	if err := reached(); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Fatalf("the kubelet without a serving certificate: %v, want an error of TLS", err)
	}
	for _, r := range s.servingRequests(t) {
		if len(r.Status.Conditions) > 0 {
			t.Fatalf("%s was decided with nothing configured: %v", r.Name, r.Status.Conditions)
		}
	}
	s.kill(t)

	// With a scope it is approved, and the kubelet is known by its certificate.
	s.start(t, "--serving-allowed-cidr="+strings.Join(ranges, ","))
	wait(t, "verified connection to the kubelet", reached)
	first, err := node.ServingCertificate()
	if err != nil {
		t.Fatal(err)
	}
	s.checkServingCertificate(t, first[0])

	// The API server does verify: it does not know the kubelet by another CA.
	wrong := filepath.Join(s.dir, "wrong.crt")
	if err := os.WriteFile(wrong, readFile(t, filepath.Join(filepath.Dir(s.CAFile()), "front-proxy-ca.crt")), 0o600); err != nil {
		t.Fatal(err)
	}
	restart(wrong)
	if err := reached(); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Errorf("the kubelet by another CA: %v, want an error of x509", err)
	}
	restart(s.CAFile())
	wait(t, "verified connection again", reached)

	// Both certificates follow by themselves.
	firstClient, err := node.ClientCertificate()
	if err != nil {
		t.Fatal(err)
	}
	for what, read := range map[string]func() ([]*x509.Certificate, error){"client": node.ClientCertificate, "serving": node.ServingCertificate} {
		before := firstClient[0]
		if what == "serving" {
			before = first[0]
		}
		for {
			now, err := read()
			if err == nil && now[0].NotAfter.After(before.NotAfter) {
				if what == "serving" {
					s.checkServingCertificate(t, now[0])
				}
				break
			}
			select {
			case <-ctx.Done():
				t.Fatalf("the %s certificate did not renew: %v", what, err)
			case <-time.After(time.Second):
			}
		}
	}
	wait(t, "verified connection by the new certificate", reached)
	requests := s.servingRequests(t)
	if len(requests) < 2 {
		t.Errorf("%d serving requests, want that of the renewal, too", len(requests))
	}
	for _, r := range requests {
		for _, c := range r.Status.Conditions {
			if c.Type != certificates.CertificateApproved || c.Reason != "AutoApproved" {
				t.Errorf("%s is %s by %s: %s", r.Name, c.Type, c.Reason, c.Message)
			}
		}
	}
}

// ownRanges are this machine's addresses, of which the kubelet reports one.
func ownRanges(t *testing.T) []string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	var ranges []string
	for _, a := range addresses {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			ranges = append(ranges, n.IP.String()+"/32")
		default:
			ranges = append(ranges, n.IP.String()+"/128")
		}
	}
	if len(ranges) == 0 && os.Getenv("CI") != "" {
		t.Fatal("this machine has loopback addresses alone, which no kubelet may serve as, and in CI no test is skipped")
	}
	if len(ranges) == 0 {
		t.Skip("this machine has loopback addresses alone, which no kubelet may serve as")
	}
	return ranges
}

func (s *site) servingRequests(t *testing.T) []certificates.CertificateSigningRequest {
	t.Helper()
	list, err := s.Client().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + certificates.KubeletServingSignerName})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// checkServingCertificate looks at what a kubelet serves with.
func (s *site) checkServingCertificate(t *testing.T, leaf *x509.Certificate) {
	t.Helper()
	lintCertificate(t, leaf)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		t.Error(err)
	}
	if len(leaf.IPAddresses) == 0 || len(leaf.ExtKeyUsage) != 1 || leaf.IsCA || leaf.Subject.CommonName != "system:node:worker-1" {
		t.Errorf("serving certificate of %s for %v and %v, usages %v", leaf.Subject, leaf.DNSNames, leaf.IPAddresses, leaf.ExtKeyUsage)
	}
	if lifetime := leaf.NotAfter.Sub(leaf.NotBefore); lifetime != 8*time.Minute {
		t.Errorf("it lasts %s, want 3 min and the 5 before", lifetime)
	}
}

// A machine of the control plane has the API server's name, by its certificate, and serves as that
// once the operator says that it is one.
func TestControlPlaneServesByItsName(t *testing.T) {
	t.Parallel()
	const name = "control-plane" // in the API server's certificate, as kubeadm makes it
	s := newSite(t, cluster.Options{}, "--serving-allowed-dns-suffix=node.example.com")
	ctx, nodes := t.Context(), s.Client().CoreV1().Nodes()
	node, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	if _, err := nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubelet := s.as(t, "system:node:"+name, "system:nodes")
	if err := request(ctx, kubelet, "impostor", certificates.KubeletServingSignerName, name); err != nil {
		t.Fatal(err)
	}
	wait(t, "refusal", func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, "impostor", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(r.Status.Conditions) == 0 {
			return errNotYet
		}
		if c := r.Status.Conditions[0]; c.Type != certificates.CertificateDenied || c.Reason != "ServingNameReserved" {
			t.Fatalf("%s by %s: %s", c.Type, c.Reason, c.Message)
		}
		return nil
	})
	s.kill(t)
	s.start(t, "--reserved-node-names=control-*")
	if err := request(ctx, kubelet, "known", certificates.KubeletServingSignerName, name); err != nil {
		t.Fatal(err)
	}
	if leaf := s.issued(t, "known"); len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != name {
		t.Errorf("serving certificate for %q", leaf.DNSNames)
	}
}
