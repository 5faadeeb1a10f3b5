package config

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// check returns why this signer does not allow a request, or nil. signer.Authority has more checks, which
// apply to every signer.
func (s *Signer) check(r approval.Request) error {
	if signer.KubernetesUsages(s.Name) == nil {
		if _, extended, _ := approval.X509Usages(r.Usages); len(extended) == 0 {
			return fmt.Errorf("usages are %s, want at least one extended key usage such as \"server auth\": without one, a certificate is valid for every purpose", safetext.List(r.Usages, "and"))
		}
	}
	return cmp.Or(s.policy(r), s.Subject.check(r.CSR), s.Names.check(r.CSR))
}

func (s *Subject) check(csr *x509.CertificateRequest) error {
	if s == nil {
		return nil
	}
	for _, attribute := range csr.Subject.Names {
		if oid := attribute.Type.String(); oid != "2.5.4.3" && oid != "2.5.4.10" {
			return fmt.Errorf("the subject has attribute %s, want only common name and organization", oid)
		}
	}
	var common []string
	if csr.Subject.CommonName != "" {
		common = []string{csr.Subject.CommonName}
	}
	return cmp.Or(
		allow("common name", common, s.CommonNames, oneOf(s.CommonNames, matchText)),
		allow("subject organization", csr.Subject.Organization, s.Organizations, oneOf(s.Organizations, matchText)))
}

func (n *Names) check(csr *x509.CertificateRequest) error {
	if n == nil {
		return nil
	}
	if len(csr.Subject.CommonName)+len(csr.DNSNames)+len(csr.IPAddresses)+len(csr.EmailAddresses)+len(csr.URIs) == 0 {
		return errors.New("the request has no name, want a common name or a subject alternative name")
	}
	dns := oneOf(n.DNS, matchDNS)
	return cmp.Or(
		allow("DNS name", csr.DNSNames, slices.Concat(n.DNS, n.Wildcards), func(name string) bool {
			return dns(name) || slices.Contains(n.DNS, anyDNS) && matchAnyDNS(name) || slices.Contains(n.Wildcards, strings.ToLower(name))
		}),
		allow("address", csr.IPAddresses, n.IPs, oneOf(n.IPs, matchIP)),
		allow("email address", csr.EmailAddresses, n.Emails, oneOf(n.Emails, matchEmail)),
		allow("URI", csr.URIs, n.URIs, oneOf(n.URIs, matchURI)))
}

// oneOf returns a function that reports whether a value matches one of the patterns.
func oneOf[P, V any](patterns []P, match func(P, V) bool) func(V) bool {
	return func(value V) bool {
		return slices.ContainsFunc(patterns, func(p P) bool { return match(p, value) })
	}
}

// allow returns an error that lists the patterns if not all values match.
func allow[P string | netip.Prefix, V any](what string, values []V, patterns []P, match func(V) bool) error {
	i := slices.IndexFunc(values, func(value V) bool { return !match(value) })
	if i < 0 {
		return nil
	}
	const most = 5
	want := "none"
	if more := len(patterns) - most; more > 0 {
		want = fmt.Sprintf("one of %q or %d more", patterns[:most], more)
	} else if len(patterns) > 0 {
		want = fmt.Sprintf("one of %q", patterns)
	}
	return fmt.Errorf("%s %.100q is not allowed, want %s", what, safetext.Redact(fmt.Sprint(values[i])), want)
}
