package config

import (
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
	if s.policy != nil {
		if err := s.policy(r); err != nil {
			return err
		}
	}
	subject, names := s.Subject, s.Names
	if signer.KubernetesUsages(s.Name) == nil {
		if !slices.ContainsFunc(r.Usages, extended) {
			return fmt.Errorf("usages are %q, want at least one extended key usage such as \"server auth\": without one, a certificate is valid for every purpose", r.Usages)
		}
		if subject == nil {
			subject = &Subject{}
		}
		if names == nil {
			names = &Names{}
		}
	}
	if subject != nil {
		if err := subject.check(r); err != nil {
			return err
		}
	}
	if names != nil {
		return names.check(r)
	}
	return nil
}

func (s *Subject) check(r approval.Request) error {
	subject := r.CSR.Subject
	for _, attribute := range subject.Names {
		if oid := attribute.Type.String(); oid != "2.5.4.3" && oid != "2.5.4.10" {
			return fmt.Errorf("the subject has attribute %s, want only common name and organization", oid)
		}
	}
	if name := subject.CommonName; name != "" && !slices.ContainsFunc(s.CommonNames, func(p string) bool { return matchText(p, name) }) {
		return fmt.Errorf("common name %.100q is not allowed, %s", safetext.Redact(name), allowed(s.CommonNames))
	}
	for _, name := range subject.Organization {
		if !slices.ContainsFunc(s.Organizations, func(p string) bool { return matchText(p, name) }) {
			return fmt.Errorf("subject organization %.100q is not allowed, %s", safetext.Redact(name), allowed(s.Organizations))
		}
	}
	return nil
}

func (n *Names) check(r approval.Request) error {
	for _, name := range r.CSR.DNSNames {
		if slices.Contains(n.DNS, anyDNS) && matchAnyDNS(name) {
			continue
		}
		if !slices.ContainsFunc(n.DNS, func(p string) bool { return matchDNS(p, name) }) && !slices.Contains(n.Wildcards, strings.ToLower(name)) {
			return fmt.Errorf("DNS name %.100q is not allowed, %s", safetext.Redact(name), allowed(slices.Concat(n.DNS, n.Wildcards)))
		}
	}
	for _, ip := range r.CSR.IPAddresses {
		if !slices.ContainsFunc(n.IPs, func(p netip.Prefix) bool { return matchIP(p, ip) }) {
			return fmt.Errorf("address %s is not allowed, %s", ip, allowed(texts(n.IPs)))
		}
	}
	for _, address := range r.CSR.EmailAddresses {
		if !slices.ContainsFunc(n.Emails, func(p string) bool { return matchEmail(p, address) }) {
			return fmt.Errorf("email address %.100q is not allowed, %s", safetext.Redact(address), allowed(n.Emails))
		}
	}
	for _, u := range r.CSR.URIs {
		if !slices.ContainsFunc(n.URIs, func(p string) bool { return matchURI(p, u) }) {
			return fmt.Errorf("URI %.100q is not allowed, %s", safetext.Redact(u.String()), allowed(n.URIs))
		}
	}
	if len(r.CSR.Subject.CommonName)+len(r.CSR.DNSNames)+len(r.CSR.IPAddresses)+len(r.CSR.EmailAddresses)+len(r.CSR.URIs) == 0 {
		return errors.New("the request has no name, want a common name or a subject alternative name")
	}
	return nil
}

// allowed lists the allowed patterns for an error message.
func allowed(patterns []string) string {
	const most = 5
	switch {
	case len(patterns) == 0:
		return "want none"
	case len(patterns) > most:
		return fmt.Sprintf("want one of %q or %d more", patterns[:most], len(patterns)-most)
	}
	return fmt.Sprintf("want one of %q", patterns)
}

func texts(prefixes []netip.Prefix) []string {
	var list []string
	for _, p := range prefixes {
		list = append(list, p.String())
	}
	return list
}
