package server_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
)

// A machine is a node with its key and its valid certificate.
type machine struct {
	node  string
	key   crypto.Signer
	chain []byte
}

// machine returns a node that has joined. s must issue certificates.
func (s *site) machine(t testing.TB, node string) machine {
	t.Helper()
	m := machine{node: node, key: csrtest.NewKey()}
	var err error
	m.chain, err = s.by(s.token(t, once)).Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, ofNode(node), m.key))})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// publicPEM returns the public key in PEM, and its ID.
func publicPEM(t testing.TB, key crypto.Signer) (text, id string) {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), pkcs10.IDOfKey(der)
}

// valid returns the certificate of the machine.
func (m machine) valid(t testing.TB) tls.Certificate {
	t.Helper()
	block, _ := pem.Decode(m.chain)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: m.key, Leaf: leaf}
}

// expired returns another certificate for the key of the machine, which has expired. edit may change it.
func (m machine) expired(t testing.TB, ca *signer.CA, edit func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	certs, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := tls.X509KeyPair(certs, key)
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(-2 * time.Second)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: csrtest.Node(m.node), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore: end.Add(-10 * time.Second), NotAfter: end,
	}
	if edit != nil {
		edit(template)
	}
	return madeBy(t, template, issuer.Leaf, m.key, issuer.PrivateKey)
}

// selfSigned returns a certificate of the machine that its own key has signed.
func (m machine) selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:" + m.node}, NotAfter: time.Unix(1, 0)}
	return madeBy(t, template, template, m.key, m.key)
}

func madeBy(t testing.TB, template, issuer *x509.Certificate, key crypto.Signer, signs any) tls.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), signs)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// showing returns a client whose connections present the certificate, whichever CAs the server names.
func (s *site) showing(t testing.TB, shown tls.Certificate) *http.Client {
	t.Helper()
	transport := s.http.Transport.(*http.Transport).Clone()
	transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil }
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// post sends a request with that client. An empty bearer sends no Authorization header.
func (s *site) post(t testing.TB, c *http.Client, path, bearer, body string) (reply, api.Problem) {
	t.Helper()
	return s.ask(t, c, "POST", path, bearer, body)
}

func (s *site) ask(t testing.TB, c *http.Client, method, path, bearer, body string) (reply, api.Problem) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	if strings.HasPrefix(body, "{") {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p api.Problem
	_ = json.Unmarshal(content, &p) // fails for a certificate
	return reply{answer.StatusCode, answer.Header, string(content)}, p
}

// comeBack lets a machine rejoin with a new key, and returns it with that key.
func (s *site) comeBack(t testing.TB, m machine, shown tls.Certificate) machine {
	t.Helper()
	next := machine{node: m.node, key: csrtest.NewKey()}
	got, p := s.post(t, s.showing(t, shown), certificatePath, "", csr(t, ofNode(m.node), next.key))
	if got.status != 200 {
		t.Fatalf("got %d %+v", got.status, p)
	}
	next.chain = []byte(got.body)
	return next
}

// bind binds a new key to a machine.
func (s *site) bind(t testing.TB, m machine) machine {
	t.Helper()
	kept := machine{node: m.node, key: csrtest.Ed25519()}
	public, _ := publicPEM(t, kept.key)
	if got, p := s.post(t, s.showing(t, m.valid(t)), "/v1/rejoin/key", "", jsonOf(t, api.BindKey{Key: api.Text(public)})); got.status != 200 {
		t.Fatalf("got %d %+v", got.status, p)
	}
	return kept
}

// Only the node itself may rejoin, and only for its own client certificate. Each row starts with a node whose certificate
// has expired.
func TestServerLetsOnlyTheNodeItselfRejoin(t *testing.T) {
	// A scene is a site with the machine worker-1, and the UIDs of its Nodes.
	type scene struct {
		*site
		m     machine
		nodes map[string]string
	}
	foreign := newSite(t)
	edited := func(edit func(*x509.Certificate)) func(*testing.T, *scene) tls.Certificate {
		return func(t *testing.T, s *scene) tls.Certificate { return s.m.expired(t, s.ca, edit) }
	}
	own := edited(nil)
	after := func(change func(*testing.T, *scene)) func(*testing.T, *scene) tls.Certificate {
		return func(t *testing.T, s *scene) tls.Certificate {
			change(t, s)
			return own(t, s)
		}
	}
	for name, test := range map[string]struct {
		status  int
		reason  string
		shown   func(t *testing.T, s *scene) tls.Certificate
		request func(t *testing.T, s *scene) string // nil: the client certificate of worker-1, for a new key
		query   string
	}{
		"the node itself": {status: 200, shown: own},
		"with its CA": {status: 200, shown: func(t *testing.T, s *scene) tls.Certificate {
			return chainOf(own(t, s), tls.Certificate{Certificate: [][]byte{s.ca.Certificate().Raw}})
		}},
		"bound key": {status: 200, shown: func(t *testing.T, s *scene) tls.Certificate { return s.bind(t, s.m).selfSigned(t) }},

		"issued before its CA": {status: 200, shown: func(t *testing.T, s *scene) tls.Certificate { // signers date back
			return s.m.expired(t, s.ca, func(c *x509.Certificate) { c.NotBefore = s.ca.Certificate().NotBefore.Add(-time.Minute) })
		}},

		"not valid yet": {status: 401, shown: edited(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		})},
		"never valid": {status: 401, shown: edited(func(c *x509.Certificate) { c.NotBefore = c.NotAfter.Add(time.Second) })},
		"expired before its CA was valid": {status: 401, shown: edited(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-10000*time.Hour), time.Now().Add(-9000*time.Hour)
		})},
		"other CA":             {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate { return s.m.expired(t, foreign.ca, nil) }},
		"serving certificate":  {status: 401, shown: edited(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })},
		"user":                 {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "jane", Organization: []string{"dev"}} })},
		"user of the nodes":    {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject.CommonName = "jane" })},
		"invalid node name":    {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject.CommonName = "system:node:../worker-1" })},
		"no group":             {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject.Organization = nil })},
		"another group":        {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject.Organization = []string{"system:masters"} })},
		"more groups":          {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject.Organization = []string{"system:nodes", "system:masters"} })},
		"self-signed, own key": {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate { return s.m.selfSigned(t) }},
		"self-signed, unbound key": {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate {
			s.bind(t, s.m)
			return machine{node: "worker-1", key: csrtest.NewKey()}.selfSigned(t)
		}},
		"bound key, another node": {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate {
			kept := s.bind(t, s.m)
			kept.node = "worker-2"
			return kept.selfSigned(t)
		}},
		"bound key, two certificates": {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate {
			shown := s.bind(t, s.m).selfSigned(t)
			return chainOf(shown, shown)
		}},
		"bound key, issued by the CA": {status: 403, reason: "KeyNotCurrent", shown: func(t *testing.T, s *scene) tls.Certificate {
			return s.bind(t, s.m).expired(t, s.ca, nil)
		}},
		"bound key, node without a window": {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate {
			kept := s.bind(t, s.m)
			s.Certificates.Authority.Nodes.RejoinWindow = 0
			return kept.selfSigned(t)
		}},

		"certificate of this name with another key": {status: 403, reason: "KeyNotCurrent", shown: func(t *testing.T, s *scene) tls.Certificate {
			return machine{node: "worker-1", key: s.machine(t, "worker-2").key}.expired(t, s.ca, nil)
		}},
		"another node's certificate": {status: 403, reason: "NodeRestriction", shown: func(t *testing.T, s *scene) tls.Certificate {
			return s.machine(t, "worker-2").expired(t, s.ca, nil)
		}},
		"restored disk image": {status: 403, reason: "KeyNotCurrent", shown: func(t *testing.T, s *scene) tls.Certificate {
			next := s.comeBack(t, s.m, own(t, s))
			s.comeBack(t, next, next.expired(t, s.ca, nil))
			return own(t, s)
		}},
		"deleted Node":       {status: 403, reason: "NodeNotFound", shown: after(func(_ *testing.T, s *scene) { delete(s.nodes, "worker-1") })},
		"Node created again": {status: 403, reason: "NodeReplaced", shown: after(func(_ *testing.T, s *scene) { s.nodes["worker-1"] = "uid-2" })},
		"released claim": {status: 403, reason: "KeyNotCurrent", shown: after(func(t *testing.T, s *scene) {
			if got := s.do(t, "DELETE", "/v1/claim/worker-1", adminBearer, "", ""); got.status != 200 {
				t.Fatal(got)
			}
		})},
		"budget spent": {status: 403, reason: "RejoinBudgetSpent", shown: func(t *testing.T, s *scene) tls.Certificate {
			s.Certificates.Authority.Nodes.RejoinBudget = 1
			return s.comeBack(t, s.m, own(t, s)).expired(t, s.ca, nil)
		}},
		"window passed": {status: 403, reason: "RejoinTooLate", shown: after(func(_ *testing.T, s *scene) { s.Certificates.Authority.Nodes.RejoinWindow = time.Second })},
		"no window":     {status: 403, reason: "RejoinOff", shown: after(func(_ *testing.T, s *scene) { s.Certificates.Authority.Nodes.RejoinWindow = 0 })},

		"request for another node": {status: 403, reason: "NodeRestriction", shown: own, request: func(t *testing.T, _ *scene) string { return nodeCSR(t, "worker-2") }},
		"request for the same key": {status: 403, reason: "KeyReused", shown: own, request: func(t *testing.T, s *scene) string { return csr(t, ofNode("worker-1"), s.m.key) }},
		"request for a serving certificate": {status: 403, reason: "NotForRejoin", shown: own, request: func(t *testing.T, _ *scene) string {
			return servingCSR(t, "worker-1", "worker-1.example.com")
		}},
		"request to another signer":      {status: 403, reason: "NotRecognized", shown: own, query: "?signer=" + peerSigner},
		"request to the signer of users": {status: 403, reason: "NotRecognized", shown: own, query: "?signer=" + certificates.KubeAPIServerClientSignerName},
	} {
		t.Run(name, func(t *testing.T) {
			base, kept := certifying(t)
			s := &scene{site: base, nodes: map[string]string{}}
			s.Certificates.Authority.Nodes.Node = func(_ context.Context, name string) (string, error) {
				if uid := s.nodes[name]; uid != "" {
					return uid, nil
				}
				return "", tokens.ErrNotFound
			}
			s.start(t)
			s.m = s.machine(t, "worker-1")
			s.nodes["worker-1"] = "uid-1"
			if _, err := s.store.Claims().Update(t.Context(), "worker-1", func(c *tokens.Claim) error { // as claim-cleaner does
				c.NodeUID, c.Identity.NodeUID = "uid-1", "uid-1"
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			shown := test.shown(t, s)
			request := nodeCSR(t, "worker-1")
			if test.request != nil {
				request = test.request(t, s)
			}
			got, p := s.post(t, s.showing(t, shown), certificatePath+test.query, "", request)
			if got.status != test.status || p.Reason != test.reason {
				t.Errorf("got %d %s, want %d %s", got.status, got.body, test.status, test.reason)
			}
			if last := kept.last(); test.status == 403 && (last.Outcome != issuance.Refused || last.Reason != test.reason || last.Requester == "") {
				t.Errorf("got record %+v, want the refusal", last)
			}
			if test.status == 200 {
				s.verified(t, []byte(got.body), x509.ExtKeyUsageClientAuth)
			}
		})
	}
}

// On every other route an expired certificate and a bound key authenticate nobody.
func TestRejoinAuthenticatesForOneRoute(t *testing.T) {
	s, _ := revoking(t)
	s.Webhooks.TokenReview = &server.TokenReview{Authenticate: s.Callers.Authenticate}
	s.Webhooks.Authorization = &server.Authorization{Authenticate: s.Callers.Authenticate}
	s.Status.Metrics = http.NotFoundHandler()
	s.start(t)
	m := s.machine(t, "worker-1")
	kept := s.bind(t, m)
	valid := s.showing(t, m.valid(t))
	for name, shown := range map[string]tls.Certificate{"expired": m.expired(t, s.ca, nil), "bound key": kept.selfSigned(t)} {
		c := s.showing(t, shown)
		if got, p := s.post(t, c, certificatePath, "", nodeCSR(t, "worker-1")); got.status != 200 {
			t.Fatalf("%s: got %d %+v", name, got.status, p)
		}
		closed := 0
		for _, on := range s.Routes() {
			path := strings.NewReplacer("{id:[^-]+}", "abcdef", "{node}", "worker-1", "{serial}", "1f", "{revoked}", "worker-1").Replace(on.Path)
			if on.Name == "certificate" {
				continue
			}
			// Public routes serve everybody; take-turn and give-back-turn authenticate bootstrap tokens alone.
			without, _ := s.ask(t, s.http, on.Method, path, "", "")
			got, _ := s.ask(t, c, on.Method, path, "", "")
			if got.status != without.status {
				t.Errorf("%s: %s %s: got %d, want %d as without a certificate", name, on.Method, path, got.status, without.status)
			}
			if got.status == 401 {
				closed++
			}
			if on.Name == "list-tokens" {
				if got, _ := s.ask(t, valid, on.Method, path, "", ""); got.status != 403 {
					t.Errorf("valid certificate: got %d, want a known user", got.status)
				}
			}
		}
		if closed < 18 {
			t.Errorf("%s: got 401 on %d routes, want it on more", name, closed)
		}
	}
}

// revocations are the ways to revoke the machine worker-1, with the certificate that it presents, the serial number of its
// last certificate, and the token that admitted it.
var revocations = map[string]func(shown tls.Certificate, serial, token string) string{
	"node":   func(tls.Certificate, string, string) string { return `{"node":"worker-1"}` },
	"serial": func(_ tls.Certificate, serial, _ string) string { return fmt.Sprintf(`{"serial":%q}`, serial) },
	"token":  func(_ tls.Certificate, _, token string) string { return fmt.Sprintf(`{"tokenID":%q}`, token) },
	"fingerprint": func(shown tls.Certificate, _, _ string) string {
		return fmt.Sprintf(`{"fingerprint":%q}`, revocation.FingerprintOf(shown.Leaf))
	},
}

// revoke revokes worker-1.
func (s *site) revoke(t *testing.T, m machine, shown tls.Certificate, by func(tls.Certificate, string, string) string) {
	t.Helper()
	c, err := s.store.Claims().Get(t.Context(), "worker-1")
	if err != nil {
		t.Fatal(err)
	}
	request := by(shown, m.valid(t).Leaf.SerialNumber.Text(16), c.Identity.TokenID)
	if got := s.do(t, "POST", "/v1/revocation", adminBearer, "application/json", request); got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
}

// A revocation must bar a machine before and after its handshake, by its name, its token, the certificate that it presents
// and its last certificate.
func TestRevokedMachineDoesNotComeBack(t *testing.T) {
	for name, by := range revocations {
		t.Run(name, func(t *testing.T) {
			s, _ := revoking(t)
			s.start(t)
			m := s.machine(t, "worker-1")
			shown, kept := m.expired(t, s.ca, nil), s.bind(t, m).selfSigned(t)
			early, bound := s.showing(t, shown), s.showing(t, kept)
			for what, c := range map[string]*http.Client{"expired": early, "bound key": bound} { // both have done their handshake
				if got, _ := s.ask(t, c, "GET", "/healthz", "", ""); got.status != 200 {
					t.Fatalf("%s: %d", what, got.status)
				}
			}
			s.revoke(t, m, shown, by)
			all := map[string]*http.Client{"handshake before": early, "handshake after": s.showing(t, shown)}
			if name != "fingerprint" { // of the expired certificate, which the bound key does not present
				all["bound key, before"], all["bound key, after"] = bound, s.showing(t, kept)
			}
			for what, c := range all {
				if got, p := s.post(t, c, certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "Revoked" {
					t.Errorf("%s: got %d %s, want Revoked", what, got.status, got.body)
				}
			}
			if c, err := s.store.Claims().Get(t.Context(), "worker-1"); err != nil || len(c.Identity.Rejoins) > 0 {
				t.Errorf("got %+v, %v, want no rejoin counted", c.Identity, err)
			}
		})
	}
}

// A revocation that is stored after the first check and before the claim is written must bar the request in progress, and
// every retry.
func TestRevocationDuringRejoinBarsMachine(t *testing.T) {
	for name, by := range revocations {
		for what, bound := range map[string]bool{"expired": false, "bound key": true} {
			if bound && name == "fingerprint" { // of the expired certificate, which the bound key does not present
				continue
			}
			t.Run(name+"/"+what, func(t *testing.T) {
				s, _ := revoking(t)
				n := s.Certificates.Authority.Nodes
				var during func() // before the next write of an existing claim
				n.Claims = storetest.Before(func() error {
					if do := during; do != nil {
						during = nil
						do()
					}
					return nil
				}, "Claims.Update").Claims(n.Claims)
				s.start(t)
				m := s.machine(t, "worker-1")
				shown := m.expired(t, s.ca, nil)
				client := s.showing(t, shown)
				if bound {
					client = s.showing(t, s.bind(t, m).selfSigned(t))
				}
				during = func() { s.revoke(t, m, shown, by) }
				for _, when := range []string{"during the revocation", "retry"} {
					if got, p := s.post(t, client, certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "Revoked" {
						t.Errorf("%s: got %d %s, want Revoked", when, got.status, got.body)
					}
				}
			})
		}
	}
}

// A machine that was allowed after the revocation of its node must rejoin with its bound key, which presents no certificate
// of the node.
func TestBoundKeyRejoinsAfterRevocationOfEarlierMachine(t *testing.T) {
	s, _ := revoking(t)
	s.start(t)
	if got := s.do(t, "POST", "/v1/revocation", adminBearer, "application/json", `{"node":"worker-1"}`); got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	m := s.machine(t, "worker-1")
	s.comeBack(t, m, s.bind(t, m).selfSigned(t))
}

// Revoking the token that admitted a machine must bar it whatever came after: rejoins, renewals, another certificate.
func TestRevokedTokenBarsMachineThatRejoined(t *testing.T) {
	for name, change := range map[string]func(*tokens.Record){"limited": once, "without limits": nil} {
		t.Run(name, func(t *testing.T) {
			s, _ := revoking(t)
			s.IssuanceRecord, s.Certificates.Authority.Record = nil, nil // only the identity knows the token
			s.start(t)
			token := s.token(t, change)
			m := machine{node: "worker-1", key: csrtest.NewKey()}
			if got, p := s.post(t, s.http, certificatePath, token, csr(t, ofNode("worker-1"), m.key)); got.status != 200 {
				t.Fatalf("%d %+v", got.status, p)
			}
			m = s.comeBack(t, m, m.expired(t, s.ca, nil))
			if got := s.do(t, "POST", "/v1/revocation", adminBearer, "application/json", fmt.Sprintf(`{"tokenID":%q}`, token[:6])); got.status != 201 {
				t.Fatalf("%d %s", got.status, got.body)
			}
			if got, p := s.post(t, s.showing(t, m.expired(t, s.ca, nil)), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "Revoked" && p.Reason != "KeyNotCurrent" {
				t.Errorf("rejoin: got %d %s", got.status, got.body)
			}
			if got, p := s.post(t, s.showing(t, m.valid(t)), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "Revoked" {
				t.Errorf("renewal: got %d %s", got.status, got.body)
			}
		})
	}
}

// An Authorization header decides alone. Catches an expired certificate that authenticates beside a wrong token.
func TestAuthorizationHeaderOutranksExpiredCertificate(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	c := s.showing(t, m.expired(t, s.ca, nil))
	for _, bearer := range []string{"guess", tokens.Generate().Reveal()} {
		if got, _ := s.post(t, c, certificatePath, bearer, nodeCSR(t, "worker-1")); got.status != 401 {
			t.Errorf("got %d %s, want 401", got.status, got.body)
		}
	}
	if got, _ := s.post(t, c, certificatePath, s.token(t, once), nodeCSR(t, "worker-1")); got.status != 403 {
		t.Errorf("with a token for another node: got %d %s, want the refusal of that token", got.status, got.body)
	}
}

// Behind a proxy that ends TLS no client certificate arrives, and the response says so.
func TestMissingClientCertificateNamesProxy(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	for _, path := range []string{certificatePath, "/v1/rejoin/key"} {
		if got, p := s.post(t, s.http, path, "", nodeCSR(t, "worker-1")); got.status != 401 || !strings.Contains(p.Detail, "a proxy that ends TLS") {
			t.Errorf("%s: got %d %s", path, got.status, got.body)
		}
	}
}

// A response that was lost costs no second rejoin, and the metric and the log say what happened.
func TestRejoinCountsOnceAndIsReported(t *testing.T) {
	s, kept := certifying(t)
	var events []string
	s.Certificates.RejoinEvent = func(node string, refused bool, reason, _ string) {
		events = append(events, fmt.Sprint(node, refused, reason))
	}
	s.Certificates.Authority.Nodes.RejoinBudget = 1
	s.start(t)
	m := s.machine(t, "worker-1")
	shown := m.expired(t, s.ca, nil)
	request := nodeCSR(t, "worker-1")
	for range 2 {
		if got, p := s.post(t, s.showing(t, shown), certificatePath, "", request); got.status != 200 {
			t.Fatalf("%d %+v", got.status, p)
		}
	}
	if e := kept.last(); e.Outcome != issuance.Issued || e.Requester != "system:node:worker-1" || e.Node != "worker-1" {
		t.Errorf("got record %+v", e)
	}
	if got, p := s.post(t, s.showing(t, shown), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "RejoinBudgetSpent" {
		t.Errorf("another key: got %d %s", got.status, got.body)
	}
	if want := []string{"worker-1falseRejoined", "worker-1falseRejoined", "worker-1trueRejoinBudgetSpent"}; !slices.Equal(events, want) {
		t.Errorf("got Events %q, want %q", events, want)
	}
	if n := s.gauge(t, "kubejoin_rejoins_total", "issued"); n != 2 {
		t.Errorf("got %v rejoins issued, want 2", n)
	}
	if n := s.gauge(t, "kubejoin_rejoins_total", "RejoinBudgetSpent"); n != 1 {
		t.Errorf("got %v refusals, want 1", n)
	}
	list, _, _ := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
	if len(list.Items) != 1 || len(list.Items[0].Rejoins) != 1 {
		t.Errorf("got claims %+v, want one that rejoined once", list.Items)
	}
}

// A key is bound by a node with a valid certificate, once.
func TestServerBindsKeys(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	key := csrtest.Ed25519()
	public, id := publicPEM(t, key)
	body := jsonOf(t, api.BindKey{Key: api.Text(public)})
	bind := func(shown tls.Certificate, bearer, body string) (reply, api.Problem) {
		return s.post(t, s.showing(t, shown), "/v1/rejoin/key", bearer, body)
	}
	small, err := x509.MarshalPKIXPublicKey(csrtest.RSA1024().Public())
	if err != nil {
		t.Fatal(err)
	}
	weak := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: small}))
	for what, malformed := range map[string]string{
		"no key": "{}", "no PEM": `{"key":"x"}`, "two keys": jsonOf(t, api.BindKey{Key: api.Text(public + public)}), "weak": jsonOf(t, api.BindKey{Key: api.Text(weak)}),
		"certificate": jsonOf(t, api.BindKey{Key: api.Text(m.chain)}), "broken": jsonOf(t, api.BindKey{Key: api.Text(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte{1}}))}),
	} {
		if got, p := bind(m.valid(t), "", malformed); got.status != 400 || p.Field != "key" {
			t.Errorf("%s: got %d %s, want 400 for key", what, got.status, got.body)
		}
	}
	if got, _ := bind(m.expired(t, s.ca, nil), "", body); got.status != 401 {
		t.Errorf("expired: got %d %s, want 401", got.status, got.body)
	}
	if got, p := bind(*s.userCertificate(t, "jane"), "", body); got.status != 403 || !p.Named("forbidden") {
		t.Errorf("a user: got %d %s, want 403", got.status, got.body)
	}
	if got, _ := bind(m.valid(t), s.token(t, nil), body); got.status != 403 {
		t.Errorf("a token: got %d %s, want 403", got.status, got.body)
	}
	for range 2 {
		got, _ := bind(m.valid(t), "", body)
		var bound api.BoundKey
		if err := json.Unmarshal([]byte(got.body), &bound); err != nil || got.status != 200 || bound.Key != id || bound.Kind != api.KindBoundKey {
			t.Fatalf("got %d %s, want key %s", got.status, got.body, id)
		}
	}
	other, _ := publicPEM(t, csrtest.Ed25519())
	if got, p := bind(m.valid(t), "", jsonOf(t, api.BindKey{Key: api.Text(other)})); got.status != 403 || p.Reason != "KeyNotCurrent" {
		t.Errorf("a second key: got %d %s", got.status, got.body)
	}
	s.Certificates.Authority.Nodes.RejoinWindow = 0
	if got, p := bind(m.valid(t), "", body); got.status != 403 || p.Reason != "RejoinOff" {
		t.Errorf("no window: got %d %s", got.status, got.body)
	}
}

// An authenticator of another kind may know the node by more than its certificate. Then there may be no certificate, or that
// of somebody else.
func TestNoCertificateBindsNoKey(t *testing.T) {
	s, _ := certifying(t)
	way := func(*http.Request) (auth.User, error) {
		return auth.User{Name: "system:node:worker-1", Groups: []string{"system:nodes"}}, nil
	}
	s.Callers.Authenticate = way
	s.start(t)
	leaf := s.machine(t, "worker-1").valid(t).Leaf
	s.Certificates.ClientCertificate = way
	public, _ := publicPEM(t, csrtest.Ed25519())
	for name, change := range map[string]func(*http.Request){
		"no TLS":         func(r *http.Request) { r.TLS = nil },
		"no certificate": func(r *http.Request) { r.TLS = &tls.ConnectionState{} },
		"a bearer token beside it": func(r *http.Request) {
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
			r.Header.Set("Authorization", "Bearer of-another-kind")
		},
	} {
		r := newRequest("POST", "/v1/rejoin/key", jsonOf(t, api.BindKey{Key: api.Text(public)}))
		r.Header.Set("Content-Type", "application/json")
		change(r)
		if status, body := served(s.Handler(), r); status != 403 {
			t.Errorf("%s: got %d %s, want 403", name, status, body)
		}
	}
	s.Certificates.ClientCertificate = func(*http.Request) (auth.User, error) { return auth.User{}, auth.ErrBadCredentials }
	for _, state := range []*tls.ConnectionState{nil, {}} {
		r := newRequest("POST", certificatePath, nodeCSR(t, "worker-1"))
		r.TLS = state
		if status, body := served(s.Handler(), r); status != 401 {
			t.Errorf("refused without a certificate: got %d %s, want 401", status, body)
		}
	}
}

// TestReleaseAfterRejoinFreesSlotOfAdmittingToken catches a release that frees a slot of another token, or none.
func TestReleaseAfterRejoinFreesSlotOfAdmittingToken(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	if got, p := s.post(t, s.showing(t, m.expired(t, s.ca, nil)), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 200 {
		t.Fatalf("rejoin: got %d %+v", got.status, p)
	}
	all, err := s.store.List(t.Context())
	if err != nil || len(all) != 1 || !slices.Equal(all[0].Nodes, []string{"worker-1"}) {
		t.Fatalf("got tokens %+v, %v, want one that counts the node", all, err)
	}
	if c, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", ""); got.status != 200 || c.Token != all[0].Token.ID() {
		t.Errorf("release: got %d %s", got.status, got.body)
	}
	if nodes := s.record(t, all[0].Token.ID()).Nodes; len(nodes) > 0 {
		t.Errorf("the token still counts %q", nodes)
	}
	if got, p := s.post(t, s.showing(t, m.expired(t, s.ca, nil)), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "KeyNotCurrent" {
		t.Errorf("rejoin after the release: got %d %s", got.status, got.body)
	}
}

// Without a CA the server refuses no rejoin: it cannot verify a certificate now.
func TestRejoinWithoutCA(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	shown := m.expired(t, s.ca, nil)
	s.Certificates.Authority.Signers = signer.FixedSigners(nil)
	if got, p := s.post(t, s.showing(t, shown), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 503 || !p.Named("authentication-unavailable") {
		t.Errorf("without a CA: got %d %s", got.status, got.body)
	}
}

// A machine that has proven its key is charged as its user before any state is read.
func TestRejoinsHaveTheRateOfTheirUser(t *testing.T) {
	for name, bound := range map[string]bool{"expired": false, "bound key": true} {
		t.Run(name, func(t *testing.T) {
			s, _ := certifying(t)
			s.Limits.UserRate = atFirst(4)
			closed := false
			n := s.Certificates.Authority.Nodes
			n.Claims = storetest.Before(func() error {
				if closed {
					t.Error("a claim was read live or written")
				}
				return nil
			}, "Claims.Get", "Claims.HeldBy", "Claims.Create", "Claims.Update", "Claims.Commit").Claims(n.Claims)
			s.start(t)
			m, other := s.machine(t, "worker-1"), s.machine(t, "worker-2")
			shown, left := m.expired(t, s.ca, nil), 4
			if bound {
				shown, left = s.bind(t, m).selfSigned(t), 3 // binding was charged, too
			}
			for i := range left {
				if got, p := s.post(t, s.showing(t, shown), certificatePath, "", csr(t, ofNode("worker-1"), shown.PrivateKey.(crypto.Signer))); got.status != 403 {
					t.Fatalf("request %d: got %d %+v, want a refusal", i, got.status, p)
				}
			}
			closed = true
			for range 10 {
				got, p := s.post(t, s.showing(t, shown), certificatePath, "", nodeCSR(t, "worker-1"))
				if got.status != 429 || !strings.Contains(p.Detail, "system:node:worker-1") {
					t.Errorf("got %d %s, want 429 for the user", got.status, got.body)
				}
			}
			closed = false
			if got, p := s.post(t, s.showing(t, other.expired(t, s.ca, nil)), certificatePath, "", nodeCSR(t, "worker-2")); got.status != 200 {
				t.Errorf("another node: got %d %+v", got.status, p)
			}
		})
	}
}

// TestRevokedCredentialsHaveTheRateOfTheirUser catches a machine that is revoked and sends requests without a limit.
func TestRevokedCredentialsHaveTheRateOfTheirUser(t *testing.T) {
	s, guard := revoking(t)
	s.Limits.UserRate = atFirst(3)
	s.start(t)
	m := s.machine(t, "worker-1")
	if _, err := guard.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}); err != nil {
		t.Fatal(err)
	}
	var got []int
	for range 3 {
		for _, path := range []string{certificatePath, "/v1/token"} {
			answer, _ := s.post(t, s.showing(t, m.valid(t)), path, "", nodeCSR(t, "worker-1"))
			got = append(got, answer.status)
		}
	}
	if want := []int{403, 403, 403, 429, 429, 429}; !slices.Equal(got, want) {
		t.Errorf("got %d, want %d", got, want)
	}
}

// What a handshake does not prove counts as a refused credential. When the address has used up its failures, machines
// that prove themselves must get in, and others not.
func TestGuessesDoNotLockOutMachines(t *testing.T) {
	s, _ := certifying(t)
	s.Limits.ClientRate = server.Rate{QPS: 1e6}
	s.Logger = nil
	s.start(t)
	m, off := s.machine(t, "worker-1"), s.machine(t, "worker-2")
	kept := s.bind(t, m)
	stranger := machine{node: "worker-1", key: csrtest.NewKey()}
	guesses := []*http.Client{
		s.showing(t, stranger.selfSigned(t)),
		s.showing(t, m.expired(t, newSite(t).ca, nil)),
		s.showing(t, off.expired(t, s.ca, func(c *x509.Certificate) { c.Subject.Organization = []string{"system:masters"} })),
	}
	paths := []string{certificatePath, "/v1/rejoin/key"}
	checked := 0
	for i := range 2 * httplimit.FailureBurst {
		switch got, _ := s.post(t, guesses[i%3], paths[i/3%2], "", ""); got.status {
		case 401:
			checked++
		case 429:
		default:
			t.Fatalf("guess %d: got %d %s", i, got.status, got.body)
		}
	}
	if checked < httplimit.FailureBurst || checked > httplimit.FailureBurst+20*httplimit.FailureQPS {
		t.Errorf("got %d guesses checked, want about %d", checked, httplimit.FailureBurst)
	}
	exhaust := func() { // the limit refills with time
		for {
			if got, _ := s.post(t, guesses[0], certificatePath, "", ""); got.status == 429 {
				return
			}
		}
	}
	exhaust()
	for what, shown := range map[string]tls.Certificate{"expired": off.expired(t, s.ca, nil), "bound key": kept.selfSigned(t), "valid": off.valid(t)} {
		node := map[bool]string{true: "worker-1", false: "worker-2"}[what == "bound key"]
		exhaust()
		if got, p := s.post(t, s.showing(t, shown), certificatePath, "", nodeCSR(t, node)); got.status != 200 {
			t.Errorf("%s: got %d %+v, want 200", what, got.status, p)
		}
	}
	beside, refused := s.showing(t, off.expired(t, s.ca, nil)), 0 // a proof beside guesses must not lift their limit
	for range 50 {
		if got, _ := s.post(t, beside, certificatePath, tokens.Generate().Reveal(), ""); got.status == 429 {
			refused++
		}
	}
	if refused < 25 {
		t.Errorf("guesses beside a certificate: got %d of 50 refused, want most", refused)
	}
	exhaust()
	if got, _ := s.ask(t, s.showing(t, off.expired(t, s.ca, nil)), "GET", tokenPath, "", ""); got.status == 200 || got.status == 403 {
		t.Errorf("another route: got %d", got.status)
	}
}

// A stranger must not make the server check a signature with a key that no CA has signed. The server refuses such a
// certificate in the handshake already, and VerifyChain does not use it, see package auth.
func TestForgedIntermediateCostsNoSignatureCheck(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	huge := withRSA(t, 100_000) // about 13 KiB: the certificates of a client may have 16 KiB
	if _, err := s.asks(t, &tls.Config{}, chainOf(m.expired(t, s.ca, nil), huge)); err == nil {
		t.Error("the handshake accepts a key of 100,000 bits in the chain")
	}
	// In process, where no handshake limits the chain. The keys would panic.
	leaf, err := x509.ParseCertificate(m.expired(t, newSite(t).ca, nil).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	forged := *leaf
	forged.IsCA, forged.PublicKey, forged.Subject, forged.RawSubject = true, &ecdsa.PublicKey{}, leaf.Issuer, leaf.RawIssuer
	r := newRequest("POST", certificatePath, nodeCSR(t, "worker-1"))
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf, &forged}}
	if status, body := served(s.Handler(), r); status != 401 || !bytes.Contains([]byte(body), []byte("unauthorized")) {
		t.Errorf("got %d %s", status, body)
	}
}
