package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubejoin/kubejoin/internal/dnsname"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// kubernetesDomain is the domain of the signers that Kubernetes defines. kube-apiserver also accepts
// CertificateSigningRequests for other names in this domain, which have no meaning.
const kubernetesDomain = "kubernetes.io"

// legacyUnknown is a signer without rules: its certificates may be accepted for any purpose. kubejoin does
// not serve it.
const legacyUnknown = "kubernetes.io/legacy-unknown"

// required are the usages that the rules of a signer of Kubernetes require in every request.
var required = map[string][]certificates.KeyUsage{
	certificates.KubeAPIServerClientKubeletSignerName: {certificates.UsageDigitalSignature, certificates.UsageClientAuth},
	certificates.KubeletServingSignerName:             {certificates.UsageDigitalSignature, certificates.UsageServerAuth},
	certificates.KubeAPIServerClientSignerName:        {certificates.UsageClientAuth},
}

// ruleSigners are the signers of those rules that handle requests of one signer only.
var ruleSigners = map[string]string{
	approval.SelfNodeClient{}.Name(): certificates.KubeAPIServerClientKubeletSignerName,
	approval.NodeClient{}.Name():     certificates.KubeAPIServerClientKubeletSignerName,
	approval.KubeletServing{}.Name(): certificates.KubeletServingSignerName,
}

// checkName returns why a signer name is invalid, or nil. It allows what kube-apiserver allows in
// spec.signerName. In the domain of Kubernetes it allows only the built-in signers.
func checkName(name string) error {
	domain, path, ok := strings.Cut(name, "/")
	switch {
	case signer.KubernetesUsages(name) != nil:
		return nil
	case name == legacyUnknown:
		return fmt.Errorf("%s is not supported, because its certificates are valid for every purpose; use a signer in your own domain", name)
	case domain == kubernetesDomain:
		return fmt.Errorf("%s given, want one of %s, or a signer in your own domain", quoted(name), strings.Join(slices.Sorted(maps.Keys(required)), ", "))
	case !ok || strings.Contains(path, "/"):
		return fmt.Errorf("%s given, want DOMAIN/NAME such as example.com/etcd-peer", quoted(name))
	case !dnsname.IsSubdomain(domain) || !strings.Contains(domain, "."):
		return fmt.Errorf("%s given, want a lower-case domain with a dot before the slash, such as example.com", quoted(name))
	case !dnsname.IsSubdomain(path):
		return fmt.Errorf("%s given, want [a-z0-9.-] after the slash, beginning and ending with a letter or digit, such as etcd-peer", quoted(name))
	case !dnsname.IsHost(domain):
		return fmt.Errorf("%s given, want at most %d characters in each label of the domain", quoted(name), dnsname.MaxLabel)
	}
	return nil
}

// checkCombined reports mistakes that involve several fields of a signer, each of which is valid by itself.
func (r *yamlReader) checkCombined(s *Signer) {
	fail := func(field, format string, args ...any) {
		r.fail(s.at(field), s.path+"."+field, format, args...)
		top, _, _ := strings.Cut(field, ".")
		s.wrong[top] = true
	}
	kubernetes := signer.KubernetesUsages(s.Name)
	known := kubernetes != nil
	switch {
	case s.isWrong("name", "usages"):
	case known && len(s.Usages) > 0:
		for _, u := range s.Usages {
			if !slices.Contains(kubernetes, u) {
				fail("usages", "%q given, want some of %q, the usages of signer %s", u, kubernetes, s.Name)
			}
		}
		for _, u := range required[s.Name] {
			if !slices.Contains(s.Usages, u) {
				fail("usages", "%q is missing, but every request for signer %s needs it", u, s.Name)
			}
		}
	case known:
	case len(s.Usages) == 0:
		fail("usages", "missing")
	case !slices.ContainsFunc(s.Usages, extended):
		fail("usages", "%q given, want at least one extended key usage such as \"server auth\": without one, a certificate is valid for every purpose", s.Usages)
	case slices.Contains(s.Usages, certificates.UsageAny):
		fail("usages", "%q given, want specific usages: with it, a certificate is valid for every purpose", certificates.UsageAny)
	}
	if !known && !s.isWrong("name", "subject", "names") && (s.Subject == nil || len(s.Subject.CommonNames) == 0) && (s.Names == nil || s.Names.empty()) {
		fail("subject", "neither subject.commonNames nor names given, want one of them: otherwise a certificate identifies nobody")
	}
	if d := s.Duration; d != (Duration{}) && !s.isWrong("duration") {
		switch longest := max(d.Default, d.Max); {
		case d.Max > 0 && d.Default > d.Max:
			fail("duration.default", "default %s is larger than max %s", d.Default, d.Max)
		case d.Default > 0 && d.Min > d.Default && d.Min <= longest:
			fail("duration.default", "default %s is smaller than min %s", d.Default, d.Min)
		case longest > 0 && d.Min > longest:
			fail("duration.min", "min %s is larger than the maximum %s", d.Min, longest)
		}
	}
	if s.isWrong("name", "approval") {
		return
	}
	// Build checks the scope, which is not known here.
	if _, err := approval.Rules(s.Approval, approval.ServingScope{}); err != nil {
		fail("approval", "%v", err)
	}
	for _, name := range s.Approval {
		if only := ruleSigners[name]; only != "" && only != s.Name {
			fail("approval", "rule %s only handles requests for signer %s", name, only)
		}
	}
}

func (n *Names) empty() bool {
	return len(n.DNS)+len(n.Wildcards)+len(n.IPs)+len(n.Emails)+len(n.URIs) == 0
}

// extended reports whether a usage is an extended key usage, which limits the purpose of a certificate.
func extended(u certificates.KeyUsage) bool {
	switch u {
	case certificates.UsageSigning, certificates.UsageDigitalSignature, certificates.UsageContentCommitment, certificates.UsageKeyEncipherment,
		certificates.UsageKeyAgreement, certificates.UsageDataEncipherment, certificates.UsageEncipherOnly, certificates.UsageDecipherOnly:
		return false
	}
	return true
}
