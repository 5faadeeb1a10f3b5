package server_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/client"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	"github.com/prometheus/client_golang/prometheus/testutil"
	certificates "k8s.io/api/certificates/v1"
)

func TestBootstrapTokenGetsClientCertificateWithinItsLimits(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	token := s.token(t, func(r *tokens.Record) { r.Limits = tokens.Limits{MaxNodes: 1, CertificateDuration: 3 * time.Hour} })
	id, secret, _ := strings.Cut(token, ".")
	for _, media := range []string{"application/pkcs10", "text/plain"} { // a client whose response was lost repeats the request
		got := s.do(t, "POST", certificatePath, token, media, nodeCSR(t, "rack7-1"))
		if got.status != 200 || got.header.Get("Content-Type") != "application/pem-certificate-chain" || got.header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%d %v %s", got.status, got.header, got.body)
		}
		cert := s.verified(t, []byte(got.body), x509.ExtKeyUsageClientAuth)
		if left := time.Until(cert.NotAfter); left > 3*time.Hour || left < 3*time.Hour-time.Minute || cert.Subject.CommonName != "system:node:rack7-1" {
			t.Errorf("got %s for %s, want the 3h of the token", cert.Subject, left)
		}
		if e := kept.last(); e.Outcome != issuance.Issued || e.TokenID != id || e.From != "127.0.0.1" || e.Rule != "nodeclient" || e.Serial != cert.SerialNumber.Text(16) {
			t.Errorf("record %+v", e)
		}
		for _, want := range []string{"user=system:bootstrap:" + id, "serial=" + cert.SerialNumber.Text(16), "signer=" + clientSigner, "CN=system:node:rack7-1"} {
			if log := s.logs.String(); strings.Contains(log, secret) || !strings.Contains(log, want) {
				t.Errorf("the log lacks %s or shows the secret:\n%s", want, log)
			}
		}
	}
	if claim, err := s.store.Claims().Get(t.Context(), "rack7-1", tokens.Live); err != nil || claim.TokenID != id {
		t.Errorf("claim %+v, %v", claim, err)
	}
	_, err := s.by(token).Certificate(t.Context(), signing("", nodeCSR(t, "rack7-2")))
	if p := wantProblem(t, err, 403, api.ProblemCertificateRefused, admission.ReasonTokenSpent); !strings.Contains(p.Detail, "rack7-1 has joined with it") || !strings.Contains(p.Detail, "kubejoin token create") {
		t.Errorf("detail %q", p.Detail)
	}
}

// A refusal is a request for a certificate and its problem.
type refusal struct {
	name            string
	by              *client.Client
	asked           api.SignCertificate
	status          int
	problem, reason string
	want            string // part of the detail
}

// refuses fails the test unless each request is refused, and recorded if its caller is known and it is well formed.
func (s *site) refuses(t *testing.T, kept *record, all ...refusal) {
	t.Helper()
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			before := len(kept.entries)
			chain, err := r.by.Certificate(t.Context(), r.asked)
			if p := wantProblem(t, err, r.status, r.problem, r.reason); chain != nil || !strings.Contains(p.Detail, r.want) {
				t.Errorf("got %q and %q, want %q", chain, p.Detail, r.want)
			}
			reason := r.reason
			if r.problem == "forbidden" {
				reason = approval.ReasonNotPermitted
			}
			if e, n := kept.last(), len(kept.entries)-before; n > 1 || (n == 1) != (r.status == 403) || n == 1 && (e.Outcome != issuance.Refused || e.Reason != reason || e.Subject == "" || e.Message == "" || !strings.Contains(e.Message, r.want)) {
				t.Errorf("got %d new records, the last %+v, want one refusal if the status is 403", n, e)
			}
		})
	}
}

// Package approval tests the rules. Catches a refusal that becomes another problem or is not recorded.
func TestBootstrapTokenGetsNoOtherCertificate(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	good := s.token(t, nil)
	by := s.by(good)
	s.refuses(t, kept,
		refusal{"expired", s.by(s.token(t, func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Second) })), signing("", nodeCSR(t, "w")), 401, "unauthorized", "", ""},
		refusal{"reserved name", by, signing("", nodeCSR(t, "cp-1")), 403, api.ProblemCertificateRefused, admission.ReasonNodeNameReserved, ""},
		refusal{"serving", by, signing(servingSigner, servingCSR(t, "w", "w")), 403, api.ProblemCertificateNotPermitted, approval.ReasonNotByNode, ""},
		refusal{"names in it", by, signing("", servingCSR(t, "w", "w")), 403, api.ProblemCertificateNotPermitted, approval.ReasonNotRecognized, ""},
		refusal{"another signer", by, signing(peerSigner, nodeCSR(t, "w")), 403, api.ProblemCertificateNotPermitted, approval.ReasonNotRecognized, "no rule of signer " + peerSigner},
		refusal{"masters", by, signing("", subjectCSR(t, "system:node:w", "system:nodes", "system:masters")), 403, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction, ""},
	)
	for _, shown := range []string{tokens.Generate().Reveal(), good[:len(good)-1] + "!", good[:7] + tokens.Generate().RevealSecret(), good[:6]} {
		if got := s.do(t, "POST", certificatePath, shown, "", nodeCSR(t, "w")); got.status != 401 {
			t.Errorf("invalid token: got %d %s, want 401", got.status, got.body)
		}
	}
	for _, path := range []string{commandPath, tokenPath} { // no other path accepts a bootstrap token
		if got := s.do(t, "POST", path, good, "", ""); got.status != 401 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestNodeRenewsAndGetsServingCertificate(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	token := s.token(t, func(r *tokens.Record) { r.Limits = tokens.Limits{MaxNodes: 1, CertificateDuration: 2 * time.Hour} })
	must.Value(s.by(token).Certificate(t.Context(), signing("", nodeCSR(t, "w"))))(t)
	node := s.asNode(t, "w")
	chain := must.Value(node.Certificate(t.Context(), signing("", nodeCSR(t, "w"))))(t)
	if cert := s.verified(t, chain, x509.ExtKeyUsageClientAuth); time.Until(cert.NotAfter) > 2*time.Hour {
		t.Errorf("got renewal until %s, want at most the 2h of the claim", cert.NotAfter)
	}
	if e := kept.last(); e.Rule != "selfnodeclient" || e.Requester != "system:node:w" {
		t.Errorf("record %+v", e)
	}
	chain = must.Value(node.Certificate(t.Context(), signing("", servingCSR(t, "w", "w", "w.example.com"))))(t)
	if cert := s.verified(t, chain, x509.ExtKeyUsageServerAuth); !slices.Equal(cert.DNSNames, []string{"w", "w.example.com"}) || cert.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("%q %b", cert.DNSNames, cert.KeyUsage)
	}
	s.refuses(t, kept,
		refusal{"another's", node, signing("", nodeCSR(t, "v")), 403, api.ProblemCertificateRefused, approval.ReasonNodeRestriction, ""},
		refusal{"another's of a signer of one's own", node, signing(peerSigner, nodeCSR(t, "v")), 403, api.ProblemCertificateRefused, approval.ReasonNodeRestriction, ""},
		refusal{"another's name", node, signing("", servingCSR(t, "w", "v")), 403, api.ProblemCertificateNotPermitted, approval.ReasonNameOutOfScope, ""},
		refusal{"a signer with no rules", node, signing(peerSigner, nodeCSR(t, "w")), 403, api.ProblemCertificateNotPermitted, approval.ReasonNotRecognized, ""},
		refusal{"not in group system:nodes", s.as(t, s.userCertificate(t, "system:node:w")), signing(clientSigner, nodeCSR(t, "w")), 403, "forbidden", "", ""},
	)
}

// Catches a serving address that is taken from a forwarding header.
func TestServingAddressIsThatOfTheConnection(t *testing.T) {
	s, _ := certifying(t)
	handler := s.Handler()
	certificate := s.userCertificate(t, "system:node:w", "system:nodes")
	for _, test := range []struct {
		from, forwarded string
		hosts           []string
		status          int
		want            string
	}{
		{"192.0.2.7:40000", "", []string{"192.0.2.7", "w"}, 200, "BEGIN CERTIFICATE"},
		{"[::ffff:192.0.2.7]:40000", "", []string{"192.0.2.7"}, 200, "BEGIN CERTIFICATE"},
		{"192.0.2.7:40000", "192.0.2.8", []string{"192.0.2.8"}, 403, approval.ReasonAddressNotReported},
		{"192.0.2.7:40000", "", []string{"192.0.2.8"}, 403, "only the client address and the names of this machine (192.0.2.7, w, w.example.com), and 192.0.2.8 is not one of them; send the request from 192.0.2.8, or have an operator sign it with: kubejoin sign --signer kubernetes.io/kubelet-serving"},
		{"", "192.0.2.7", []string{"192.0.2.7"}, 503, approval.ReasonFactsUnavailable},
	} {
		r := newRequest("POST", certificatePath, servingCSR(t, "w", test.hosts...))
		r.RemoteAddr, r.TLS = test.from, &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate.Leaf}}
		for _, header := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded"} {
			if test.forwarded != "" {
				r.Header.Set(header, test.forwarded)
			}
		}
		if status, body := served(handler, r); status != test.status || !strings.Contains(body, test.want) {
			t.Errorf("from %s with %q for %q: %d %s", test.from, test.forwarded, test.hosts, status, body)
		}
	}
}

func TestOperatorSignsWithinSignerLimits(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	admin, jane := s.by(adminBearer), subjectCSR(t, "jane", "dev")
	asked := signing(certificates.KubeAPIServerClientSignerName, jane)
	asked.Duration = "20m"
	chain := must.Value(admin.Certificate(t.Context(), asked))(t)
	if cert := s.verified(t, chain, x509.ExtKeyUsageClientAuth); time.Until(cert.NotAfter) > 20*time.Minute || time.Until(cert.NotAfter) < 19*time.Minute {
		t.Errorf("until %s", cert.NotAfter)
	}
	if e := kept.last(); e.Approver != "ada" || e.Requester != "ada" || e.Rule != "" {
		t.Errorf("record %+v", e)
	}
	if _, err := s.as(t, s.userCertificate(t, "bob", "kubejoin:admins")).Certificate(t.Context(), signing(peerSigner, jane)); err != nil {
		t.Errorf("admin with a client certificate: got %v, want a certificate", err)
	}
	refused := func(name string, asked api.SignCertificate, reason, want string) refusal {
		return refusal{name, admin, asked, 403, api.ProblemCertificateRefused, reason, want}
	}
	malformed := func(name, problem, want string, change func(*api.SignCertificate)) refusal {
		asked := signing(peerSigner, jane)
		change(&asked)
		return refusal{name, admin, asked, 400, problem, "", want}
	}
	s.refuses(t, kept,
		refused("masters", signing(peerSigner, subjectCSR(t, "root", "system:masters")), approval.ReasonSubjectRestriction, "system:masters"),
		refused("not what the signer signs", signing(clientSigner, jane), approval.ReasonValidation, "organization"),
		refused("a node's name that is reserved", signing(clientSigner, nodeCSR(t, "cp-1")), admission.ReasonNodeNameReserved, "cp-1"),
		malformed("no signer", "invalid-field", "want one of example.com/etcd-peer, kubernetes.io/", func(a *api.SignCertificate) { a.Signer = "" }),
		malformed("unknown signer", "invalid-field", "want one of example.com/etcd-peer, kubernetes.io/", func(a *api.SignCertificate) { a.Signer = "example.com/other" }),
		malformed("too short", "invalid-field", "duration: 9m59s given, want at least 10m", func(a *api.SignCertificate) { a.Duration = "9m59s" }),
		malformed("too long", "invalid-field", "at most", func(a *api.SignCertificate) { a.Duration = "2000000h" }),
		malformed("no duration", "invalid-field", "\"1y\" given, want a duration", func(a *api.SignCertificate) { a.Duration = "1y" }),
		malformed("unknown usage", "invalid-field", "usages", func(a *api.SignCertificate) { a.Usages = []string{"cert sign"} }),
		malformed("a usage twice", "invalid-field", "twice", func(a *api.SignCertificate) { a.Usages = []string{"client auth", "client auth"} }),
		malformed("nothing", "invalid-body", "--data-binary", func(a *api.SignCertificate) { a.CSR = nil }),
		refusal{"who may not", s.by(viewerBearer), signing(peerSigner, jane), 403, "forbidden", "", `user "vic" may not sign signers.certificates.k8s.io example.com/etcd-peer`},
		refusal{"who has a certificate and may not", s.as(t, s.userCertificate(t, "eve", "dev")), signing(peerSigner, jane), 403, "forbidden", "", `user "eve"`},
		refusal{"nobody", s.by(""), signing(peerSigner, jane), 401, "unauthorized", "", "bootstrap token"},
	)
}

func TestCertificateHasWarningOfItsSigner(t *testing.T) {
	s, _ := certifying(t)
	s.Certificates.Warning = func(_ context.Context, signer string) string {
		if signer == peerSigner {
			return `run: kubectl create "x"`
		}
		return ""
	}
	s.start(t)
	got := s.do(t, "POST", certificatePath+"?signer="+peerSigner, adminBearer, "application/pkcs10", subjectCSR(t, "peer"))
	if want := `299 - "run: kubectl create \"x\""`; got.status != 200 || got.header.Get("Warning") != want {
		t.Errorf("got %d and Warning %s, want 200 and %s", got.status, got.header.Get("Warning"), want)
	}
	got = s.do(t, "POST", certificatePath, s.token(t, once), "application/pkcs10", nodeCSR(t, "worker-1"))
	if _, found := got.header["Warning"]; got.status != 200 || found {
		t.Errorf("other signer: got %d and %v, want 200 and no warning", got.status, got.header)
	}
}

// Catches a permission for example.com/* that does not cover example.com/etcd-peer.
func TestSignPermissionForDomainCoversItsSigners(t *testing.T) {
	s, _ := certifying(t)
	var asked []string
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		asked = append(asked, a.String())
		if a == (auth.Access{Verb: "sign", Resource: "signers", Group: "certificates.k8s.io", Name: "example.com/*"}) {
			return nil
		}
		return auth.ErrForbidden
	}
	s.start(t)
	if _, err := s.by(viewerBearer).Certificate(t.Context(), signing(peerSigner, subjectCSR(t, "jane"))); err != nil {
		t.Error(err)
	}
	_, err := s.by(viewerBearer).Certificate(t.Context(), signing(certificates.KubeAPIServerClientSignerName, subjectCSR(t, "jane")))
	wantProblem(t, err, 403, "forbidden", "")
	if want := []string{
		"sign signers.certificates.k8s.io example.com/etcd-peer", "sign signers.certificates.k8s.io example.com/*",
		"sign signers.certificates.k8s.io kubernetes.io/kube-apiserver-client", "sign signers.certificates.k8s.io kubernetes.io/*",
	}; !slices.Equal(asked, want) {
		t.Errorf("got permission checks %q, want %q", asked, want)
	}
}

// Names that Kubernetes and kubeadm reserve also need the permission to approve. Catches a caller that may only sign and
// makes itself a cluster admin.
func TestReservedNamesNeedPermissionToApprove(t *testing.T) {
	s, kept := certifying(t)
	all := s.Certificates.Authority.Signers()
	all[approval.SuperAdminSigner] = must.Get(signer.NewSigner(approval.SuperAdminSigner, signer.Fixed(s.ca), all[peerSigner].Profile(), func(approval.Request) error { return nil }))
	s.Certificates.Authority.Signers = signer.FixedSigners(all)
	may := map[string]bool{"sign": true}
	s.Callers.Authorize = func(_ *http.Request, _ auth.User, a auth.Access) error {
		if may[a.Verb] && a.Resource == "signers" && a.Group == certificates.GroupName {
			return nil
		}
		return fmt.Errorf("%w: not %s", auth.ErrForbidden, a)
	}
	s.start(t)
	ask := func(signer, name string, organizations ...string) error {
		_, err := s.by(viewerBearer).Certificate(t.Context(), signing(signer, subjectCSR(t, name, organizations...)))
		return err
	}
	const users = certificates.KubeAPIServerClientSignerName
	for _, free := range [][]string{{"jane", "dev"}, {"system"}, {"system:node:w", "system:nodes"}} {
		if err := ask(users, free[0], free[1:]...); err != nil {
			t.Errorf("%q: %v", free, err)
		}
	}
	reserved := [][]string{{users, "jane", "dev", "system:cluster-admins"}, {users, "system:node:w"}, {approval.SuperAdminSigner, approval.SuperAdmin, "system:masters"}}
	for _, r := range reserved {
		p := wantProblem(t, ask(r[0], r[1], r[2:]...), 403, "forbidden", "")
		if !strings.Contains(p.Detail, "may not approve signers.certificates.k8s.io "+r[0]) || !strings.Contains(kept.last().Message, "approve") {
			t.Errorf("%q: %q, recorded %+v", r, p.Detail, kept.last())
		}
	}
	// The problem shortens a name. It must not leave a part of a token.
	p := wantProblem(t, ask(users, "system:"+strings.Repeat("-", 80)+"8w4usg.qwertzuiopasdfgh"), 403, "forbidden", "")
	if said := p.Detail + kept.last().Message; strings.Contains(said, "8w4usg.q") {
		t.Error(said)
	}
	may["approve"] = true
	for _, r := range reserved {
		if err := ask(r[0], r[1], r[2:]...); err != nil {
			t.Errorf("%q with permission to approve: %v", r, err)
		}
	}
	wantProblem(t, ask(peerSigner, approval.SuperAdmin, "system:masters"), 403, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction)
	may["sign"] = false
	wantProblem(t, ask(users, "jane"), 403, "forbidden", "")
}

// Catches a default usage that the signer does not allow or that does not fit the key: only RSA keys get key
// encipherment, because TLS 1.2 may need it.
func TestDefaultUsagesFitSignerAndKey(t *testing.T) {
	s, _ := certifying(t)
	all := maps.Clone(s.Certificates.Authority.Signers())
	only := signer.ProfileConfig{Usages: []certificates.KeyUsage{certificates.UsageClientAuth}}
	all[certificates.KubeAPIServerClientSignerName] = must.Get(signer.NewSigner(certificates.KubeAPIServerClientSignerName, signer.Fixed(s.ca), only, nil))
	s.Certificates.Authority.Signers = signer.FixedSigners(all)
	s.start(t)
	key := must.Get(rsa.GenerateKey(rand.Reader, 2048))
	const encipherment = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	for _, test := range []struct {
		by     *client.Client
		signer string
		csr    string
		want   x509.KeyUsage
	}{
		{s.by(s.token(t, nil)), "", csr(t, ofNode("rsa"), key), encipherment},
		{s.by(s.token(t, nil)), "", nodeCSR(t, "ecdsa"), x509.KeyUsageDigitalSignature},
		{s.by(adminBearer), peerSigner, csr(t, ofNode("rsa"), key), encipherment},
		{s.by(adminBearer), peerSigner, nodeCSR(t, "ecdsa"), x509.KeyUsageDigitalSignature},
		{s.by(adminBearer), certificates.KubeAPIServerClientSignerName, subjectCSR(t, "jane"), 0},
	} {
		chain := must.Value(test.by.Certificate(t.Context(), signing(test.signer, test.csr)))(t)
		if cert := s.verified(t, chain, x509.ExtKeyUsageClientAuth); cert.KeyUsage != test.want {
			t.Errorf("%s of %q: got key usage %b, want %b", cert.Subject, test.signer, cert.KeyUsage, test.want)
		}
	}
	asked := signing(certificates.KubeAPIServerClientSignerName, subjectCSR(t, "jane")) // a usage that the client requests is not dropped
	asked.Usages = []string{"digital signature", "client auth"}
	_, err := s.by(adminBearer).Certificate(t.Context(), asked)
	wantProblem(t, err, 403, api.ProblemCertificateRefused, approval.ReasonValidation)
}

func TestCertificateRequestFormats(t *testing.T) {
	s, _ := certifying(t)
	token, good := s.token(t, nil), nodeCSR(t, "w")
	handler := s.Handler()
	for _, test := range []struct {
		query, contentType, body string
		status                   int
		want                     string
	}{
		{"", "", good, 200, ""},
		{"", "application/x-www-form-urlencoded", good, 200, ""}, // curl
		{"", "application/octet-stream", good, 200, ""},
		{"", "application/x-pem-file", good, 200, ""},
		{"", "text/plain; charset=utf-8", good, 200, ""},
		{"", "application/json", good, 415, "application/pkcs10"},
		{"", `text/plain; charset="`, good, 415, "application/pkcs10"},
		{"?usages=digital+signature,client+auth", "", good, 200, ""},
		{"?usages=digital%20signature&usages=client%20auth", "", good, 200, ""},
		{"?usages=server%20auth", "", good, 403, `"reason":"NotRecognized"`},
		{"?signer=", "", good, 400, `"field":"signer"`},
		{"?duration=", "", good, 400, `"field":"duration"`},
		{"?usages=", "", good, 400, `"field":"usages"`},
		{"", "", strings.ReplaceAll(good, "\n", ""), 400, "--data-binary"}, // as curl -d sends it
	} {
		w := send(handler, certificatePath+test.query, token, test.contentType, strings.NewReader(test.body))
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
			t.Errorf("%s %s: %d %s, want %d %s", test.query, test.contentType, w.Code, w.Body, test.status, test.want)
		}
	}
	if w := send(newSite(t).Handler(), certificatePath, token, "", strings.NewReader(good)); w.Code != 404 {
		t.Errorf("without a CA: %d %s", w.Code, w.Body)
	}
}

// Catches a client certificate of another CA, or without a user name, that authenticates a caller.
func TestClientCertificateMustComeFromTheClientCA(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	request := signing(clientSigner, nodeCSR(t, "w"))
	both := s.asNode(t, "w")
	both.Bearer = viewerBearer // takes precedence over the certificate
	for c, status := range map[*client.Client]int{
		s.as(t, newSite(t).userCertificate(t, "system:node:w", "system:nodes")): 401, s.as(t, s.userCertificate(t, "", "system:nodes")): 401, both: 403,
	} {
		_, err := c.Certificate(t.Context(), request)
		wantProblem(t, err, status, map[int]string{401: "unauthorized", 403: "forbidden"}[status], "")
	}
	// Without client certificates and without tokens of users, nobody is authenticated.
	s.Certificates.ClientCertificate, s.Callers.Authenticate, s.Registerer = nil, nil, nil
	s.start(t)
	for c, want := range map[*client.Client]string{s.asNode(t, "w"): "authentication required", s.by(adminBearer): "does not accept these credentials"} {
		_, err := c.Certificate(t.Context(), request)
		if p := wantProblem(t, err, 401, "unauthorized", ""); !strings.Contains(p.Detail, want) {
			t.Errorf("%q, want %q", p.Detail, want)
		}
	}
}

// Catches a fallback to another authentication after a client certificate was refused or could not be checked.
func TestRefusedClientCertificateEndsAuthentication(t *testing.T) {
	for err, want := range map[error]int{auth.ErrForbidden: 403, auth.ErrBadCredentials: 401, errors.New("the CA cannot be read"): 503, auth.ErrNoCredentials: 200} {
		s, _ := certifying(t)
		s.Certificates.ClientCertificate = func(*http.Request) (auth.User, error) { return auth.User{}, fmt.Errorf("x: %w", err) }
		s.Callers.Authenticate = func(*http.Request) (auth.User, error) {
			return auth.User{Name: "ada", Groups: []string{"kubejoin:admins"}}, nil
		}
		if w := send(s.Handler(), certificatePath+"?signer="+clientSigner, "", "", strings.NewReader(nodeCSR(t, "worker-1"))); w.Code != want {
			t.Errorf("%v: %d %s, want %d", err, w.Code, w.Body, want)
		}
	}
}

// Catches a temporary failure that becomes a final refusal, a final refusal that makes the client retry forever, and a
// response that shows an internal cause.
func TestErrorsOfAuthorityAreProblems(t *testing.T) {
	t.Parallel()
	const away = "the disk is away"
	clients := certificates.KubeAPIServerClientSignerName
	noCA := signer.FixedSigners(must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errors.New(away) }, 0)))
	for name, test := range map[string]struct {
		change          func(s *site)
		bearer          string // empty: a token for one node; node: a client certificate
		signer          string
		status          int
		problem, reason string
		log             string
	}{
		"tokens": {func(s *site) { s.Tokens = failingStore(s.store, errors.New(away)) }, "", "", 503, "tokens-unavailable", "", away},
		"CA":     {func(s *site) { s.Certificates.Authority.Signers = noCA }, "", "", 503, api.ProblemCertificateWaits, approval.ReasonFactsUnavailable, away},
		"claims": {func(s *site) {
			s.Certificates.Authority.Nodes.Claims = storetest.Fail(errors.New(away), "Claims.Commit").Claims(s.Claims)
		}, "", "", 503, api.ProblemCertificateWaits, approval.ReasonFactsUnavailable, away},
		"authorizer": {func(s *site) {
			s.Callers.Authorize = func(*http.Request, auth.User, auth.Access) error { return errors.New(away) }
		}, adminBearer, clients, 503, "authorization-unavailable", "", away},
		"no authorizer":    {func(s *site) { s.Callers.Authorize = nil }, adminBearer, clients, 403, "forbidden", "", ""},
		"record":           {func(s *site) { s.Certificates.Authority.Record = issuance.NewWriter(fullDisk{}) }, "", clients, 503, api.ProblemCertificateWaits, approval.ReasonFactsUnavailable, "no space left"},
		"record of a user": {func(s *site) { s.Certificates.Authority.Record = issuance.NewWriter(fullDisk{}) }, viewerBearer, clients, 503, api.ProblemCertificateWaits, approval.ReasonFactsUnavailable, "no space left"},
		"signer that is no longer configured": {func(s *site) { // the configuration changes meanwhile
			all := s.Certificates.Authority.Signers()
			s.Certificates.Authority.Signers = func() map[string]signer.Signer { now := all; all = nil; return now }
		}, adminBearer, clients, 400, "invalid-field", "", ""},
		"deleted Node": {func(s *site) {
			asked, now := 0, time.Now()
			s.Certificates.Authority.Nodes.Node = func(context.Context, string) (string, error) {
				if asked++; asked > 1 {
					return "", tokens.ErrNotFound
				}
				return "uid", nil
			}
			s.Certificates.Authority.Now = func() time.Time { now = now.Add(time.Second); return now } // so that the signer retries
		}, "node", "", 503, api.ProblemCertificateWaits, admission.ReasonNodeNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := certifying(t)
			bearer := cmp.Or(test.bearer, s.token(t, once))
			test.change(s)
			s.start(t)
			by := s.by(bearer)
			if bearer == "node" {
				by = s.asNode(t, "w")
			}
			_, err := by.Certificate(t.Context(), signing(test.signer, nodeCSR(t, "w")))
			p := wantProblem(t, err, test.status, test.problem, test.reason)
			if (p.RetryAfter > 0) != (test.status == 503) || strings.Contains(p.Detail, away) || strings.Contains(p.Detail, "no space") || !strings.Contains(s.logs.String(), test.log) {
				t.Errorf("%+v\n%s", p, s.logs)
			}
		})
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// No person can approve a request without a CSR object. Catches such a request that waits for approval.
func TestRefusesWhatOnlyAPersonCouldApprove(t *testing.T) {
	s, kept := certifying(t)
	all := maps.Clone(s.Certificates.Authority.Signers())
	serving := all[servingSigner]
	serving.Rules = []approval.Rule{approval.KubeletServing{}}
	all[servingSigner] = serving
	s.Certificates.Authority.Signers = signer.FixedSigners(all)
	s.start(t)
	s.refuses(t, kept, refusal{"no scope", s.asNode(t, "w"), signing("", servingCSR(t, "w", "w")), 403, api.ProblemCertificateNotPermitted, approval.ReasonScopeNotConfigured,
		"set --serving-allowed-cidr or --serving-allowed-dns-suffix; an operator can sign it with: kubejoin sign --signer " + servingSigner})
	if strings.Contains(s.logs.String(), "level=ERROR") {
		t.Errorf("got an error in the log, want none:\n%s", s.logs)
	}
}

// In standalone mode the rule may-sign approves nothing. Catches a node that becomes an admin by a group in its
// certificate.
func TestGroupInNodeCertificateMakesNoAdmin(t *testing.T) {
	s, kept := certifying(t)
	all := s.Certificates.Authority.Signers()
	peer := all[peerSigner]
	peer.Rules = []approval.Rule{approval.MaySign{}}
	all[peerSigner] = peer
	s.Certificates.Authority.Signers = signer.FixedSigners(all)
	s.start(t)
	node := s.as(t, s.userCertificate(t, "system:node:worker-1", "system:nodes", "kubejoin:admins"))
	s.refuses(t, kept, refusal{"node", node, signing(peerSigner, subjectCSR(t, "jane")), 403, api.ProblemCertificateNotPermitted, approval.ReasonNotPermitted, ""})
}

// A node over its rate gets 429 with Retry-After.
func TestLimitsCertificateRateOfANode(t *testing.T) {
	s, kept := certifying(t)
	now := time.Now()
	s.Certificates.Authority.Now = func() time.Time { return now } // no rate refills, however slow this machine is
	s.start(t)
	node, request := s.asNode(t, "w"), signing("", nodeCSR(t, "w"))
	for i := range 60 {
		if _, err := node.Certificate(t.Context(), request); err != nil {
			t.Fatalf("certificate %d: %v", i, err)
		}
	}
	for range 3 {
		_, err := node.Certificate(t.Context(), request)
		p := wantProblem(t, err, 429, api.ProblemTooManyRequests, signer.ReasonTooManyCertificates)
		if !strings.Contains(p.Detail, "system:node:w has used up its rate of certificates; retry in ") || p.RetryAfter < time.Second || p.RetryAfter > 20*time.Second {
			t.Errorf("%s, detail %q", p.RetryAfter, p.Detail)
		}
	}
	if n := len(kept.entries); n != 60 {
		t.Errorf("got %d records, want 60", n)
	}
	if said := s.logs.String(); strings.Count(said, "reason=certificate-rate from=system:node:w class=certificate") != 1 || strings.Contains(said, "level=ERROR") {
		t.Errorf("the log:\n%s", said)
	}
	s.wantResults(t, `{result="issued"} 60`, `{result="waits"} 3`)
}

// wantResults compares the metric of certificates.
func (s *site) wantResults(t *testing.T, lines ...string) {
	t.Helper()
	const name = "kubejoin_http_certificates_total"
	text := "# HELP " + name + " Certificate requests over HTTPS, by result: issued, refused, not_permitted, waits or failed (an error of kubejoin). Unauthenticated and malformed requests are not counted.\n# TYPE " + name + " counter\n"
	for _, line := range lines {
		text += name + line + "\n"
	}
	if err := testutil.GatherAndCompare(s.registry(), strings.NewReader(text), name); err != nil {
		t.Error(err)
	}
}

// Operators alert on the result "failed". Catches a count of unauthenticated callers or malformed requests in it.
func TestCountsCertificateResults(t *testing.T) {
	s, _ := certifying(t)
	working := s.Certificates.Authority.Signers
	var signers atomic.Value
	signers.Store(working())
	s.Certificates.Authority.Signers = func() map[string]signer.Signer { return signers.Load().(map[string]signer.Signer) }
	handler := s.Handler()
	token, good := s.token(t, nil), nodeCSR(t, "worker-1")
	want := func(status int, query, bearer, media, body string) {
		t.Helper()
		if w := send(handler, certificatePath+query, bearer, media, strings.NewReader(body)); w.Code != status {
			t.Errorf("%s %.20s: %d %s, want %d", query, body, w.Code, w.Body, status)
		}
	}
	want(200, "", token, "", good)
	for _, bearer := range []string{"", "nobody", "qwertz.0123456789abcdef"} {
		want(401, "", bearer, "", good)
	}
	want(403, "?signer="+peerSigner, viewerBearer, "", good)
	want(400, "", token, "", "no request")
	want(415, "", token, "application/json", "{}")
	want(413, "", token, "", strings.Repeat("x", server.MaxBody+1))
	want(403, "", token, "", nodeCSR(t, "cp-1"))
	want(403, "?signer="+peerSigner, token, "", good)
	results := []string{`{result="issued"} 1`, `{result="not_permitted"} 1`, `{result="refused"} 1`}
	s.wantResults(t, results...)
	signers.Store(must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errors.New("the disk is away") }, 0)))
	want(503, "", token, "", good)
	s.wantResults(t, append([]string{`{result="failed"} 1`}, results...)...)
}
