package signer_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
	"unicode"

	"github.com/kubejoin/kubejoin/internal/testing/csrtest"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// Refusals quote text from the request. They must contain no part of a token secret, regardless of where the
// text is cut, no control characters, and at most 1 KiB.
func TestRefusalsHoldNoPartOfATokenAndAreBounded(t *testing.T) {
	const token = "8w4usg.qwertzuiopasdfgh"
	key := must.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	request := func(template *x509.CertificateRequest) approval.Request {
		r := kubernetesRequest(t, certificates.KubeAPIServerClientSignerName, key)
		r.CSR = csrtest.New(t, template, key)
		return r
	}
	a, _, _ := recorded(t, rule{Verdict: approval.Approve, Reason: "Good"})
	for _, n := range []int{0, 100, 230, 310} { // safetext tests each place where text is cut
		text := strings.Repeat("-", n) + token + strings.Repeat("-", 3000)
		bootstrap := request(&x509.CertificateRequest{Subject: pkix.Name{CommonName: text}})
		bootstrap.User = "system:bootstrap:\x1b" + text
		for about, r := range map[string]approval.Request{
			"looks like system:":  request(&x509.CertificateRequest{Subject: pkix.Name{CommonName: "systеm:" + text}}),
			"control character":   request(&x509.CertificateRequest{Subject: pkix.Name{CommonName: text + "\x1b"}}),
			"email of two words":  request(&x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}, EmailAddresses: []string{text + " x"}}),
			"token for other use": bootstrap,
		} {
			_, err := a.Sign(t.Context(), r)
			refused := approval.Refused(err)
			if refused == nil {
				t.Fatalf("%s: %v, want a refusal", about, err)
			}
			if text := refused.Message; strings.Contains(text, "8w4usg.q") || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 1024 {
				t.Fatalf("%s, after %d: %d bytes: %.600q", about, n, len(text), text)
			}
		}
		rules := []approval.Rule{rule{Verdict: approval.Deny, Reason: "Bad", Message: "\x1b" + text, Evidence: []string{"\x1b" + text}}}
		d, _ := approval.Decide(t.Context(), rules, bootstrap, nil)
		for _, text := range append(d.Evidence, d.Message, approval.Explain(t.Context(), rules, bootstrap, nil)[0].Message) {
			if strings.Contains(text, "8w4usg.q") || strings.ContainsFunc(text, unicode.IsControl) || len(text) > 1024 {
				t.Fatalf("text of a rule, after %d: %d bytes: %.600q", n, len(text), text)
			}
		}
	}
}
