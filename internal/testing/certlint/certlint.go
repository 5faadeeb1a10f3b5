// Package certlint checks with zlint and openssl that issued certificates comply with the RFCs. Only tests use it.
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

// rfcs returns the lints for RFCs. It excludes the browsers' rules for public CAs, which do not apply to a cluster CA.
var rfcs = sync.OnceValues(func() (lint.Registry, error) {
	return lint.GlobalRegistry().Filter(lint.FilterOptions{IncludeSources: lint.SourceList{
		lint.RFC3279, lint.RFC5280, lint.RFC5480, lint.RFC5891, lint.RFC6960, lint.RFC6962, lint.RFC8813,
	}})
})

// leastLints is the minimum number of lints, because every certificate would pass with an empty registry.
const leastLints = 100

// except maps lints that Kubernetes certificates may fail to the condition under which failing is allowed.
var except = map[string]func(*x509.Certificate) bool{
	// RFC 5280, section 4.2.1.12, allows digital signature and key agreement for client auth. Kubernetes also
	// allows key encipherment, and kubelets with RSA keys request it.
	"e_key_usage_and_extended_key_usage_inconsistent": func(c *x509.Certificate) bool {
		return slices.Contains(c.ExtKeyUsage, x509.ExtKeyUsageClientAuth) && encipherment(c)
	},
	// RFC 5480, section 3, does not allow key encipherment for ECDSA keys. Kubernetes allows it for every key, and
	// older kubelets request it. The signer issues the requested usages.
	"e_ecdsa_allowed_ku":    encipherment,
	"n_ecdsa_ee_invalid_ku": encipherment,
	// RFC 5280, appendix A.1, limits common names to 64 characters. A node's common name is system:node:NAME, with a
	// NAME of up to 253 characters. kube-apiserver reads the node name only there.
	"e_subject_common_name_max_length": func(c *x509.Certificate) bool { return len(c.Subject.CommonName) > 64 },
}

func encipherment(c *x509.Certificate) bool { return c.KeyUsage&x509.KeyUsageKeyEncipherment != 0 }

// Check returns zlint's findings about a certificate in DER, one sentence each.
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

// A Log is an issuance record that checks each issued certificate.
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

// Findings returns the number of issued certificates, and the defects that were found.
func (l *Log) Findings() (issued int, findings []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.issued, slices.Clone(l.findings)
}

// Summary joins findings. It lists at most 20, because there may be thousands.
func Summary(findings []string) string {
	const most = 20
	text := strings.Join(findings[:min(most, len(findings))], "\n")
	if more := len(findings) - most; more > 0 {
		text += fmt.Sprintf("\nand %d more", more)
	}
	return text
}
