package join

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAPIServerVerifiesKubeletServingCertificate catches a kubelet that gets no serving certificate unless a person
// approves it, or whose certificate kube-apiserver cannot verify. Without a certificate, or with another CA, verification
// must fail. It also catches a kubelet that cannot renew its client certificate without its token.
func TestAPIServerVerifiesKubeletServingCertificate(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t)
	ranges := ownRanges(t)
	s := harness.PrepareSite(t, cluster.Options{ServerTLSBootstrap: true, KubeletAddress: "0.0.0.0"}, "--cluster-signing-duration=3m")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	restart := func(ca string) {
		t.Helper()
		s.StopAPIServer()
		must.OK(t, s.StartAPIServer(ctx, "--kubelet-certificate-authority="+ca, "--kubelet-preferred-address-types=InternalIP"))
	}
	restart(s.CAFile())
	reached := func() error {
		out, err := s.Kubectl(ctx, "get", "--raw", "/api/v1/nodes/worker-1/proxy/healthz")
		if err == nil && out != "ok" {
			err = fmt.Errorf("the kubelet returns %q, want ok", out)
		}
		return err
	}

	// Without configuration the request waits, and an Event reports this.
	s.Start(t)
	args, _ := s.JoinArgs(t, "")
	node := must.Value(s.Join(ctx, "worker-1", args))(t)
	s.RunKubectl(t, "-n", "kube-system", "delete", "secrets", "--field-selector=type=bootstrap.kubernetes.io/token")
	firstClient := must.Value(node.ClientCertificate())(t)
	harness.CheckKubeletCertificate(t, s, firstClient[0], node.Name, 3*time.Minute)
	harness.Wait(t, "Event ServingScopeNotConfigured", func() error {
		if out := s.RunKubectl(t, "get", "events", "-n", "default", "--field-selector=reason=ServingScopeNotConfigured", "-o", "name"); out == "" {
			return errors.New("not yet")
		}
		return nil
	})
	if err := reached(); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Fatalf("kubelet without a serving certificate: got %v, want a TLS error", err)
	}
	for _, r := range servingRequests(t, s) {
		if len(r.Status.Conditions) > 0 {
			t.Fatalf("%s without configuration: got conditions %v, want none", r.Name, r.Status.Conditions)
		}
	}
	s.Kill(t)

	// With --serving-allowed-cidr kubejoin approves the request, and kube-apiserver verifies the kubelet.
	s.Start(t, "--serving-allowed-cidr="+strings.Join(ranges, ","))
	harness.Wait(t, "verified connection to the kubelet", reached)
	first := must.Value(node.ServingCertificate())(t)
	checkServingCertificate(t, s, first[0])

	// With another CA the verification must fail.
	wrong := filepath.Join(s.WorkDir, "wrong.crt")
	must.OK(t, os.WriteFile(wrong, harness.ReadFile(t, filepath.Join(filepath.Dir(s.CAFile()), "front-proxy-ca.crt")), 0o600))
	restart(wrong)
	if err := reached(); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Errorf("kubelet with another CA: got %v, want an x509 error", err)
	}
	restart(s.CAFile())
	harness.Wait(t, "verified connection again", reached)

	// The kubelet renews both certificates.
	for what, read := range map[string]func() ([]*x509.Certificate, error){"client": node.ClientCertificate, "serving": node.ServingCertificate} {
		before := firstClient[0]
		if what == "serving" {
			before = first[0]
		}
		for {
			now, err := read()
			if err == nil && now[0].NotAfter.After(before.NotAfter) {
				if what == "serving" {
					checkServingCertificate(t, s, now[0])
				} else {
					harness.CheckKubeletCertificate(t, s, now[0], node.Name, 3*time.Minute)
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
	harness.Wait(t, "verified connection with the new certificate", reached)
	all := s.RunKubectl(t, "get", "csr", "-o", `jsonpath={range .items[*]}{.spec.username} {.status.conditions[*].type} {.status.conditions[*].message}{"\n"}{end}`)
	if !strings.Contains(all, "system:node:worker-1 Approved Auto approving self kubelet client certificate") {
		t.Errorf("want an approved renewal by the node itself, got\n%s", all)
	}
	requests := servingRequests(t, s)
	if len(requests) < 2 {
		t.Errorf("got %d serving requests, want at least 2, with the renewal", len(requests))
	}
	for _, r := range requests {
		for _, c := range r.Status.Conditions {
			if c.Type != certificates.CertificateApproved || c.Reason != "AutoApproved" {
				t.Errorf("%s: got %s %s: %s, want Approved AutoApproved", r.Name, c.Type, c.Reason, c.Message)
			}
		}
	}
}

// ownRanges returns this machine's addresses as CIDR ranges. The kubelet reports one of them.
func ownRanges(t *testing.T) []string {
	t.Helper()
	addresses := must.Value(net.InterfaceAddrs())(t)
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
		t.Fatal("this machine has only loopback addresses, which a serving certificate must not contain, and CI skips no test")
	}
	if len(ranges) == 0 {
		t.Skip("this machine has only loopback addresses, which a serving certificate must not contain")
	}
	return ranges
}

func servingRequests(t *testing.T, s *harness.Site) []certificates.CertificateSigningRequest {
	t.Helper()
	list := must.Value(s.Client().CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + certificates.KubeletServingSignerName}))(t)
	return list.Items
}

// checkServingCertificate checks the kubelet's serving certificate.
func checkServingCertificate(t *testing.T, s *harness.Site, leaf *x509.Certificate) {
	t.Helper()
	harness.LintCertificate(t, leaf)
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: s.CAPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		t.Error(err)
	}
	if len(leaf.IPAddresses) == 0 || len(leaf.ExtKeyUsage) != 1 || leaf.IsCA || leaf.Subject.CommonName != "system:node:worker-1" {
		t.Errorf("serving certificate of %s for %v and %v, usages %v", leaf.Subject, leaf.DNSNames, leaf.IPAddresses, leaf.ExtKeyUsage)
	}
	if lifetime := leaf.NotAfter.Sub(leaf.NotBefore); lifetime != 8*time.Minute {
		t.Errorf("got lifetime %s, want 8m: 3 min and 5 min backdated", lifetime)
	}
}

// TestServingNameOfAPIServerNeedsReservedNodeName catches a serving certificate for a name of the API server, unless
// --reserved-node-names says that the node belongs to the control plane.
func TestServingNameOfAPIServerNeedsReservedNodeName(t *testing.T) {
	harness.Parallel(t)
	const name = "control-plane" // a name in the API server's certificate
	s := harness.NewSite(t, cluster.Options{}, "--serving-allowed-dns-suffix=node.example.com")
	ctx, nodes := t.Context(), s.Client().CoreV1().Nodes()
	node := must.Value(nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	must.Value(nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{}))(t)
	kubelet := s.As(t, "system:node:"+name, "system:nodes")
	must.OK(t, harness.CreateRequest(ctx, kubelet, "impostor", certificates.KubeletServingSignerName, name))
	harness.Wait(t, "denial of the request", func() error {
		r, err := s.Client().CertificatesV1().CertificateSigningRequests().Get(ctx, "impostor", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(r.Status.Conditions) == 0 {
			return errors.New("not yet")
		}
		if c := r.Status.Conditions[0]; c.Type != certificates.CertificateDenied || c.Reason != "ServingNameReserved" {
			t.Fatalf("got %s %s: %s, want Denied ServingNameReserved", c.Type, c.Reason, c.Message)
		}
		return nil
	})
	s.Kill(t)
	s.Start(t, "--reserved-node-names=control-*")
	must.OK(t, harness.CreateRequest(ctx, kubelet, "known", certificates.KubeletServingSignerName, name))
	if leaf := s.WaitIssued(t, "known"); len(leaf.DNSNames) != 1 || leaf.DNSNames[0] != name {
		t.Errorf("serving certificate: got DNS names %q, want %s", leaf.DNSNames, name)
	}
}
