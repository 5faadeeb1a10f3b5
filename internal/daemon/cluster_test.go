package daemon

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/transport"
)

// TestClientReloadsItsCAFile catches a client that keeps the CA that its file contained at start. client-go re-reads
// the file only if the configuration names the file and does not contain its content.
func TestClientReloadsItsCAFile(t *testing.T) {
	dir := t.TempDir()
	ca, kubeconfig := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "kubejoin.conf")
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certtest.CA(t, "kubernetes").Certificate[0]})
	must.OK(t, os.WriteFile(ca, bundle, 0o600))
	must.OK(t, clientcmd.WriteToFile(api.Config{
		CurrentContext: "kubejoin",
		Contexts:       map[string]*api.Context{"kubejoin": {Cluster: "kubernetes", AuthInfo: "kubejoin"}},
		Clusters:       map[string]*api.Cluster{"kubernetes": {Server: "https://192.0.2.10:6443", CertificateAuthority: ca}},
		AuthInfos:      map[string]*api.AuthInfo{"kubejoin": {Token: "secret"}},
	}, kubeconfig))
	c := &connection{service: &service{}, ClusterOptions: ClusterOptions{Kubeconfig: kubeconfig}}
	config := must.Value(c.clientConfig())(t)
	of := must.Value(config.TransportConfig())(t)
	must.Value(transport.TLSConfigFor(of))(t)
	if !of.TLS.ReloadCAFiles || of.TLS.CAFile != ca {
		t.Errorf("the client reloads CA file %q: %t, want %q to be reloaded", of.TLS.CAFile, of.TLS.ReloadCAFiles, ca)
	}
}
