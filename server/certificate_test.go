package server_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/httplimit"
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
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
	certificates "k8s.io/api/certificates/v1"
)

func TestBootstrapTokenGetsClientCertificateWithinItsLimits(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	token := s.token(t, func(r *tokens.Record) {
		r.Limits = tokens.Limits{MaxNodes: 1, NodeNames: []string{"rack7-*"}, CertificateDuration: 3 * time.Hour}
	})
	id, secret, _ := strings.Cut(token, ".")
	machine := s.by(token)
	_, err := machine.Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "rack8-1"))})
	wantProblem(t, err, 403, api.ProblemCertificateRefused, admission.ReasonNodeNameNotAllowed)

	request := nodeCSR(t, "rack7-1")
	got := s.do(t, "POST", certificatePath, token, "application/pkcs10", request)
	if got.status != 200 || got.header.Get("Content-Type") != "application/pem-certificate-chain" || got.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %v %s", got.status, got.header, got.body)
	}
	cert := s.verified(t, []byte(got.body), x509.ExtKeyUsageClientAuth)
	if cert.Subject.CommonName != "system:node:rack7-1" || !slices.Equal(cert.Subject.Organization, []string{"system:nodes"}) {
		t.Errorf("subject %s", cert.Subject)
	}
	if left := time.Until(cert.NotAfter); left > 3*time.Hour || left < 3*time.Hour-time.Minute {
		t.Errorf("got lifetime %s, want the 3h of the token", left)
	}
	claim, err := s.store.Claims().Get(t.Context(), "rack7-1")
	if err != nil || claim.TokenID != id {
		t.Errorf("claim %+v, %v", claim, err)
	}
	if e := kept.last(); e.Outcome != issuance.Issued || e.TokenID != id || e.From != "127.0.0.1" || e.Rule != "nodeclient" || e.Serial != cert.SerialNumber.Text(16) {
		t.Errorf("record %+v", e)
	}
	// A client whose response was lost repeats the request.
	if got := s.do(t, "POST", certificatePath, token, "text/plain", request); got.status != 200 {
		t.Errorf("repeated request: got %d %s, want 200", got.status, got.body)
	}
	_, err = machine.Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "rack7-2"))})
	if p := wantProblem(t, err, 403, api.ProblemCertificateRefused, admission.ReasonTokenSpent); !strings.Contains(p.Detail, "rack7-1 has joined with it") || !strings.Contains(p.Detail, "kubejoin token create") {
		t.Errorf("detail %q", p.Detail)
	}
	if e := kept.last(); e.Outcome != issuance.Refused || e.Reason != admission.ReasonTokenSpent {
		t.Errorf("record %+v", e)
	}
	if log := s.logs.String(); strings.Contains(log, secret) || !strings.Contains(log, "user=system:bootstrap:"+id) || !strings.Contains(log, "serial="+cert.SerialNumber.Text(16)) ||
		!strings.Contains(log, `signer=kubernetes.io/kube-apiserver-client-kubelet`) || !strings.Contains(log, "CN=system:node:rack7-1") {
		t.Errorf("log:\n%s", log)
	}
}

// Catches a bootstrap token that gets anything but a first client certificate of its own node.
func TestBootstrapTokenGetsNoOtherCertificate(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	for _, test := range []struct {
		name   string
		change func(*tokens.Record)
		asked  api.SignCertificate
		status int
		type_  string
		reason string
	}{
		{name: "expired", change: func(r *tokens.Record) { r.Expires = time.Now().Add(-time.Second) }, asked: api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}, status: 401, type_: "unauthorized"},
		{name: "not for authentication", change: func(r *tokens.Record) { r.Authentication, r.Groups = false, nil }, asked: api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}, status: 401, type_: "unauthorized"},
		{name: "reserved name", asked: api.SignCertificate{CSR: []byte(nodeCSR(t, "cp-1"))}, status: 403, type_: api.ProblemCertificateRefused, reason: admission.ReasonNodeNameReserved},
		{name: "no node's name", asked: api.SignCertificate{CSR: []byte(nodeCSR(t, "Worker_1"))}, status: 403, type_: api.ProblemCertificateRefused, reason: admission.ReasonNodeNameNotAllowed},
		{name: "serving", asked: api.SignCertificate{CSR: []byte(servingCSR(t, "w", "w")), Signer: servingSigner}, status: 403, type_: api.ProblemCertificateNotPermitted, reason: approval.ReasonNotByNode},
		{name: "names in it", asked: api.SignCertificate{CSR: []byte(servingCSR(t, "w", "w"))}, status: 403, type_: api.ProblemCertificateNotPermitted, reason: approval.ReasonNotRecognized},
		{name: "another signer", asked: api.SignCertificate{CSR: []byte(nodeCSR(t, "w")), Signer: peerSigner}, status: 403, type_: api.ProblemCertificateNotPermitted, reason: approval.ReasonNotRecognized},
		{name: "a user", asked: api.SignCertificate{CSR: []byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, nil)), Signer: certificates.KubeAPIServerClientSignerName}, status: 403, type_: api.ProblemCertificateNotPermitted, reason: approval.ReasonNotRecognized},
		{name: "masters", asked: api.SignCertificate{CSR: []byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:w", Organization: []string{"system:nodes", "system:masters"}}}, nil))}, status: 403, type_: api.ProblemCertificateRefused, reason: approval.ReasonSubjectRestriction},
	} {
		t.Run(test.name, func(t *testing.T) {
			token := s.token(t, test.change)
			for range 2 { // the second refusal must not be recorded again
				chain, err := s.by(token).Certificate(t.Context(), test.asked)
				if wantProblem(t, err, test.status, test.type_, test.reason); chain != nil {
					t.Errorf("%s", chain)
				}
			}
			var got []issuance.Entry
			for _, e := range kept.entries {
				if e.TokenID == token[:6] {
					got = append(got, e)
				}
			}
			switch {
			case test.status == 401:
				if len(got) > 0 {
					t.Errorf("got records %+v of an unauthenticated caller, want none", got)
				}
			case len(got) != 1 || got[0].Outcome != issuance.Refused || got[0].Reason != test.reason || got[0].Message == "" || got[0].Subject == "":
				t.Errorf("got records %+v, want one refusal for %s", got, test.reason)
			}
		})
	}
	good := s.token(t, nil)
	for _, shown := range []string{tokens.Generate().Reveal(), good[:len(good)-1] + "!", good[:7] + tokens.Generate().RevealSecret(), good[:6]} {
		got := s.do(t, "POST", certificatePath, shown, "", nodeCSR(t, "w"))
		if got.status != 401 {
			t.Errorf("invalid token: got %d %s, want 401", got.status, got.body)
		}
	}
	// No other path accepts a bootstrap token.
	for _, path := range []string{commandPath, tokenPath} {
		if got := s.do(t, "POST", path, good, "", ""); got.status != 401 {
			t.Errorf("%s: %d %s", path, got.status, got.body)
		}
	}
}

func TestNodeRenewsAndGetsServingCertificate(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	token := s.token(t, func(r *tokens.Record) {
		r.Limits = tokens.Limits{MaxNodes: 1, CertificateDuration: 2 * time.Hour}
	})
	if _, err := s.by(token).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}); err != nil {
		t.Fatal(err)
	}
	node := s.as(t, s.userCertificate(t, "system:node:w", "system:nodes"))
	chain, err := node.Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))})
	if err != nil {
		t.Fatal(err)
	}
	if cert := s.verified(t, chain, x509.ExtKeyUsageClientAuth); time.Until(cert.NotAfter) > 2*time.Hour {
		t.Errorf("got renewal until %s, want at most the 2h of the claim", cert.NotAfter)
	}
	if e := kept.last(); e.Rule != "selfnodeclient" || e.Requester != "system:node:w" {
		t.Errorf("record %+v", e)
	}
	chain, err = node.Certificate(t.Context(), api.SignCertificate{CSR: []byte(servingCSR(t, "w", "w", "w.example.com"))})
	if err != nil {
		t.Fatal(err)
	}
	if cert := s.verified(t, chain, x509.ExtKeyUsageServerAuth); !slices.Equal(cert.DNSNames, []string{"w", "w.example.com"}) || cert.KeyUsage != x509.KeyUsageDigitalSignature {
		t.Errorf("%q %b", cert.DNSNames, cert.KeyUsage)
	}
	for _, test := range []struct {
		name   string
		asked  api.SignCertificate
		type_  string
		reason string
	}{
		{"another's", api.SignCertificate{CSR: []byte(nodeCSR(t, "v"))}, api.ProblemCertificateRefused, approval.ReasonNodeRestriction},
		{"another's serving", api.SignCertificate{CSR: []byte(servingCSR(t, "v", "v"))}, api.ProblemCertificateRefused, approval.ReasonNodeRestriction},
		{"another's of a signer of one's own", api.SignCertificate{CSR: []byte(nodeCSR(t, "v")), Signer: peerSigner}, api.ProblemCertificateRefused, approval.ReasonNodeRestriction},
		{"another's name", api.SignCertificate{CSR: []byte(servingCSR(t, "w", "v"))}, api.ProblemCertificateNotPermitted, approval.ReasonNameOutOfScope},
		{"the API server's", api.SignCertificate{CSR: []byte(servingCSR(t, "w", "api.example.com"))}, api.ProblemCertificateRefused, approval.ReasonNameReserved},
		{"masters", api.SignCertificate{CSR: []byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:w", Organization: []string{"system:masters"}}}, nil)), Signer: peerSigner}, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction},
		{"a signer with no rules", api.SignCertificate{CSR: []byte(nodeCSR(t, "w")), Signer: peerSigner}, api.ProblemCertificateNotPermitted, approval.ReasonNotRecognized},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := node.Certificate(t.Context(), test.asked)
			wantProblem(t, err, 403, test.type_, test.reason)
		})
	}
	// A certificate with a node's name but without the group system:nodes is not a node.
	_, err = s.as(t, s.userCertificate(t, "system:node:w")).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w")), Signer: clientSigner})
	wantProblem(t, err, 403, "forbidden", "")
	// A claimed node name may only be in the serving certificate of that node.
	if _, err := s.store.Claims().Create(t.Context(), tokens.Claim{Node: "u", TokenID: "abcdef"}); err != nil {
		t.Fatal(err)
	}
	_, err = node.Certificate(t.Context(), api.SignCertificate{CSR: []byte(servingCSR(t, "w", "u.example.com"))})
	wantProblem(t, err, 403, api.ProblemCertificateNotPermitted, approval.ReasonNameOfOther)
}

// Catches a serving address that is taken from a forwarding header.
func TestServingAddressIsThatOfTheConnection(t *testing.T) {
	s, _ := certifying(t)
	handler := s.Handler()
	certificate := s.userCertificate(t, "system:node:w", "system:nodes")
	ask := func(from, forwarded string, hosts ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("POST", certificatePath, strings.NewReader(servingCSR(t, "w", hosts...)))
		r.RemoteAddr, r.TLS = from, &tls.ConnectionState{PeerCertificates: []*x509.Certificate{certificate.Leaf}}
		for _, header := range []string{"X-Forwarded-For", "X-Real-Ip", "Forwarded"} {
			if forwarded != "" {
				r.Header.Set(header, forwarded)
			}
		}
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w
	}
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
		{"198.51.100.7:40000", "", []string{"198.51.100.7"}, 403, approval.ReasonNameOutOfScope},
		{"", "192.0.2.7", []string{"192.0.2.7"}, 503, approval.ReasonFactsUnavailable},
	} {
		w := ask(test.from, test.forwarded, test.hosts...)
		if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) || (w.Code == 503) != (w.Header().Get("Retry-After") != "") {
			t.Errorf("from %s with %q for %q: %d %v %s", test.from, test.forwarded, test.hosts, w.Code, w.Header(), w.Body)
		}
	}
}

// Without a CSR object nobody can approve later. Catches a request that waits for approval when no scope is configured.
func TestRefusesServingCertificateWithoutScope(t *testing.T) {
	s, kept := certifying(t)
	all := maps.Clone(s.Certificates.Authority.Signers())
	serving := all[servingSigner]
	serving.Rules = []approval.Rule{approval.KubeletServing{}}
	all[servingSigner] = serving
	s.Certificates.Authority.Signers = signer.FixedSigners(all)
	s.start(t)
	_, err := s.as(t, s.userCertificate(t, "system:node:w", "system:nodes")).Certificate(t.Context(), api.SignCertificate{CSR: []byte(servingCSR(t, "w", "w"))})
	p := wantProblem(t, err, 403, api.ProblemCertificateNotPermitted, approval.ReasonScopeNotConfigured)
	if !strings.Contains(p.Detail, "set --serving-allowed-cidr or --serving-allowed-dns-suffix; an operator can sign it with: kubejoin sign --signer "+servingSigner) || strings.Contains(p.Detail, "kubectl") {
		t.Errorf("detail %q", p.Detail)
	}
	if e := kept.last(); e.Outcome != issuance.Refused || e.Reason != approval.ReasonScopeNotConfigured {
		t.Errorf("got record %+v, want a refusal for %s", e, approval.ReasonScopeNotConfigured)
	}
	if strings.Contains(s.logs.String(), "level=ERROR") {
		t.Errorf("got an error in the log, want none:\n%s", s.logs)
	}
}

func TestOperatorSignsWithinSignerLimits(t *testing.T) {
	s, kept := certifying(t)
	s.start(t)
	admin := s.by(adminBearer)
	jane := x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"dev"}}}
	chain, err := admin.Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: certificates.KubeAPIServerClientSignerName, Duration: "20m"})
	if err != nil {
		t.Fatal(err)
	}
	if cert := s.verified(t, chain, x509.ExtKeyUsageClientAuth); time.Until(cert.NotAfter) > 20*time.Minute || time.Until(cert.NotAfter) < 19*time.Minute {
		t.Errorf("until %s", cert.NotAfter)
	}
	if e := kept.last(); e.Approver != "ada" || e.Requester != "ada" || e.Rule != "" {
		t.Errorf("record %+v", e)
	}
	chain, err = admin.Certificate(t.Context(), api.SignCertificate{CSR: []byte(servingCSR(t, "w", "192.0.2.1")), Signer: peerSigner, Usages: []string{"server auth", "digital signature"}, Duration: "9h"})
	if err != nil {
		t.Fatal(err)
	}
	if cert := s.verified(t, chain, x509.ExtKeyUsageServerAuth); !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}) || time.Until(cert.NotAfter) > 2*time.Hour {
		t.Errorf("got usages %v until %s, want server auth and at most the 2h of the signer", cert.ExtKeyUsage, cert.NotAfter)
	}
	for _, test := range []struct {
		name   string
		client *client.Client
		asked  api.SignCertificate
		status int
		type_  string
		reason string
		want   string
	}{
		{"masters", admin, api.SignCertificate{CSR: []byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}}, nil)), Signer: peerSigner}, 403, api.ProblemCertificateRefused, approval.ReasonSubjectRestriction, "system:masters"},
		{"not what the signer signs", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: clientSigner}, 403, api.ProblemCertificateRefused, approval.ReasonValidation, "organization"},
		{"usages that it has not", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Usages: []string{"code signing"}}, 403, api.ProblemCertificateRefused, approval.ReasonValidation, "code signing"},
		{"a node's name that is reserved", admin, api.SignCertificate{CSR: []byte(nodeCSR(t, "cp-1")), Signer: clientSigner}, 403, api.ProblemCertificateRefused, admission.ReasonNodeNameReserved, "cp-1"},
		{"no signer", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil))}, 400, "invalid-field", "", "want one of example.com/etcd-peer, kubernetes.io/"},
		{"unknown signer", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: "example.com/other"}, 400, "invalid-field", "", "want one of example.com/etcd-peer, kubernetes.io/"},
		{"too short", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Duration: "9m59s"}, 400, "invalid-field", "", "duration: 9m59s given, want at least 10m"},
		{"negative", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Duration: "-1h"}, 400, "invalid-field", "", "duration"},
		{"huge", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Duration: "2000000h"}, 400, "invalid-field", "", "at most"},
		{"no duration", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Duration: "1y"}, 400, "invalid-field", "", "not a duration"},
		{"unknown usage", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Usages: []string{"cert sign"}}, 400, "invalid-field", "", "usages"},
		{"a usage twice", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Usages: []string{"client auth", "client auth"}}, 400, "invalid-field", "", "twice"},
		{"empty usages", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner, Usages: []string{}}, 400, "invalid-field", "", "usages"},
		{"nothing", admin, api.SignCertificate{Signer: peerSigner}, 400, "invalid-body", "", "--data-binary"},
		{"two requests", admin, api.SignCertificate{CSR: []byte(csr(t, jane, nil) + csr(t, jane, nil)), Signer: peerSigner}, 400, "invalid-body", "", ""},
		{"who may not", s.by(viewerBearer), api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner}, 403, "forbidden", "", `user "vic" may not sign signers.certificates.k8s.io example.com/etcd-peer`},
		{"who has a certificate and may not", s.as(t, s.userCertificate(t, "eve", "dev")), api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner}, 403, "forbidden", "", `user "eve"`},
		{"nobody", s.by(""), api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner}, 401, "unauthorized", "", "bootstrap token"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := len(kept.entries)
			_, err := test.client.Certificate(t.Context(), test.asked)
			p := wantProblem(t, err, test.status, test.type_, test.reason)
			if !strings.Contains(p.Detail, test.want) {
				t.Errorf("%q, want %q", p.Detail, test.want)
			}
			reason := test.reason
			if test.type_ == "forbidden" {
				reason = approval.ReasonNotPermitted
			}
			if e, n := kept.last(), len(kept.entries)-before; n > 1 || (n == 1) != (test.status == 403) || n == 1 && (e.Outcome != issuance.Refused || e.Reason != reason || !strings.Contains(e.Message, test.want)) {
				t.Errorf("got %d new records, the last %+v, want one refusal if the status is 403", n, e)
			}
		})
	}
	if _, err := s.as(t, s.userCertificate(t, "bob", "kubejoin:admins")).Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, jane, nil)), Signer: peerSigner}); err != nil {
		t.Errorf("admin with a client certificate: got %v, want a certificate", err)
	}
}

// In standalone mode the rule may-sign approves nothing. Catches a node that becomes an admin by a group in its
// certificate.
func TestCertificateHasWarningOfItsSigner(t *testing.T) {
	s, _ := certifying(t)
	s.Certificates.Warning = func(_ context.Context, signer string) string {
		if signer == peerSigner {
			return `run: kubectl create "x"`
		}
		return ""
	}
	s.start(t)
	peer := csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "peer"}}, nil)
	got := s.do(t, "POST", certificatePath+"?signer="+peerSigner, adminBearer, "application/pkcs10", peer)
	if want := `299 - "run: kubectl create \"x\""`; got.status != 200 || got.header.Get("Warning") != want {
		t.Errorf("got %d and Warning %s, want 200 and %s", got.status, got.header.Get("Warning"), want)
	}
	got = s.do(t, "POST", certificatePath, s.token(t, once), "application/pkcs10", nodeCSR(t, "worker-1"))
	if _, found := got.header["Warning"]; got.status != 200 || found {
		t.Errorf("other signer: got %d and %v, want 200 and no warning", got.status, got.header)
	}
}

func TestGroupInNodeCertificateMakesNoAdmin(t *testing.T) {
	s, kept := certifying(t)
	signers := s.Certificates.Authority.Signers()
	peer := signers[peerSigner]
	peer.Rules = []approval.Rule{approval.MaySign{}}
	signers[peerSigner] = peer
	s.Certificates.Authority.Signers = signer.FixedSigners(signers)
	s.start(t)
	jane := csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, nil)
	_, err := s.as(t, s.userCertificate(t, "system:node:worker-1", "system:nodes", "kubejoin:admins")).Certificate(t.Context(), api.SignCertificate{CSR: []byte(jane), Signer: peerSigner})
	wantProblem(t, err, 403, api.ProblemCertificateNotPermitted, approval.ReasonNotPermitted)
	if e := kept.last(); e.Outcome != issuance.Refused {
		t.Errorf("recorded %+v", e)
	}
}

// Catches a refusal that is final although its record could not be written. The client must retry.
func TestRefusesOnlyWhatCanBeRecorded(t *testing.T) {
	s, _ := certifying(t)
	s.Certificates.Authority.Record = issuance.NewWriter(fullDisk{})
	s.start(t)
	jane := []byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, nil))
	for _, bearer := range []string{s.token(t, once), viewerBearer} {
		_, err := s.by(bearer).Certificate(t.Context(), api.SignCertificate{CSR: jane, Signer: certificates.KubeAPIServerClientSignerName})
		wantProblem(t, err, 503, api.ProblemCertificateWaits, approval.ReasonFactsUnavailable)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// Catches a permission for example.com/* that does not cover example.com/etcd-peer.
func TestSignPermissionForDomainCoversItsSigners(t *testing.T) {
	s, _ := certifying(t)
	var asked []string
	s.Callers.Authorize = func(_ *http.Request, u auth.User, a auth.Access) error {
		asked = append(asked, a.String())
		if a == (auth.Access{Verb: "sign", Resource: "signers", Group: "certificates.k8s.io", Name: "example.com/*"}) {
			return nil
		}
		return auth.ErrForbidden
	}
	s.start(t)
	request := []byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, nil))
	if _, err := s.by(viewerBearer).Certificate(t.Context(), api.SignCertificate{CSR: request, Signer: peerSigner}); err != nil {
		t.Error(err)
	}
	_, err := s.by(viewerBearer).Certificate(t.Context(), api.SignCertificate{CSR: request, Signer: certificates.KubeAPIServerClientSignerName})
	wantProblem(t, err, 403, "forbidden", "")
	if want := []string{
		"sign signers.certificates.k8s.io example.com/etcd-peer", "sign signers.certificates.k8s.io example.com/*",
		"sign signers.certificates.k8s.io kubernetes.io/kube-apiserver-client", "sign signers.certificates.k8s.io kubernetes.io/*",
	}; !slices.Equal(asked, want) {
		t.Errorf("got permission checks %q, want %q", asked, want)
	}
}

// Catches a default usage that the signer does not allow: the request would be refused.
func TestDefaultUsagesStayWithinThoseOfTheSigner(t *testing.T) {
	s, _ := certifying(t)
	all := maps.Clone(s.Certificates.Authority.Signers())
	only := signer.ProfileConfig{Usages: []certificates.KeyUsage{certificates.UsageClientAuth}}
	all[certificates.KubeAPIServerClientSignerName] = must.Get(signer.NewSigner(certificates.KubeAPIServerClientSignerName, signer.Fixed(s.ca), only, nil))
	s.Certificates.Authority.Signers = signer.FixedSigners(all)
	s.start(t)
	jane := []byte(csr(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, nil))
	chain, err := s.by(adminBearer).Certificate(t.Context(), api.SignCertificate{CSR: jane, Signer: certificates.KubeAPIServerClientSignerName})
	if err != nil {
		t.Fatal(err)
	}
	if cert := s.verified(t, chain, x509.ExtKeyUsageClientAuth); cert.KeyUsage != 0 {
		t.Errorf("got key usage %b, want none beside client auth", cert.KeyUsage)
	}
	// A usage that the client requests is not dropped.
	_, err = s.by(adminBearer).Certificate(t.Context(), api.SignCertificate{CSR: jane, Signer: certificates.KubeAPIServerClientSignerName, Usages: []string{"digital signature", "client auth"}})
	wantProblem(t, err, 403, api.ProblemCertificateRefused, approval.ReasonValidation)
}

// RSA keys get key encipherment, because TLS 1.2 may need it. Other keys do not get it.
func TestDefaultUsagesDependOnTheKeyType(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		key  crypto.Signer
		want x509.KeyUsage
	}{"RSA": {key, x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment}, "ECDSA": {csrtest.NewKey(), x509.KeyUsageDigitalSignature}} {
		for _, signerName := range []string{"", peerSigner} {
			by := s.by(s.token(t, nil))
			if signerName != "" {
				by = s.by(adminBearer)
			}
			chain, err := by.Certificate(t.Context(), api.SignCertificate{CSR: []byte(csr(t, ofNode("w-"+strings.ToLower(name)), test.key)), Signer: signerName})
			if err != nil {
				t.Fatal(err)
			}
			if cert := s.verified(t, chain, x509.ExtKeyUsageClientAuth); cert.KeyUsage != test.want {
				t.Errorf("%s of %q: %b, want %b", name, signerName, cert.KeyUsage, test.want)
			}
		}
	}
}

func TestCertificateRequestFormats(t *testing.T) {
	s, _ := certifying(t)
	good := nodeCSR(t, "w")
	token := s.token(t, nil)
	bare := newSite(t)
	for _, test := range []struct {
		name, query, contentType, body string
		bare                           bool
		status                         int
		want                           string
	}{
		{name: "no type", body: good, status: 200},
		{name: "curl", contentType: "application/x-www-form-urlencoded", body: good, status: 200},
		{name: "PKCS #10", contentType: "application/pkcs10", body: good, status: 200},
		{name: "octets", contentType: "application/octet-stream", body: good, status: 200},
		{name: "PEM file", contentType: "application/x-pem-file", body: good, status: 200},
		{name: "with a parameter", contentType: "text/plain; charset=utf-8", body: good, status: 200},
		{name: "JSON", contentType: "application/json", body: good, status: 415, want: "application/pkcs10"},
		{name: "malformed type", contentType: `text/plain; charset="`, body: good, status: 415, want: "application/pkcs10"},
		{name: "usages with commas", query: "?usages=digital+signature,client+auth", body: good, status: 200},
		{name: "usages repeated", query: "?usages=digital%20signature&usages=client%20auth", body: good, status: 200},
		{name: "usages that do not fit", query: "?usages=server%20auth", body: good, status: 403, want: `"reason":"NotRecognized"`},
		{name: "unknown parameter", query: "?ttl=1h", body: good, status: 400, want: "known: signer, duration and usages"},
		{name: "twice", query: "?duration=1h&duration=2h", body: good, status: 400, want: "more than once"},
		{name: "empty", query: "?signer=", body: good, status: 400, want: "is empty"},
		{name: "no query", query: "?%zz", body: good, status: 400, want: "malformed query"},
		{name: "too large", body: strings.Repeat("A", server.MaxBody+1), status: 413, want: "65536"},
		{name: "without line breaks, as curl -d", body: strings.ReplaceAll(good, "\n", ""), status: 400, want: "--data-binary"},
		{name: "no CA here", bare: true, body: good, status: 404, want: "nothing at this path"},
	} {
		t.Run(test.name, func(t *testing.T) {
			handler := s.Handler
			if test.bare {
				handler = bare.Handler
			}
			s.Registerer, bare.Registerer = nil, nil
			w := send(handler(), certificatePath+test.query, token, test.contentType, strings.NewReader(test.body))
			if w.Code != test.status || !strings.Contains(w.Body.String(), test.want) {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, test.status, test.want)
			}
		})
	}
}

// Catches a client certificate of another CA, or without a user name, that authenticates a caller.
func TestClientCertificateMustComeFromTheClientCA(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	request := api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}
	other := newSite(t)
	_, err := s.as(t, other.userCertificate(t, "system:node:w", "system:nodes")).Certificate(t.Context(), request)
	wantProblem(t, err, 401, "unauthorized", "")
	nameless := s.as(t, s.userCertificate(t, "", "system:nodes"))
	_, err = nameless.Certificate(t.Context(), request)
	wantProblem(t, err, 401, "unauthorized", "")
	// A bearer token takes precedence over the certificate.
	both := s.as(t, s.userCertificate(t, "system:node:w", "system:nodes"))
	both.Bearer = viewerBearer
	_, err = both.Certificate(t.Context(), api.SignCertificate{CSR: request.CSR, Signer: clientSigner})
	wantProblem(t, err, 403, "forbidden", "")
	// Without client certificates and without tokens of users, nobody is authenticated.
	s.Certificates.ClientCertificate, s.Callers.Authenticate, s.Registerer = nil, nil, nil
	s.start(t)
	for c, want := range map[*client.Client]string{
		s.as(t, s.userCertificate(t, "system:node:w", "system:nodes")): "authentication required", s.by(adminBearer): "does not accept these credentials", s.by(""): "authentication required",
	} {
		_, err := c.Certificate(t.Context(), request)
		if p := wantProblem(t, err, 401, "unauthorized", ""); !strings.Contains(p.Detail, want) {
			t.Errorf("%q, want %q", p.Detail, want)
		}
	}
}

// Catches a temporary failure of a store, the CA or the authorizer that is answered with a final refusal.
func TestUnavailableDependencyMakesCertificateWait(t *testing.T) {
	request := api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}
	t.Run("tokens", func(t *testing.T) {
		s, _ := certifying(t)
		token := s.token(t, nil)
		s.Tokens = failingStore(s.store, errReset)
		s.start(t)
		_, err := s.by(token).Certificate(t.Context(), request)
		p := wantProblem(t, err, 503, "tokens-unavailable", "")
		if p.RetryAfter <= 0 || strings.Contains(p.Detail, errReset.Error()) {
			t.Errorf("%+v", p)
		}
	})
	t.Run("CA", func(t *testing.T) {
		s, _ := certifying(t)
		broken := must.Get(signer.KubernetesSigners(func() (*signer.CA, error) { return nil, errors.New("the disk is away") }, 0))
		s.Certificates.Authority.Signers = signer.FixedSigners(broken)
		s.start(t)
		_, err := s.by(s.token(t, nil)).Certificate(t.Context(), request)
		p := wantProblem(t, err, 503, api.ProblemCertificateWaits, approval.ReasonFactsUnavailable)
		if p.RetryAfter <= 0 || strings.Contains(p.Detail, "disk") || !strings.Contains(s.logs.String(), "the disk is away") {
			t.Errorf("%+v\n%s", p, s.logs)
		}
	})
	t.Run("claims", func(t *testing.T) {
		s, _ := certifying(t)
		s.Certificates.Authority.Nodes.Claims = storetest.Faulty((&failing{at: 1, err: errReset}).faults).Claims(s.Claims)
		s.start(t)
		_, err := s.by(s.token(t, once)).Certificate(t.Context(), request)
		p := wantProblem(t, err, 503, api.ProblemCertificateWaits, approval.ReasonFactsUnavailable)
		if strings.Contains(p.Detail, errReset.Error()) || !strings.Contains(s.logs.String(), errReset.Error()) {
			t.Errorf("%+v\n%s", p, s.logs)
		}
	})
	t.Run("deleted Node", func(t *testing.T) {
		s, _ := certifying(t)
		asked := 0
		nodes := s.Certificates.Authority.Nodes
		nodes.Node = func(context.Context, string) (string, error) {
			if asked++; asked > 1 {
				return "", tokens.ErrNotFound
			}
			return "uid", nil
		}
		now := time.Now()
		s.Certificates.Authority.Now = func() time.Time { now = now.Add(time.Second); return now } // so that the signer retries
		s.start(t)
		_, err := s.as(t, s.userCertificate(t, "system:node:w", "system:nodes")).Certificate(t.Context(), request)
		wantProblem(t, err, 503, api.ProblemCertificateWaits, admission.ReasonNodeNotFound)
	})
	t.Run("authorizer", func(t *testing.T) {
		s, _ := certifying(t)
		s.Callers.Authorize = func(*http.Request, auth.User, auth.Access) error { return errors.New("reviewer down") }
		s.start(t)
		_, err := s.by(adminBearer).Certificate(t.Context(), api.SignCertificate{CSR: request.CSR, Signer: peerSigner})
		wantProblem(t, err, 503, "authorization-unavailable", "")
	})
}

// The signer configuration may change during a request. Catches a response that makes the client retry without end.
func TestRefusesSignerThatIsNoLongerConfigured(t *testing.T) {
	s, _ := certifying(t)
	signers := s.Certificates.Authority.Signers()
	s.Certificates.Authority.Signers = func() map[string]signer.Signer {
		all := signers
		signers = nil
		return all
	}
	s.start(t)
	_, err := s.by(adminBearer).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w")), Signer: clientSigner})
	if p := wantProblem(t, err, 400, "invalid-field", ""); p.Field != "signer" {
		t.Errorf("%+v", p)
	}
}

// 200 machines use a token for one node at the same time. Catches a race that gives two of them a certificate.
func TestOneNodeTokenIssuesOnceUnderConcurrency(t *testing.T) {
	s, _ := certifying(t)
	s.start(t)
	token := s.token(t, once)
	const many = 200
	var mu sync.Mutex
	var issued []string
	refused := map[string]int{}
	var all sync.WaitGroup
	for i := range many {
		request := []byte(nodeCSR(t, fmt.Sprintf("w-%d", i)))
		all.Go(func() {
			chain, err := s.by(token).Certificate(t.Context(), api.SignCertificate{CSR: request})
			mu.Lock()
			defer mu.Unlock()
			var p *api.Problem
			switch {
			case err == nil:
				issued = append(issued, string(chain))
			case errors.As(err, &p) && p.Named(api.ProblemCertificateRefused):
				refused[p.Reason]++
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(issued) != 1 || refused[admission.ReasonTokenSpent] != many-1 {
		t.Errorf("got %d issued and refusals %v, want 1 issued and %d refused", len(issued), refused, many-1)
	}
	claims, err := s.store.Claims().List(t.Context())
	if err != nil || len(claims) != 1 {
		t.Errorf("claims %+v, %v", claims, err)
	}
}

// Certificate requests have slots of their own. Catches a flood of them that blocks discovery.
func TestCertificateFloodLeavesDiscoveryFree(t *testing.T) {
	s, _ := certifying(t)
	s.Logger = nil
	asking, away := make(chan struct{}), make(chan struct{})
	s.Tokens = waiting(s.store, asking, away)
	handler := s.Handler()
	request := nodeCSR(t, "w")
	var flood sync.WaitGroup
	for range httplimit.MaxCertificates {
		flood.Go(func() {
			send(handler, certificatePath, tokens.Generate().Reveal(), "", strings.NewReader(request))
		})
	}
	for range httplimit.MaxCertificates {
		<-asking
	}
	w := send(handler, certificatePath, tokens.Generate().Reveal(), "", unread{t})
	if w.Code != 503 || w.Header().Get("Retry-After") != "1" {
		t.Errorf("above the limit: got %d %v %s, want 503 and Retry-After 1", w.Code, w.Header(), w.Body)
	}
	w = httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", infoPath, nil))
	if w.Code != 200 {
		t.Errorf("discovery during the flood: got %d, want 200", w.Code)
	}
	close(away)
	flood.Wait()
	if n := s.inFlight(t, "certificate"); n != 0 {
		t.Errorf("got %v in flight at the end, want 0", n)
	}
}

// checkCertificateResponse fails the test unless the response is a valid certificate or a 4xx problem.
func checkCertificateResponse(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	switch body := w.Body.Bytes(); {
	case w.Code == 200:
		block, _ := pem.Decode(body)
		if block == nil || block.Type != "CERTIFICATE" {
			t.Fatalf("%q", body)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || cert.IsCA || slices.Contains(cert.Subject.Organization, "system:masters") {
			t.Errorf("%v %q", err, body)
		}
	case w.Code < 400 || w.Code > 499:
		t.Errorf("%d %s", w.Code, body)
	case !json.Valid(body) || bytes.Contains(body, []byte(adminBearer)):
		t.Errorf("%d %q", w.Code, body)
	}
}
