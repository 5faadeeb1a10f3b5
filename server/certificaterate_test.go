package server_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// A node over its rate gets 429 with Retry-After. Other nodes still get certificates.
func TestLimitsCertificateRateOfANode(t *testing.T) {
	s, kept := certifying(t)
	now := time.Now()
	s.Certificates.Authority.Now = func() time.Time { return now } // no rate refills, however slow this machine is
	s.start(t)
	node := s.as(t, s.userCertificate(t, "system:node:w", "system:nodes"))
	request := api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}
	for i := range 60 {
		if _, err := node.Certificate(t.Context(), request); err != nil {
			t.Fatalf("certificate %d: %v", i, err)
		}
	}
	for range 3 {
		_, err := node.Certificate(t.Context(), request)
		p := wantProblem(t, err, 429, api.ProblemTooManyRequests, signer.ReasonTooManyCertificates)
		if !strings.Contains(p.Detail, "system:node:w has used up its rate of certificates; retry in ") {
			t.Errorf("detail %q", p.Detail)
		}
	}
	if n := len(kept.entries); n != 60 {
		t.Errorf("got %d records, want 60", n)
	}
	if _, err := s.as(t, s.userCertificate(t, "system:node:v", "system:nodes")).Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "v"))}); err != nil {
		t.Errorf("another node: %v", err)
	}

	token := s.token(t, nil)
	for i := range 61 {
		got := s.do(t, "POST", certificatePath, token, "", nodeCSR(t, "u"))
		seconds, _ := strconv.Atoi(got.header.Get("Retry-After"))
		if want := i == 60; (got.status == 429) != want || want && (seconds < 1 || seconds > 20) || !want && got.status != 200 {
			t.Fatalf("request %d: %d %v %s", i, got.status, got.header, got.body)
		}
	}
	if said := s.logs.String(); strings.Count(said, "reason=certificate-rate from=system:node:w class=certificate") != 1 || strings.Contains(said, "level=ERROR") {
		t.Errorf("the log:\n%s", said)
	}
	if err := testutil.GatherAndCompare(s.registry(), strings.NewReader(`
# HELP kubejoin_http_certificates_total Certificate requests over HTTPS, by result: issued, refused, not_permitted, waits or failed (an error of kubejoin). Unauthenticated and malformed requests are not counted.
# TYPE kubejoin_http_certificates_total counter
kubejoin_http_certificates_total{result="issued"} 121
kubejoin_http_certificates_total{result="waits"} 4
`), "kubejoin_http_certificates_total"); err != nil {
		t.Error(err)
	}
}

// Catches a record that grows without limit when a node is refused with new keys again and again.
func TestRefusedNodeIsThrottled(t *testing.T) {
	s, kept := certifying(t)
	now := time.Now()
	s.Certificates.Authority.Now = func() time.Time { return now } // no rate refills, however slow this machine is
	s.start(t)
	node := s.as(t, s.userCertificate(t, "system:node:w", "system:nodes"))
	for i := range 70 {
		_, err := node.Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "v"))})
		if i < 60 {
			wantProblem(t, err, 403, api.ProblemCertificateRefused, approval.ReasonNodeRestriction)
		} else {
			wantProblem(t, err, 429, api.ProblemTooManyRequests, signer.ReasonTooManyCertificates)
		}
	}
	if n := len(kept.entries); n != 60 {
		t.Errorf("got %d records, want 60", n)
	}
	if _, err := node.Certificate(t.Context(), api.SignCertificate{CSR: []byte(nodeCSR(t, "w"))}); err != nil {
		t.Errorf("its own: %v", err)
	}
}
