package daemon

import (
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
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

// Catches a leader that keeps the right after an administrator has removed it, loses it in an outage of the API server, or
// publishes it with --shadow.
func TestLeaseSaysWhetherLeaderPatchesNodes(t *testing.T) {
	c := &connection{}
	for _, test := range []struct {
		name    string
		allowed bool
		err     error
		shadow  bool
		want    string
	}{
		{name: "no right"},
		{name: "right", allowed: true, want: "true"},
		{name: "outage", err: errors.New("down"), want: "true"},
		{name: "right removed"},
		{name: "right with --shadow", allowed: true, shadow: true},
	} {
		client := fake.NewClientset()
		client.PrependReactor("create", "selfsubjectaccessreviews", func(action kubetesting.Action) (bool, runtime.Object, error) {
			review := action.(kubetesting.CreateAction).GetObject().(*authorization.SelfSubjectAccessReview)
			if a := review.Spec.ResourceAttributes; *a != (authorization.ResourceAttributes{Verb: "patch", Resource: "nodes"}) {
				t.Errorf("%s: review of %+v, want patch on nodes", test.name, a)
			}
			review.Status.Allowed = test.allowed
			return true, review, test.err
		})
		c.client, c.Shadow = client, test.shadow
		if _, err := c.checkNodeRight(t.Context()); (err != nil) != (test.err != nil) || c.nodeRight() != test.want {
			t.Errorf("%s: got %q, %v, want %q", test.name, c.nodeRight(), err, test.want)
		}
	}
}
