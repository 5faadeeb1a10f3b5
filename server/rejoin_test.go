package server_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/rejoin/proof"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens"
	"sigs.k8s.io/yaml"
)

// A machine is a node with its key and certificate.
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

// rejoin returns the body of a request to rejoin, or to bind a key.
func (m machine) rejoin(t testing.TB, s *site, bind crypto.Signer) string {
	t.Helper()
	challenge, _, err := s.Rejoin.Challenge()
	if err != nil {
		t.Fatal(err)
	}
	text := proof.Rejoin(challenge, m.node, "127.0.0.1")
	req := api.BindKey{Rejoin: api.Rejoin{Certificate: api.Text(m.chain), Challenge: api.Text(challenge), Server: "127.0.0.1"}}
	if m.chain == nil {
		public, _ := publicPEM(t, m.key)
		req.Node, req.PublicKey = api.Text(m.node), api.Text(public)
	}
	if bind != nil {
		public, id := publicPEM(t, bind)
		req.Key, text = api.Text(public), proof.Bind(challenge, m.node, "127.0.0.1", id)
	}
	signature, err := proof.Sign(m.key, text)
	if err != nil {
		t.Fatal(err)
	}
	req.Signature = api.Text(base64.StdEncoding.EncodeToString(signature))
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// expired returns the machine with another certificate of its key, which has expired. edit may change it.
func (m machine) expired(t testing.TB, ca *signer.CA, edit func(*x509.Certificate)) machine {
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
	der, err := x509.CreateCertificate(rand.Reader, template, issuer.Leaf, m.key.Public(), issuer.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	m.chain = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return m
}

// comeBack lets a machine rejoin and get a certificate for a new key. It returns the machine with that key, and with a
// certificate that has expired.
func (s *site) comeBack(t *testing.T, m machine) machine {
	t.Helper()
	got := s.do(t, "POST", "/v1/rejoin", "", "application/json", m.rejoin(t, s, nil))
	var kubeconfig struct {
		Users []struct{ User struct{ Token string } }
	}
	if err := yaml.Unmarshal([]byte(got.body), &kubeconfig); err != nil || got.status != 200 || len(kubeconfig.Users) != 1 {
		t.Fatalf("got %d %v %s", got.status, err, tokens.Redact(got.body))
	}
	m.key = csrtest.NewKey()
	if _, err := s.by(kubeconfig.Users[0].User.Token).Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, ofNode(m.node), m.key))}); err != nil {
		t.Fatal(err)
	}
	return m.expired(t, s.ca, nil)
}

// Only the node itself may rejoin: the server must refuse each other request, and say why. Each row starts with a node
// whose certificate has expired.
func TestServerRefusesRejoinsOfOthers(t *testing.T) {
	// A scene is a site with the machine worker-1, and the UIDs of its Nodes.
	type scene struct {
		*site
		m     machine
		nodes map[string]string
	}
	foreign, _ := certifying(t)
	usage := func(u x509.ExtKeyUsage) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{u} }
	}
	own := func(t *testing.T, s *scene) string { return s.m.rejoin(t, s.site, nil) }
	after := func(change func(*scene)) func(*testing.T, *scene) string {
		return func(t *testing.T, s *scene) string {
			change(s)
			return own(t, s)
		}
	}
	revokes := func(node string) func(*testing.T, *scene) string {
		return func(t *testing.T, s *scene) string {
			guard := &revocation.Guard{Store: rowlist.New(s.store.Revocations())}
			s.Certificates.Authority.Revocations = guard
			if _, err := guard.Revoke(t.Context(), revocation.Entry{Node: node}); err != nil {
				t.Fatal(err)
			}
			return own(t, s)
		}
	}
	for name, test := range map[string]struct {
		status int
		reason string
		body   func(t *testing.T, s *scene) string
	}{
		"the node itself": {200, "", own},
		"replayed challenge": {403, "ChallengeUsed", func(t *testing.T, s *scene) string {
			body := own(t, s)
			if got := s.do(t, "POST", "/v1/rejoin", "", "application/json", body); got.status != 200 {
				t.Fatalf("got %d %s", got.status, tokens.Redact(got.body))
			}
			return body
		}},
		"challenge of another server": {401, "ChallengeInvalid", func(t *testing.T, s *scene) string { return s.m.rejoin(t, foreign, nil) }},
		"key of another node": {401, "SignatureInvalid", func(t *testing.T, s *scene) string {
			return machine{"worker-1", s.machine(t, "worker-2").key, s.m.chain}.rejoin(t, s.site, nil)
		}},
		"certificate of this name with the key of another node": {403, "KeyNotCurrent", func(t *testing.T, s *scene) string {
			return machine{node: "worker-1", key: s.machine(t, "worker-2").key}.expired(t, s.ca, nil).rejoin(t, s.site, nil)
		}},
		"restored disk image": {403, "KeyNotCurrent", func(t *testing.T, s *scene) string {
			s.comeBack(t, s.comeBack(t, s.m))
			return own(t, s)
		}},
		"deleted Node":         {403, "NodeNotFound", after(func(s *scene) { delete(s.nodes, "worker-1") })},
		"Node created again":   {403, "NodeReplaced", after(func(s *scene) { s.nodes["worker-1"] = "uid-2" })},
		"revoked node":         {403, "Revoked", revokes("worker-1")},
		"another node revoked": {200, "", revokes("worker-2")},
		"budget spent": {403, "RejoinBudgetSpent", func(t *testing.T, s *scene) string {
			s.Rejoin.Budget = 1
			s.m = s.comeBack(t, s.m)
			return own(t, s)
		}},
		"window passed": {403, "RejoinTooLate", after(func(s *scene) { s.Certificates.Authority.Nodes.RejoinWindow = time.Second })},
		"certificate of another CA": {401, "CertificateInvalid", func(t *testing.T, s *scene) string {
			return s.m.expired(t, foreign.ca, nil).rejoin(t, s.site, nil)
		}},
		"serving certificate": {401, "CertificateInvalid", func(t *testing.T, s *scene) string {
			return s.m.expired(t, s.ca, usage(x509.ExtKeyUsageServerAuth)).rejoin(t, s.site, nil)
		}},
		"certificate for a user": {401, "CertificateInvalid", func(t *testing.T, s *scene) string {
			return s.m.expired(t, s.ca, func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "jane", Organization: []string{"dev"}} }).rejoin(t, s.site, nil)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			base, _ := certifying(t)
			s := &scene{site: base, nodes: map[string]string{}}
			s.Certificates.Authority.Nodes.Node = func(_ context.Context, name string) (string, error) {
				if uid := s.nodes[name]; uid != "" {
					return uid, nil
				}
				return "", tokens.ErrNotFound
			}
			s.start(t)
			s.m = s.machine(t, "worker-1").expired(t, s.ca, nil)
			s.nodes["worker-1"] = "uid-1"
			if _, err := s.store.Claims().Update(t.Context(), "worker-1", func(c *tokens.Claim) error { // as claim-cleaner does
				c.NodeUID, c.Identity.NodeUID = "uid-1", "uid-1"
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			body := test.body(t, s)
			before, err := s.store.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := s.do(t, "POST", "/v1/rejoin", "", "application/json", body)
			var p api.Problem
			_ = json.Unmarshal([]byte(got.body), &p) // fails for a kubeconfig
			if got.status != test.status || p.Reason != test.reason {
				t.Errorf("got %d %s, want %d %s", got.status, tokens.Redact(got.body), test.status, test.reason)
			}
			if all, err := s.store.List(t.Context()); err != nil || test.status != 200 && len(all) != len(before) {
				t.Errorf("got %d tokens, %v, want the %d from before", len(all), err, len(before))
			}
		})
	}
}

// Over HTTPS, a machine gets a bootstrap kubeconfig, and with its token a certificate. Each refusal has its status and
// reason, and a challenge is good once.
func TestNodeRejoinsOverHTTPS(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	challenge, _, got := askFor[api.RejoinChallenge](t, s, "POST", "/v1/rejoin/challenge", "")
	if left := time.Until(challenge.Expires); got.status != 200 || left > time.Minute || left < 30*time.Second || got.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %+v", got.status, challenge)
	}
	body := m.rejoin(t, s, nil)
	got = s.do(t, "POST", "/v1/rejoin", "", "application/json", body)
	var kubeconfig struct {
		Clusters []struct{ Cluster struct{ Server string } }
		Users    []struct{ User struct{ Token string } }
	}
	if err := yaml.Unmarshal([]byte(got.body), &kubeconfig); err != nil || got.status != 200 || got.header.Get("Content-Type") != "application/yaml" || len(kubeconfig.Users) != 1 {
		t.Fatalf("got %d %v %s", got.status, err, tokens.Redact(got.body))
	}
	if at := kubeconfig.Clusters[0].Cluster.Server; at != "https://api.example.com:6443" {
		t.Errorf("got server %s", at)
	}
	_, p, got := askFor[api.RejoinChallenge](t, s, "POST", "/v1/rejoin", body)
	if got.status != 403 || !p.Named(api.ProblemRejoinRefused) || p.Reason != "ChallengeUsed" {
		t.Errorf("replayed: got %d %+v", got.status, p)
	}
	again := s.do(t, "POST", "/v1/rejoin", "", "application/json", m.rejoin(t, s, nil))
	if again.status != 200 || !strings.Contains(again.body, kubeconfig.Users[0].User.Token) {
		t.Errorf("another request: got %d, want the same token", again.status)
	}
	chain, err := s.by(kubeconfig.Users[0].User.Token).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "worker-1"))})
	if err != nil {
		t.Fatal(err)
	}
	s.verified(t, chain, x509.ExtKeyUsageClientAuth)
	if _, err := s.by(kubeconfig.Users[0].User.Token).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "worker-2"))}); err == nil {
		t.Error("the token admits another node")
	}
	stranger := machine{"worker-1", csrtest.NewKey(), m.chain}
	if _, p, got = askFor[api.RejoinChallenge](t, s, "POST", "/v1/rejoin", stranger.rejoin(t, s, nil)); got.status != 401 || !p.Named(api.ProblemRejoinUnproven) || p.Reason != "SignatureInvalid" {
		t.Errorf("another key: got %d %+v", got.status, p)
	}
	if got.header.Get("WWW-Authenticate") == "" {
		t.Error("got no WWW-Authenticate")
	}
	if strings.Contains(s.logs.String(), kubeconfig.Users[0].User.Token[7:]) {
		t.Error("the log has the secret of the token")
	}
}

// A key that was bound over HTTPS lets the machine come back without its certificate.
func TestNodeBindsKeyOverHTTPS(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m, kept := s.machine(t, "worker-1"), csrtest.Ed25519()
	_, id := publicPEM(t, kept)
	key, p, got := askFor[api.BoundKey](t, s, "POST", "/v1/rejoin/key", m.rejoin(t, s, kept))
	if got.status != 200 || key.Key != id || key.Kind != api.KindBoundKey {
		t.Fatalf("got %d %+v %+v, want key %s", got.status, key, p, id)
	}
	if got := s.do(t, "POST", "/v1/rejoin", "", "application/json", machine{node: "worker-1", key: kept}.rejoin(t, s, nil)); got.status != 200 {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if _, p, got := askFor[api.BoundKey](t, s, "POST", "/v1/rejoin", machine{node: "worker-2", key: kept}.rejoin(t, s, nil)); got.status != 403 || p.Reason != "KeyNotCurrent" {
		t.Errorf("another node: got %d %+v", got.status, p)
	}
}

func TestRejoinRefusesMalformedRequests(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	for name, test := range map[string]struct {
		edit  func(map[string]string)
		field string
	}{
		"no challenge":        {func(f map[string]string) { delete(f, "challenge") }, "challenge"},
		"no server":           {func(f map[string]string) { delete(f, "server") }, "server"},
		"no signature":        {func(f map[string]string) { delete(f, "signature") }, "signature"},
		"signature as hex":    {func(f map[string]string) { f["signature"] = "12:34" }, "signature"},
		"no certificate":      {func(f map[string]string) { delete(f, "certificate") }, "certificate"},
		"node beside it":      {func(f map[string]string) { f["node"] = "worker-1" }, "certificate"},
		"node without key":    {func(f map[string]string) { delete(f, "certificate"); f["node"] = "worker-1" }, "certificate"},
		"key without node":    {func(f map[string]string) { delete(f, "certificate"); f["publicKey"] = "x" }, "certificate"},
		"key to bind":         {func(f map[string]string) { f["key"] = "x" }, "key"},
		"empty certificate":   {func(f map[string]string) { f["certificate"] = "" }, "certificate"},
		"unknown field":       {func(f map[string]string) { f["token"] = "x" }, "token"},
		"all three of a kind": {func(f map[string]string) { f["node"], f["publicKey"] = "worker-1", "x" }, "certificate"},
	} {
		fields := map[string]string{}
		if err := json.Unmarshal([]byte(m.rejoin(t, s, nil)), &fields); err != nil {
			t.Fatal(err)
		}
		test.edit(fields)
		body, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if _, p, got := askFor[api.BoundKey](t, s, "POST", "/v1/rejoin", string(body)); got.status != 400 || p.Field != test.field {
			t.Errorf("%s: got %d %+v, want 400 for %s", name, got.status, p, test.field)
		}
	}
	if _, p, got := askFor[api.BoundKey](t, s, "POST", "/v1/rejoin/key", m.rejoin(t, s, nil)); got.status != 400 || p.Field != "key" {
		t.Errorf("nothing to bind: got %d %+v", got.status, p)
	}
	if got := s.do(t, "POST", "/v1/rejoin?certificate=x", "", "", ""); got.status != 400 {
		t.Errorf("certificate in the URL: got %d", got.status)
	}
}

// What the server cannot do now must be a 503, and without a window a refusal; without a desk there is no path.
func TestRejoinThatIsNotPossible(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := s.machine(t, "worker-1")
	body := m.rejoin(t, s, nil)
	s.Certificates.Authority.Nodes.RejoinWindow = 0
	for _, path := range []string{"/v1/rejoin/challenge", "/v1/rejoin", "/v1/rejoin/key"} {
		sent := map[string]string{"/v1/rejoin": body, "/v1/rejoin/key": strings.Replace(body, "{", `{"key":"x",`, 1)}[path]
		if _, p, got := askFor[api.BoundKey](t, s, "POST", path, sent); got.status != 403 || p.Reason != "RejoinOff" {
			t.Errorf("%s: got %d %+v", path, got.status, p)
		}
	}
	s.Certificates.Authority.Nodes.RejoinWindow = time.Hour
	body = m.rejoin(t, s, nil)
	signers := s.Certificates.Authority.Signers
	s.Certificates.Authority.Signers = nil
	if _, p, got := askFor[api.BoundKey](t, s, "POST", "/v1/rejoin/challenge", ""); got.status != 503 || !p.Named("rejoin-unavailable") {
		t.Errorf("without a CA: got %d %+v", got.status, p)
	}
	s.Certificates.Authority.Signers = signers
	other := newSite(t)
	other.Rejoin, other.ClusterInfo = s.Rejoin, &clusterinfo.Computed{Tokens: other.store}
	other.start(t)
	if _, p, got := askFor[api.BoundKey](t, other, "POST", "/v1/rejoin", body); got.status < 404 {
		t.Errorf("without cluster-info: got %d %+v", got.status, p)
	}
	if _, ok := s.Rejoin.Authority.Nodes.Claims.Find(t.Context(), "worker-1"); ok != nil {
		t.Error(ok)
	}
	none := newSite(t)
	none.start(t)
	if got := none.do(t, "POST", "/v1/rejoin", "", "", ""); got.status != http.StatusNotFound {
		t.Errorf("without a desk: got %d", got.status)
	}
}

// The identity of a node that joined without limits ends with 'claim release', too, and claims show rejoins.
func TestReleaseEndsIdentity(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	m := machine{node: "worker-1", key: csrtest.NewKey()}
	var err error
	if m.chain, err = s.by(s.token(t, nil)).Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, ofNode("worker-1"), m.key))}); err != nil {
		t.Fatal(err)
	}
	s.MaxRemainingLifetime = nil
	if _, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", ""); got.status != 200 {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if _, p, got := askFor[api.Claim](t, s, "POST", "/v1/rejoin", m.rejoin(t, s, nil)); got.status != 403 || p.Reason != "KeyNotCurrent" {
		t.Errorf("after the release: got %d %+v", got.status, p)
	}
	if _, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-1", ""); got.status != 404 {
		t.Errorf("second release: got %d %s", got.status, got.body)
	}
	limited := s.machine(t, "worker-2")
	if got := s.do(t, "POST", "/v1/rejoin", "", "application/json", limited.rejoin(t, s, nil)); got.status != 200 {
		t.Fatalf("got %d %s", got.status, got.body)
	}
	if all, err := s.store.List(t.Context()); err != nil || !slices.ContainsFunc(all, ofRejoin) {
		t.Errorf("got %v, %v, want the token of the rejoin", all, err)
	}
	list, _, _ := askFor[api.ClaimList](t, s, "GET", "/v1/claim", "")
	if len(list.Items) != 1 || len(list.Items[0].Rejoins) != 1 {
		t.Errorf("got claims %+v, want one that rejoined once", list.Items)
	}
	if _, _, got := askFor[api.Claim](t, s, "DELETE", "/v1/claim/worker-2", ""); got.status != 200 {
		t.Errorf("got %d %s", got.status, got.body)
	}
	if all, err := s.store.List(t.Context()); err != nil || slices.ContainsFunc(all, ofRejoin) {
		t.Errorf("after the release: got %v, %v, want no token of the rejoin", all, err)
	}
}

func ofRejoin(r tokens.Record) bool { return r.Limits.Replaces.Name == "worker-2" }
