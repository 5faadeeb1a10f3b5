package server_test

import (
	"cmp"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/web/httplimit"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
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
	m.chain = must.Get(s.by(s.token(t, once)).Certificate(t.Context(), signing("", csr(t, ofNode(node), m.key))))
	return m
}

// publicPEM returns the public key in PEM, and its ID.
func publicPEM(t testing.TB, key crypto.Signer) (text, id string) {
	t.Helper()
	der := must.Get(x509.MarshalPKIXPublicKey(key.Public()))
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), pkcs10.IDOfKey(der)
}

// valid returns the certificate of the machine.
func (m machine) valid(t testing.TB) tls.Certificate {
	t.Helper()
	block, _ := pem.Decode(m.chain)
	return tls.Certificate{Certificate: [][]byte{block.Bytes}, PrivateKey: m.key, Leaf: must.Get(x509.ParseCertificate(block.Bytes))}
}

// expired returns another certificate for the key of the machine, which is expired. edit may change it.
func (m machine) expired(t testing.TB, ca *signer.CA, edit func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	certs, key, err := ca.PEM()
	if err != nil {
		t.Fatal(err)
	}
	issuer := must.Get(tls.X509KeyPair(certs, key))
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
	der := must.Get(x509.CreateCertificate(rand.Reader, template, issuer, key.Public(), signs))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: must.Get(x509.ParseCertificate(der))}
}

// showing returns a client whose connections present the certificate, regardless of the CAs that the server names.
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
	got := s.send(t, c, method, path, bearer, map[bool]string{true: "application/json"}[strings.HasPrefix(body, "{")], body)
	var p api.Problem
	_ = json.Unmarshal([]byte(got.body), &p) // fails for a certificate
	return got, p
}

// comeBack makes a machine rejoin with a new key, and returns the machine with this key.
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

// Only the node itself may rejoin. Package admission tests its key, window and budget. Each row starts with a node whose
// certificate has expired.
func TestServerLetsOnlyTheNodeItselfRejoin(t *testing.T) {
	t.Parallel()
	// A scene is a site with the machine worker-1.
	type scene struct {
		*site
		m machine
	}
	foreign := newSite(t)
	edited := func(edit func(*x509.Certificate)) func(*testing.T, *scene) tls.Certificate {
		return func(t *testing.T, s *scene) tls.Certificate { return s.m.expired(t, s.ca, edit) }
	}
	own := edited(nil)
	for name, test := range map[string]struct {
		status  int
		reason  string
		shown   func(t *testing.T, s *scene) tls.Certificate
		request string // name of the node in the request; empty: worker-1
		query   string
	}{
		"the node itself": {status: 200, shown: own},
		"bound key":       {status: 200, shown: func(t *testing.T, s *scene) tls.Certificate { return s.bind(t, s.m).selfSigned(t) }},

		"issued before its CA": {status: 200, shown: func(t *testing.T, s *scene) tls.Certificate { // signers date back
			return s.m.expired(t, s.ca, func(c *x509.Certificate) { c.NotBefore = s.ca.Certificate().NotBefore.Add(-time.Minute) })
		}},

		"issued by an intermediate CA": {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate { // of another signer, perhaps
			above := machine{node: "worker-1", key: csrtest.NewKey()}.expired(t, s.ca, func(c *x509.Certificate) {
				c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.NotAfter = true, true, x509.KeyUsageCertSign, time.Now().Add(time.Hour)
			})
			leaf := s.m.expired(t, s.ca, nil).Leaf
			return chainOf(madeBy(t, &x509.Certificate{
				SerialNumber: big.NewInt(1), Subject: leaf.Subject, ExtKeyUsage: leaf.ExtKeyUsage, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
			}, above.Leaf, s.m.key, above.PrivateKey), above)
		}},

		"not valid yet": {status: 401, shown: edited(func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		})},
		"other CA":             {status: 401, shown: func(t *testing.T, s *scene) tls.Certificate { return s.m.expired(t, foreign.ca, nil) }},
		"serving certificate":  {status: 401, shown: edited(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })},
		"user":                 {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "jane", Organization: []string{"dev"}} })},
		"user of the nodes":    {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject.CommonName = "jane" })},
		"invalid node name":    {status: 401, shown: edited(func(c *x509.Certificate) { c.Subject.CommonName = "system:node:../worker-1" })},
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
		"request to another signer": {status: 403, reason: "NotRecognized", shown: own, query: "?signer=" + peerSigner},
		"request for another node":  {status: 403, reason: "NodeRestriction", shown: own, request: "worker-2"},
	} {
		t.Run(name, func(t *testing.T) {
			base, kept := certifying(t)
			s := &scene{site: base}
			s.start(t)
			s.m = s.machine(t, "worker-1")
			shown, request := test.shown(t, s), nodeCSR(t, cmp.Or(test.request, "worker-1"))
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
	s.Webhooks.Authorization.Authenticate = s.Callers.Authenticate
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
			// Public routes serve everybody. The routes take-turn and give-back-turn accept only bootstrap tokens.
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

// revocations are the entries that bar a machine: by its name, by its last certificate, and by the certificate that it
// presents.
func revocations(t *testing.T, m machine, shown tls.Certificate) map[string]revocation.Entry {
	return map[string]revocation.Entry{
		"node": {Node: m.node}, "last certificate": {Fingerprint: revocation.FingerprintOf(m.valid(t).Leaf)}, "fingerprint": {Fingerprint: revocation.FingerprintOf(shown.Leaf)},
	}
}

// A revocation must bar a machine before and after its handshake.
func TestRevokedMachineDoesNotComeBack(t *testing.T) {
	for _, name := range []string{"node", "last certificate", "fingerprint"} {
		t.Run(name, func(t *testing.T) {
			s, guard := revoking(t)
			s.start(t)
			m := s.machine(t, "worker-1")
			shown, kept := m.expired(t, s.ca, nil), s.bind(t, m).selfSigned(t)
			early, bound := s.showing(t, shown), s.showing(t, kept)
			for what, c := range map[string]*http.Client{"expired": early, "bound key": bound} { // both have done their handshake
				if got, _ := s.ask(t, c, "GET", "/healthz", "", ""); got.status != 200 {
					t.Fatalf("%s: %d", what, got.status)
				}
			}
			must.Get(guard.Revoke(t.Context(), revocations(t, m, shown)[name]))
			all := map[string]*http.Client{"handshake before": early, "handshake after": s.showing(t, shown)}
			if name != "fingerprint" { // the client with the bound key does not present the expired certificate
				all["bound key, before"] = bound
			}
			if name == "node" { // the last certificate has bound the key, which is unbound now
				all["bound key, after"] = s.showing(t, kept)
			}
			for what, c := range all {
				if got, p := s.post(t, c, certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "Revoked" {
					t.Errorf("%s: got %d %s, want Revoked", what, got.status, got.body)
				}
			}
			if c, err := s.store.Claims().Get(t.Context(), "worker-1", tokens.Live); err != nil || len(c.Identity.Rejoins) > 0 {
				t.Errorf("got %+v, %v, want no rejoin counted", c.Identity, err)
			}
		})
	}
}

// A thief may bind a key with the certificate in a copy of a disk. Revoking this certificate must invalidate the key,
// even if the machine has renewed or the revocation is undone.
func TestRevokedCertificateEndsKeyThatItBound(t *testing.T) {
	s, guard := revoking(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	stolen := m.valid(t)
	kept := s.showing(t, s.bind(t, m).selfSigned(t))
	renewed := s.comeBack(t, s.comeBack(t, m, stolen), stolen)
	wantRefused := func(when string, status int, reason string) {
		t.Helper()
		if got, p := s.post(t, kept, certificatePath, "", nodeCSR(t, "worker-1")); got.status != status || p.Reason != reason {
			t.Errorf("%s: got %d %s, want %d %s", when, got.status, got.body, status, reason)
		}
	}
	entry := must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(stolen.Leaf)}))
	wantRefused("revoked", 403, "Revoked")
	must.Get(guard.Undo(t.Context(), entry.Key()))
	wantRefused("revocation undone", 401, "")          // the use before has unbound the key
	renewed = s.comeBack(t, renewed, renewed.valid(t)) // a renewal
	// An unused binding ends with the next renewal, or when the machine binds its own key.
	for _, own := range []bool{false, true} {
		stolen, kept = renewed.valid(t), s.showing(t, s.bind(t, renewed).selfSigned(t))
		renewed = s.comeBack(t, renewed, stolen)
		entry := must.Get(guard.Revoke(t.Context(), revocation.Entry{Fingerprint: revocation.FingerprintOf(stolen.Leaf)}))
		if own {
			s.comeBack(t, renewed, s.bind(t, renewed).selfSigned(t))
			break
		}
		renewed = s.comeBack(t, renewed, renewed.valid(t))
		must.Get(guard.Undo(t.Context(), entry.Key()))
		wantRefused("never used", 401, "")
	}
	s.comeBack(t, renewed, renewed.expired(t, s.ca, nil))
}

// A revocation that is stored after the first check and before the claim is written must bar the request in progress, and
// every retry.
func TestRevocationDuringRejoinBarsMachine(t *testing.T) {
	for _, test := range []struct {
		name  string
		bound bool
	}{{"node", false}, {"node", true}, {"last certificate", false}, {"last certificate", true}, {"fingerprint", false}} {
		t.Run(fmt.Sprintf("%s/bound=%t", test.name, test.bound), func(t *testing.T) {
			s, guard := revoking(t)
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
			if test.bound {
				client = s.showing(t, s.bind(t, m).selfSigned(t))
			}
			during = func() { must.Get(guard.Revoke(t.Context(), revocations(t, m, shown)[test.name])) }
			for _, when := range []string{"during the revocation", "retry"} {
				if got, p := s.post(t, client, certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "Revoked" {
					t.Errorf("%s: got %d %s, want Revoked", when, got.status, got.body)
				}
			}
		})
	}
}

// A machine that was allowed after the revocation of its node must rejoin with its bound key, which presents no certificate
// of the node.
func TestBoundKeyRejoinsAfterRevocationOfEarlierMachine(t *testing.T) {
	s, guard := revoking(t)
	s.start(t)
	must.Get(guard.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))
	m := s.machine(t, "worker-1")
	s.comeBack(t, m, s.bind(t, m).selfSigned(t))
}

// Revoking the token that admitted a machine must bar the machine even after rejoins and renewals. The token itself
// must not work any more.
func TestRevokedTokenBarsMachineThatRejoined(t *testing.T) {
	t.Parallel()
	s, _ := revoking(t)
	s.IssuanceRecord, s.Certificates.Authority.Record = nil, nil // only the identity knows the token
	s.start(t)
	token := s.token(t, nil)
	m := machine{node: "worker-1", key: csrtest.NewKey()}
	if got, p := s.post(t, s.http, certificatePath, token, csr(t, ofNode("worker-1"), m.key)); got.status != 200 {
		t.Fatalf("%d %+v", got.status, p)
	}
	m = s.comeBack(t, m, m.expired(t, s.ca, nil))
	if got := s.do(t, "POST", "/v1/revocation", adminBearer, "application/json", fmt.Sprintf(`{"tokenID":%q}`, token[:6])); got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if got := s.do(t, "POST", certificatePath, token, "", nodeCSR(t, "worker-2")); got.status != 401 {
		t.Errorf("another machine with the token: got %d %s, want 401", got.status, got.body)
	}
	for what, shown := range map[string]tls.Certificate{"rejoin": m.expired(t, s.ca, nil), "renewal": m.valid(t)} {
		if got, p := s.post(t, s.showing(t, shown), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 403 || p.Reason != "Revoked" {
			t.Errorf("%s: got %d %s", what, got.status, got.body)
		}
	}
}

// If a request has an Authorization header, only the header authenticates it. Catches an expired certificate
// that authenticates beside a wrong token.
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

// After a lost response, a retry must not use up a second rejoin. The metric and the log must say what happened.
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
	for status, want := range map[string]int{"200": 3, "403": 1} { // one refusal is for the token
		if n := len(regexp.MustCompile(`level=INFO msg=request route=certificate method=POST status=`+status+` .*user=system:`).FindAllString(s.logs.String(), -1)); n != want {
			t.Errorf("got %d lines of status %s with the user, want %d", n, status, want)
		}
	}
	if n, refused := s.gauge(t, "kubejoin_rejoins_total", "issued"), s.gauge(t, "kubejoin_rejoins_total", "RejoinBudgetSpent"); n != 2 || refused != 1 {
		t.Errorf("got %v rejoins issued and %v refused, want 2 and 1", n, refused)
	}
	list, _, _ := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
	if len(list.Items) != 1 || len(list.Items[0].Rejoins) != 1 {
		t.Errorf("got claims %+v, want one that rejoined once", list.Items)
	}
}

// A node with a valid certificate binds a key, once.
func TestServerBindsKeys(t *testing.T) {
	s, _ := certifying(t)
	var events []string
	s.Certificates.RejoinEvent = func(_ string, _ bool, reason, message string) { events = append(events, reason+": "+message) }
	s.start(t)
	m := s.machine(t, "worker-1")
	key := csrtest.Ed25519()
	public, id := publicPEM(t, key)
	body := jsonOf(t, api.BindKey{Key: api.Text(public)})
	bind := func(shown tls.Certificate, bearer, body string) (reply, api.Problem) {
		return s.post(t, s.showing(t, shown), "/v1/rejoin/key", bearer, body)
	}
	weak, _ := publicPEM(t, csrtest.RSA1024())
	for what, malformed := range map[string]string{
		"no key": "", "two keys": public + public, "weak": weak, "certificate": string(m.chain), "broken": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte{1}})),
	} {
		if got, p := bind(m.valid(t), "", jsonOf(t, api.BindKey{Key: api.Text(malformed)})); got.status != 400 || p.Field != "key" || what == "two keys" && !strings.Contains(p.Detail, "there are 2 PEM blocks") {
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
	const unbind = ". If you do not expect this, unbind it: kubejoin claim release worker-1"
	if len(events) != 4 || !strings.HasSuffix(events[0], unbind) || events[1] != events[0] || strings.Contains(events[2]+events[3], "unbind it") {
		t.Errorf("got Events %q, want two that a key was bound, with the command that unbinds it, and two refusals", events)
	}
}

// A custom authenticator may identify the node without its certificate. The request may then have no certificate, or
// the certificate of another user.
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

// Without a CA or claims, the server accepts and refuses no rejoin: it cannot verify a certificate now.
func TestRejoinWithoutCAOrClaims(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	expired, bound, a := m.expired(t, s.ca, nil), s.bind(t, m).selfSigned(t), s.Certificates.Authority
	for _, test := range []struct {
		change func()
		shown  tls.Certificate
		log    string
	}{
		{func() { a.Signers = signer.FixedSigners(nil) }, expired, "kubejoin has no CA for client certificates of nodes"},
		{func() {
			a.Signers = signer.FixedSigners(must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errReset }, 0)))
		}, expired, errReset.Error()},
		{func() { a.Nodes.Claims = storetest.Fail(errAway, "Claims.Get.cached").Claims(a.Nodes.Claims) }, bound, "claim of node worker-1: away"},
	} {
		test.change()
		if got, p := s.post(t, s.showing(t, test.shown), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 503 || !p.Named("authentication-unavailable") || !strings.Contains(s.logs.String(), test.log) {
			t.Errorf("got %d %s, want 503, and %q in the log:\n%s", got.status, got.body, test.log, s.logs)
		}
	}
}

// A rejoin is charged to the key that it has proven, before any state is read. Only its node's valid certificate charges the
// node.
func TestRejoinsHaveTheRateOfTheirKey(t *testing.T) {
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
	kept := s.bind(t, m)
	keys := map[string]tls.Certificate{"bound key": kept.selfSigned(t), "expired": m.expired(t, s.ca, nil)}
	for what, cert := range keys {
		for range 4 {
			if got, p := s.post(t, s.showing(t, cert), certificatePath, "", csr(t, ofNode("worker-1"), cert.PrivateKey.(crypto.Signer))); got.status != 403 {
				t.Fatalf("%s: got %d %+v, want a refusal", what, got.status, p)
			}
		}
	}
	closed = true
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: keys["bound key"].Leaf.Subject}
	keys["bound key, another certificate"] = madeBy(t, template, template, kept.key, kept.key)
	keys["expired, another certificate"] = m.expired(t, s.ca, func(c *x509.Certificate) { c.SerialNumber = big.NewInt(2) })
	for what, cert := range keys {
		for range 5 {
			if got, p := s.post(t, s.showing(t, cert), certificatePath, "", nodeCSR(t, "worker-1")); got.status != 429 || !strings.Contains(p.Detail, "system:node:worker-1") {
				t.Errorf("%s: got %d %s, want 429 that names the user", what, got.status, got.body)
			}
		}
	}
	closed = false
	for i := range 5 { // binding was charged, too
		if got, p := s.post(t, s.showing(t, m.valid(t)), certificatePath, "", nodeCSR(t, "worker-1")); (got.status == 200) != (i < 3) {
			t.Errorf("renewal %d: got %d %+v", i, got.status, p)
		}
	}
	if got, _ := s.post(t, s.showing(t, m.valid(t)), "/v1/rejoin/key", "", ""); got.status != 429 {
		t.Errorf("another key: got %d %s, want 429", got.status, got.body)
	}
	if got, p := s.post(t, s.showing(t, other.expired(t, s.ca, nil)), certificatePath, "", nodeCSR(t, "worker-2")); got.status != 200 {
		t.Errorf("another node: got %d %+v", got.status, p)
	}
}

// Catches a revoked machine that can send requests without a limit.
func TestRevokedCredentialsHaveARateOfTheirOwn(t *testing.T) {
	s, guard := revoking(t)
	s.Limits.UserRate = atFirst(3)
	s.start(t)
	m := s.machine(t, "worker-1")
	must.Value(guard.Revoke(t.Context(), revocation.Entry{Node: "worker-1"}))(t)
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

// A credential that the handshake does not prove is a failed authentication. If an address has used up its failures,
// only machines that prove themselves may still be served.
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
		for range 10 * httplimit.FailureBurst {
			if got, _ := s.post(t, guesses[0], certificatePath, "", ""); got.status == 429 {
				return
			}
		}
		t.Fatal("guesses have no limit")
	}
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
