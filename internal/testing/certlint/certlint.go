// Package certlint holds certificates that kubejoin has issued against the RFCs, by two others'
// judgement: zlint and openssl. It is for tests alone.
package certlint

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/kubejoin/kubejoin/signer/issuance"
	zx509 "github.com/zmap/zcrypto/x509"
	"github.com/zmap/zlint/v3"
	"github.com/zmap/zlint/v3/lint"
)

// rfcs are the lints that check what RFCs demand. What browsers demand of public CAs is not for a
// cluster's.
var rfcs = sync.OnceValues(func() (lint.Registry, error) {
	return lint.GlobalRegistry().Filter(lint.FilterOptions{IncludeSources: lint.SourceList{
		lint.RFC3279, lint.RFC5280, lint.RFC5480, lint.RFC5891, lint.RFC6960, lint.RFC6962, lint.RFC8813,
	}})
})

// leastLints is how many lints there must be: with an empty registry everything would pass.
const leastLints = 100

// except are lints that certificates of Kubernetes do not pass, and need not where that holds.
var except = map[string]func(*x509.Certificate) bool{
	// RFC 5280, section 4.2.1.12, names digital signature and key agreement for client auth.
	// Kubernetes has key encipherment as well, and kubelets with RSA keys ask for it.
	"e_key_usage_and_extended_key_usage_inconsistent": func(c *x509.Certificate) bool {
		return slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) && encipherment(c)
	},
	// RFC 5480, section 3, has no key encipherment for ECDSA keys, which have no use for it. Kubernetes
	// lets every key ask for it, older kubelets did, and what was asked for is given.
	"e_ecdsa_allowed_ku":    encipherment,
	"n_ecdsa_ee_invalid_ku": encipherment,
	// RFC 5280, appendix A.1, ends common names at 64 characters. Those of nodes are
	// system:node:NAME with names of up to 253, and kube-apiserver reads them nowhere else.
	"e_subject_common_name_max_length": func(c *x509.Certificate) bool { return len(c.Subject.CommonName) > 64 },
}

func encipherment(c *x509.Certificate) bool { return c.KeyUsage&x509.KeyUsageKeyEncipherment != 0 }

// Check says, with a sentence for each, what zlint has against a certificate.
func Check(der []byte) ([]string, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	parsed, err := zx509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("zcrypto: %w", err)
	}
	registry, err := rfcs()
	if err != nil {
		return nil, err
	}
	results := zlint.LintCertificateEx(parsed, registry).Results
	if len(results) < leastLints {
		return nil, fmt.Errorf("zlint has %d lints of RFCs, want at least %d", len(results), leastLints)
	}
	var findings []string
	for name, result := range results {
		if result.Status < lint.Notice || except[name] != nil && except[name](cert) {
			continue
		}
		findings = append(findings, fmt.Sprintf("%s: zlint %s: %s %s", cert.Subject, name, result.Status, result.Details))
	}
	slices.Sort(findings)
	return findings, nil
}

// A Log is an issuance record that checks what is issued.
type Log struct {
	mu       sync.Mutex
	issued   int
	findings []string
}

// Append checks the certificate of an entry.
func (l *Log) Append(_ context.Context, e issuance.Entry) error {
	if e.Outcome != issuance.Issued {
		return nil
	}
	der, err := decode(e.Certificate)
	if err != nil {
		return err
	}
	findings, err := Check(der)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.issued++
	l.findings = append(l.findings, findings...)
	return nil
}

// Findings is how many certificates were issued, and what is wrong with them.
func (l *Log) Findings() (issued int, findings []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.issued, slices.Clone(l.findings)
}

// Summary is findings, of which there may be thousands.
func Summary(findings []string) string {
	const most = 20
	text := strings.Join(findings[:min(most, len(findings))], "\n")
	if more := len(findings) - most; more > 0 {
		text += fmt.Sprintf("\nand %d more", more)
	}
	return text
}
