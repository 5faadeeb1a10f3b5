package explain_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/certtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/explain"
	"github.com/kubejoin/kubejoin/tokens"
)

const (
	clientSigner  = "kubernetes.io/kube-apiserver-client-kubelet"
	servingSigner = "kubernetes.io/kubelet-serving"
	name          = "worker-7"
	itself        = "system:node:" + name
)

var now = time.Date(2025, 3, 14, 15, 9, 26, 0, time.UTC)

func before(d time.Duration) time.Time { return now.Add(-d) }

// secret is the secret of every token in these tests. No explanation may show any part of it.
const secret = "s3cr3ts3cr3ts3cr"

func token(t testing.TB, id string, change ...func(*tokens.Record)) tokens.Record {
	t.Helper()
	value := must.Value(tokens.New(id, secret))(t)
	r := tokens.NewRecord(value, 24*time.Hour, before(time.Hour))
	r.Created, r.UID = before(time.Hour), "uid-"+id
	for _, c := range change {
		c(&r)
	}
	return r
}

func forNames(names ...string) func(*tokens.Record) {
	return func(r *tokens.Record) { r.Limits.NodeNames = names }
}

func usedUp(by ...string) func(*tokens.Record) {
	return func(r *tokens.Record) { r.Limits.MaxNodes, r.Nodes = len(by), by }
}

func byRule(l tokens.Limits) func(*tokens.Record) {
	return func(r *tokens.Record) { r.Limits.Rules = []tokens.Rule{{Name: "scaler", Limits: l}} }
}

func expired(r *tokens.Record) { r.Expires = before(2 * time.Hour) }

func fresh(r *tokens.Record) { r.Created = now }

func newCA(t testing.TB, name string) *tls.Certificate {
	t.Helper()
	return certtest.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: before(time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
}

func leafOf(t testing.TB, ca *tls.Certificate, end time.Time) *x509.Certificate {
	t.Helper()
	return certtest.Issue(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: itself, Organization: []string{"system:nodes"}}, NotBefore: before(time.Hour), NotAfter: end,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca).Leaf
}

// info returns a cluster-info that trusts the CA and has a signature by each of the tokens.
func info(t testing.TB, ca *tls.Certificate, signing ...tokens.Record) explain.ClusterInfo {
	t.Helper()
	kubeconfig := must.Value(clusterinfo.Kubeconfig("https://api.example.com:6443", []*x509.Certificate{ca.Leaf}))(t)
	document := must.Value(clusterinfo.Document{}.Update(kubeconfig, signing, now))(t)
	return explain.ParseClusterInfo(document.Data())
}

// request returns a request for the client certificate that the user made 40 s ago.
func request(user string, change ...func(*api.RequestEvidence)) api.RequestEvidence {
	r := api.RequestEvidence{Name: "csr-1", UID: "uid-1", Signer: clientSigner, User: user, Created: before(40 * time.Second)}
	if user != itself {
		r.Groups = []string{"system:bootstrappers", tokens.DefaultGroup, "system:authenticated"}
	}
	for _, c := range change {
		c(&r)
	}
	return r
}

func condition(reason, message string) *api.RequestCondition {
	return &api.RequestCondition{Reason: reason, Message: message, At: before(30 * time.Second)}
}

func denied(reason, message string) func(*api.RequestEvidence) {
	return func(r *api.RequestEvidence) { r.Denied = condition(reason, message) }
}

func failed(reason, message string) func(*api.RequestEvidence) {
	return func(r *api.RequestEvidence) { r.Failed = condition(reason, message) }
}

func approved(r *api.RequestEvidence) { r.Approved = condition("AutoApproved", "approved") }

func permitted(may bool) func(*api.RequestEvidence) {
	return func(r *api.RequestEvidence) { r.Permitted = &may }
}

func made(d time.Duration, name string) func(*api.RequestEvidence) {
	return func(r *api.RequestEvidence) { r.Created, r.Name, r.UID = before(d), name, "uid-"+name }
}

func serving(r *api.RequestEvidence) {
	r.Signer, r.Name, r.UID = servingSigner, "csr-serving", "uid-serving"
}

func issued(writer string, leaf *x509.Certificate) func(*api.RequestEvidence) {
	return func(r *api.RequestEvidence) {
		approved(r)
		r.Certificate = &api.CertificateEvidence{Writer: writer, At: before(3 * time.Minute), Chain: []*x509.Certificate{leaf}}
	}
}

func leader(age time.Duration) *api.LeaderEvidence {
	return &api.LeaderEvidence{Namespace: "kubejoin-system", Lease: "kubejoin", Holder: "cp-1_abc", Renewed: before(age), Duration: 15 * time.Second}
}

func turn(holder string, silent time.Duration, waiting ...string) *api.TurnEvidence {
	t := &api.TurnEvidence{Holder: holder, Since: before(3 * time.Minute), Renewed: before(silent)}
	for _, name := range waiting {
		t.Waiting = append(t.Waiting, api.WaitingEvidence{Node: name, Since: before(2 * time.Minute)})
	}
	return t
}

func node(ready, message string) *api.NodeEvidence {
	return &api.NodeEvidence{UID: "uid-node", Created: before(3 * time.Hour), Ready: ready, Message: message, Since: before(2*time.Hour + time.Minute)}
}

func claim(id string) *tokens.Claim {
	return &tokens.Claim{Node: name, TokenID: id, TokenUID: "uid-" + id, Created: before(10 * time.Minute), Keys: []string{"sha256:00"}}
}
