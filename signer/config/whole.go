package config

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// required are the usages that the rules of a signer of Kubernetes require in every request.
var required = map[string][]certificates.KeyUsage{
	certificates.KubeAPIServerClientKubeletSignerName: {certificates.UsageDigitalSignature, certificates.UsageClientAuth},
	certificates.KubeletServingSignerName:             {certificates.UsageDigitalSignature, certificates.UsageServerAuth},
	certificates.KubeAPIServerClientSignerName:        {certificates.UsageClientAuth},
}

// ruleSigners maps rules that handle requests of only one signer to this signer.
var ruleSigners = map[string]string{
	approval.SelfNodeClient{}.Name(): certificates.KubeAPIServerClientKubeletSignerName,
	approval.NodeClient{}.Name():     certificates.KubeAPIServerClientKubeletSignerName,
	approval.KubeletServing{}.Name(): certificates.KubeletServingSignerName,
}

// checkName returns nil, or why a signer name is invalid. It allows the names that kube-apiserver allows in
// spec.signerName. In the domain of Kubernetes it allows only the built-in signers.
func checkName(name string) error {
	domain, path, _ := strings.Cut(name, "/")
	switch {
	case signer.KubernetesUsages(name) != nil:
		return nil
	case name == "kubernetes.io/legacy-unknown": // has no rules
		return fmt.Errorf("%s is not supported, because its certificates are valid for every purpose; use a signer in your own domain", name)
	case domain == "kubernetes.io": // kube-apiserver accepts other names here, which have no meaning
		return fmt.Errorf("%s given, want one of %s, or a signer in your own domain", quoted(name), strings.Join(slices.Sorted(maps.Keys(required)), ", "))
	case !strings.Contains(domain, ".") || !dnsname.IsSubdomain(domain) || !dnsname.IsHost(domain) || !dnsname.IsSubdomain(path):
		return fmt.Errorf("%s given, want DOMAIN/NAME such as example.com/etcd-peer: a lower-case domain with a dot, labels of at most %d characters, and a name of [a-z0-9.-]",
			quoted(name), dnsname.MaxLabel)
	}
	return nil
}

// signers checks the items of a list, and returns the items that are mappings.
func (d *document) signers(path string, items []Signer) (signers []Signer) {
	for i, s := range items {
		s.path, s.policy = fmt.Sprintf("%s[%d]", path, i), func(approval.Request) error { return nil }
		name := s.path + ".name"
		if s.Name == "" && !d.wrong[name] {
			continue
		}
		d.signer(&s)
		if other := slices.IndexFunc(signers, func(other Signer) bool { return other.Name == s.Name && s.Name != "" }); other >= 0 {
			d.fail(name, "duplicate signer %s, first defined in line %d", s.Name, d.lines[signers[other].path+".name"])
		}
		signers = append(signers, s)
	}
	return signers
}

// signer checks the fields of a signer. It does not check combinations with a field that has an error.
func (d *document) signer(s *Signer) {
	at := s.path + "."
	if s.Name != "" {
		d.check(at+"name", checkName(s.Name))
	}
	for i, file := range []*string{&s.CA.CertFile, &s.CA.KeyFile, &s.CA.PassphraseFile} {
		if strings.ContainsAny(*file, "\n\r\x00") || strings.Contains(*file, "PRIVATE KEY") {
			d.fail(at+[]string{"ca.certFile", "ca.keyFile", "ca.passphraseFile"}[i], "%s given, want the path of a file", quoted(*file))
		} else if *file != "" && !filepath.IsAbs(*file) {
			*file = filepath.Join(filepath.Dir(d.file), *file)
		}
	}
	subject, names := cmp.Or(s.Subject, &Subject{}), cmp.Or(s.Names, &Names{})
	d.each(at+"subject.commonNames", subject.CommonNames, checkText)
	d.each(at+"subject.organizations", subject.Organizations, checkText)
	// When it issues, SuperAdminSigner refuses every other subject in the group.
	if i := slices.Index(subject.Organizations, tokens.MastersGroup); i >= 0 && s.Name != approval.SuperAdminSigner {
		d.fail(fmt.Sprintf("%ssubject.organizations[%d]", at, i), "%q is not allowed: permissions of this group cannot be revoked", tokens.MastersGroup)
	}
	d.each(at+"names.dns", names.DNS, checkDNS)
	d.each(at+"names.wildcards", names.Wildcards, checkWildcard)
	d.each(at+"names.emails", names.Emails, checkEmailPattern)
	d.each(at+"names.uris", names.URIs, checkURIPattern)
	if keys := s.Keys.policy(); d.lines[at+"keys"] > 0 && !d.wrong[at+"keys"] {
		d.check(at+"keys", keys.Check())
		if keys.MaxRSA == 0 && len(keys.Curves) == 0 && !keys.Ed25519 {
			d.fail(at+"keys", "no key type is allowed, want at least one of rsa, ecdsa and ed25519; leave out keys to allow all of them")
		}
	}
	if s.Usages != nil && len(s.Usages) == 0 {
		d.fail(at+"usages", "the list is empty, want at least one item")
	}
	for i, u := range s.Usages {
		if u != "" && !approval.KnownUsage(u) {
			d.fail(fmt.Sprintf("%susages[%d]", at, i), "%s given, want a usage that a certificate can have, such as \"server auth\"", quoted(string(u)))
		}
	}
	if signer.KubernetesUsages(s.Name) == nil { // has no built-in rules
		s.Subject, s.Names = subject, names
	}
	if !d.wrong[at+"name"] {
		d.byName(s)
	}
}

// byName checks the fields that depend on the name of the signer.
func (d *document) byName(s *Signer) {
	at, kubernetes := s.path+".", signer.KubernetesUsages(s.Name)
	_, extended, _ := approval.X509Usages(s.Usages)
	switch {
	case d.wrong[at+"usages"] || kubernetes != nil && s.Usages == nil:
	case kubernetes != nil:
		for _, u := range s.Usages {
			if !slices.Contains(kubernetes, u) {
				d.fail(at+"usages", "%q given, want some of %s, the usages of signer %s", u, safetext.List(kubernetes, "and"), s.Name)
			}
		}
		for _, u := range required[s.Name] {
			if !slices.Contains(s.Usages, u) {
				d.fail(at+"usages", "%q is missing, but every request for signer %s needs it", u, s.Name)
			}
		}
	case s.Usages == nil:
		d.fail(at+"usages", "missing")
	case len(extended) == 0:
		d.fail(at+"usages", "%s given, want at least one extended key usage such as \"server auth\": without one, a certificate is valid for every purpose", safetext.List(s.Usages, "and"))
	case slices.Contains(s.Usages, certificates.UsageAny):
		d.fail(at+"usages", "%q given, want specific usages: with it, a certificate is valid for every purpose", certificates.UsageAny)
	}
	if n := s.Names; kubernetes == nil && !d.wrong[at+"subject"] && !d.wrong[at+"names"] &&
		len(s.Subject.CommonNames)+len(n.DNS)+len(n.Wildcards)+len(n.IPs)+len(n.Emails)+len(n.URIs) == 0 {
		d.fail(at+"subject", "neither subject.commonNames nor names given, want one of them: otherwise a certificate identifies nobody")
	}
	if d.wrong[at+"approval"] {
		return
	}
	rules := slices.DeleteFunc(approval.RuleNames(), func(rule string) bool { return cmp.Or(ruleSigners[rule], s.Name) != s.Name })
	for _, rule := range s.Approval {
		if !slices.Contains(rules, rule) {
			d.fail(at+"approval", "%s given, want %s for this signer", quoted(rule), safetext.List(rules, "or"))
		}
	}
}

// each checks each text of a list. A text that could not be read is empty, and its error is already reported.
func (d *document) each(path string, list []string, check func(string) error) {
	for i, text := range list {
		if text != "" {
			d.check(fmt.Sprintf("%s[%d]", path, i), check(text))
		}
	}
}

// policy converts valid Keys to a [signer.KeyPolicy].
func (k Keys) policy() (p signer.KeyPolicy) {
	if k.RSA != nil {
		p.MinRSA, p.MaxRSA = cmp.Or(int(k.RSA.Min), pkcs10.MinRSABits), cmp.Or(int(k.RSA.Max), pkcs10.MaxRSABits)
	}
	for _, curve := range pkcs10.Curves() {
		if slices.Contains(k.ECDSA, curve.Params().Name) {
			p.Curves = append(p.Curves, curve)
		}
	}
	p.Ed25519 = k.Ed25519
	return p
}
