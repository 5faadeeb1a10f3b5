package server_test

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

const (
	certificatePath = "/v1/certificate"
	clientSigner    = certificates.KubeAPIServerClientKubeletSignerName
	servingSigner   = certificates.KubeletServingSignerName
	peerSigner      = "example.com/etcd-peer"
)

// record keeps issuance entries in memory.
type record struct {
	mu      sync.Mutex
	entries []issuance.Entry
}

func (r *record) Append(_ context.Context, e issuance.Entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.entries = append(r.entries, e)
	return nil
}

func (r *record) last() issuance.Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) == 0 {
		return issuance.Entry{}
	}
	return r.entries[len(r.entries)-1]
}

// certifying returns a site that issues certificates as a standalone kubejoin does, and its issuance record.
func certifying(t testing.TB) (*site, *record) {
	t.Helper()
	s := newSite(t)
	signers := must.Get(signer.KubernetesSigners(signer.Fixed(s.ca), 48*time.Hour))
	serving := signers[servingSigner]
	scope := approval.ServingScope{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, DNSSuffixes: []string{"example.com"}}
	serving.Rules = []approval.Rule{must.Get(approval.NewKubeletServing(scope))}
	signers[servingSigner] = serving
	signers[peerSigner] = must.Get(signer.NewSigner(peerSigner, signer.Fixed(s.ca), signer.ProfileConfig{Default: time.Hour, Max: 2 * time.Hour, Usages: []certificates.KeyUsage{
		certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, certificates.UsageServerAuth, certificates.UsageClientAuth,
	}}, func(approval.Request) error { return nil }))
	kept := &record{}
	s.Claims = s.store.Claims()
	s.Certificates = &server.Certificates{
		Authority: &signer.Authority{
			Signers: signer.FixedSigners(signers), Record: kept,
			Facts: signer.Standalone{
				Claims: s.store.Claims(), DNSSuffixes: scope.DNSSuffixes,
				Keep: approval.ClusterAddresses{APIServer: []string{"api.example.com"}},
			},
			Nodes: &admission.Nodes{Tokens: s.store, Claims: s.store.Claims(), Reserved: []string{"cp-*"}, RejoinWindow: 30 * 24 * time.Hour},
		},
		ClientCertificate: auth.ClientCertificate{CAs: s.roots, Everybody: true}.Authenticate,
	}
	return s, kept
}

// token stores a token and returns it with its secret.
func (s *site) token(t testing.TB, change func(*tokens.Record)) string {
	t.Helper()
	r := tokens.NewRecord(tokens.Generate(), time.Hour, time.Now())
	if change != nil {
		change(&r)
	}
	must.Get(s.store.Create(t.Context(), r))
	return r.Token.Reveal()
}

func once(r *tokens.Record) { r.Limits.MaxNodes = 1 }

// csr returns a CSR in PEM. If key is nil, it generates one.
func csr(t testing.TB, template x509.CertificateRequest, key crypto.Signer) string {
	t.Helper()
	return string(csrtest.PEM(t, &template, key))
}

func ofNode(name string) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: csrtest.Node(name)}
}

func nodeCSR(t testing.TB, name string) string { return csr(t, ofNode(name), nil) }

func subjectCSR(t testing.TB, name string, organizations ...string) string {
	return csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, nil)
}

// signing returns the request of a certificate from that signer.
func signing(signer, csr string) api.SignCertificate {
	return api.SignCertificate{Signer: signer, CSR: []byte(csr)}
}

func servingCSR(t testing.TB, name string, hosts ...string) string {
	template := ofNode(name)
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return csr(t, template, nil)
}

// userCertificate returns a client certificate that the site's CA signed.
func (s *site) userCertificate(t testing.TB, name string, organizations ...string) *tls.Certificate {
	t.Helper()
	key := csrtest.NewKey()
	request := must.Get(pkcs10.Parse([]byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: organizations}}, key))))
	usages := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageClientAuth}
	chain := must.Get(must.Get(signer.NewProfile(signer.ProfileConfig{Usages: usages})).Issue(s.ca, signer.Template{CSR: request, Usages: usages}, time.Now()))
	shown := machine{key: key, chain: chain}.valid(t)
	return &shown
}

// as returns a client that authenticates with the certificate.
func (s *site) as(t testing.TB, certificate *tls.Certificate) *client.Client {
	t.Helper()
	return &client.Client{URL: s.url, HTTP: s.showing(t, *certificate)}
}

// asNode returns a client that authenticates with a client certificate of that node.
func (s *site) asNode(t testing.TB, node string) *client.Client {
	t.Helper()
	return s.as(t, s.userCertificate(t, "system:node:"+node, "system:nodes"))
}

// by returns a client that authenticates with the bearer token.
func (s *site) by(bearer string) *client.Client {
	return &client.Client{URL: s.url, Bearer: api.Secret(bearer), HTTP: s.http}
}

// verified parses the certificate of a response and checks that a client that trusts the CA accepts it.
func (s *site) verified(t testing.TB, chain []byte, usage x509.ExtKeyUsage) *x509.Certificate {
	t.Helper()
	cert := must.Get(x509.ParseCertificate(must.Get(pemfile.One(chain, "CERTIFICATE"))))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: s.roots(), KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
		t.Error(err)
	}
	return cert
}

func wantProblem(t testing.TB, err error, status int, name, reason string) *api.Problem {
	t.Helper()
	var p *api.Problem
	if !errors.As(err, &p) || p.Status != status || !p.Named(name) || p.Reason != reason {
		t.Fatalf("%v %+v, want %d %s %s", err, p, status, name, reason)
	}
	return p
}
