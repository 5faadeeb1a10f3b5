package kubeadm

import (
	"crypto/x509"
	"encoding/pem"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/harness"
)

func addMachine(t *testing.T, c *Cluster, name string) *Machine {
	t.Helper()
	return must.Value(c.AddMachine(t.Context(), name))(t)
}

func checkServingCertificate(t *testing.T, control, worker *Machine) {
	t.Helper()
	ca := must.Value(control.ReadFile(t.Context(), "/etc/kubernetes/pki/ca.crt"))(t)
	chain := must.Value(worker.ReadFile(t.Context(), "/var/lib/kubelet/pki/kubelet-server-current.pem"))(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	block, _ := pem.Decode(chain)
	if block == nil {
		t.Fatal("no certificate")
	}
	leaf := must.Value(x509.ParseCertificate(block.Bytes))(t)
	for _, name := range []string{worker.Name, worker.Address} {
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Error(err)
		}
	}
	harness.LintCertificate(t, leaf)
}
