package ca

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// TestServesConfiguredCertificate catches a kubejoin without CA key that does not serve the certificate of --tls-cert-file,
// or whose discovery fails although the cluster CA has signed this certificate.
func TestServesConfiguredCertificate(t *testing.T) {
	harness.Parallel(t)
	s := harness.PrepareSite(t, cluster.Options{})
	var flags []string
	for _, flag := range s.Flags {
		if !strings.HasPrefix(flag, "--cluster-signing-") {
			flags = append(flags, flag)
		}
	}
	pki := filepath.Dir(s.CAFile())
	certFile, keyFile := filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key")
	given := must.Value(tls.LoadX509KeyPair(certFile, keyFile))(t)
	s.Flags = append(flags, "--controllers=*,-csr-signer", "--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile)
	s.Start(t)
	connection := must.Value(tls.Dial("tcp", s.Program.Endpoint, &tls.Config{RootCAs: s.CAPool()}))(t)
	defer func() { _ = connection.Close() }()
	if served := connection.ConnectionState().PeerCertificates[0]; string(served.Raw) != string(given.Certificate[0]) {
		t.Errorf("kubejoin serves %s, want the certificate in %s", served.Subject, certFile)
	}
	args, token := s.JoinArgs(t, "")
	if _, err := clusterinfo.Discover(t.Context(), s.Program.Endpoint, token, []string{args[len(args)-1]}); err != nil {
		t.Error(err)
	}
}
