package test

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/test/cluster"
)

// Without the CA's key kubejoin serves the certificate that it is given, and discovery at it
// works if the cluster CA has signed that.
func TestServesGivenCertificate(t *testing.T) {
	t.Parallel()
	s := prepare(t, cluster.Options{})
	var flags []string
	for _, flag := range s.flags {
		if !strings.HasPrefix(flag, "--cluster-signing-") {
			flags = append(flags, flag)
		}
	}
	pki := filepath.Dir(s.CAFile())
	certFile, keyFile := filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key")
	given, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	s.flags = append(flags, "--controllers=*,-csr-signer", "--tls-cert-file="+certFile, "--tls-private-key-file="+keyFile)
	s.start(t)
	connection, err := tls.Dial("tcp", s.program.address, &tls.Config{RootCAs: s.CAPool()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	if served := connection.ConnectionState().PeerCertificates[0]; string(served.Raw) != string(given.Certificate[0]) {
		t.Errorf("serves %s, want the certificate given, %s", served.Subject, certFile)
	}
	args, token := s.join(t, "")
	if _, err := clusterinfo.Discover(t.Context(), s.program.address, token, []string{args[len(args)-1]}); err != nil {
		t.Error(err)
	}
}
