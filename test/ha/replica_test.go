package ha

import (
	"crypto/x509"
	"log/slog"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/etcdstore"
	certificates "k8s.io/api/certificates/v1"
)

// A replica is a kubejoin inside the test process, with its own store and authority.
type replica struct {
	*signer.Authority
	tokens tokens.Store
	claims tokens.Claims
	faults *etcd.Faults
}

// newReplica returns a replica. The fraction rate of its calls to etcd fails, and h records its calls.
func newReplica(t *testing.T, c *etcd.Cluster, ca *signer.CA, h *history, seed uint64, rate float64) *replica {
	t.Helper()
	network := must.Value(c.Network())(t)
	t.Cleanup(network.Close)
	faults := must.Value(c.Faults(network, "kubejoin", seed, rate))(t)
	t.Cleanup(faults.Close)
	store := openStore(t, c, faults.Endpoints())
	t.Cleanup(func() { _ = store.Close() })
	r := &replica{tokens: recordedTokens{store, h}, claims: recordedClaims{store.Claims(), h}, faults: faults}
	r.Authority = &signer.Authority{
		Facts: signer.Standalone{Claims: r.claims}, Signers: signer.FixedSigners(must.Value(signer.KubernetesSigners(signer.Fixed(ca), time.Hour))(t)),
		Nodes:  &admission.Nodes{Tokens: r.tokens, Claims: r.claims, Logger: slog.New(slog.DiscardHandler)},
		Record: &harness.InProcess, Unthrottled: true,
	}
	return r
}

func newCA(t *testing.T) *signer.CA {
	t.Helper()
	return must.Value(signer.GenerateCA("kubernetes", time.Now(), 24*time.Hour))(t)
}

// openStore opens the store of a replica.
func openStore(t *testing.T, c *etcd.Cluster, endpoints []string) *etcdstore.Store {
	t.Helper()
	files := must.Value(c.User("kubejoin"))(t)
	return must.Value(etcdstore.Open(t.Context(), etcdstore.Config{Endpoints: endpoints, CAFile: files.CA, CertFile: files.Cert, KeyFile: files.Key}))(t)
}

// firstRequest returns a request for the first client certificate of a node.
func firstRequest(t *testing.T, token tokens.Token, node string) approval.Request {
	return approval.Request{
		UID: "csr-" + node, SignerName: certificates.KubeAPIServerClientKubeletSignerName, User: tokens.BootstrapUserPrefix + token.ID(),
		Groups: []string{tokens.BootstrappersGroup, tokens.DefaultGroup}, Created: time.Now(),
		Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth},
		CSR:    csrtest.New(t, &x509.CertificateRequest{Subject: csrtest.Node(node)}, nil),
	}
}
