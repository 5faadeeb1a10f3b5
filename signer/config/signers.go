package config

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// Defaults are the values of fields that are missing in a file.
type Defaults struct {
	// CA returns the CA of the cluster, for signers without a CA. Nil means that there is no such CA.
	CA func() (*signer.CA, error)
	// Duration is the default and maximum lifetime of certificates, for signers that set neither. Zero means
	// [signer.DefaultDuration].
	Duration time.Duration
	// Scope limits the names and addresses in kubelets' serving certificates, for rule kubelet-serving.
	Scope approval.ServingScope
}

// Build loads the CAs that the file names and returns the signers by name, as signer.Authority needs them.
// Mistakes are returned as an [Errors].
func (c *Configuration) Build(d Defaults) (map[string]signer.Signer, error) {
	doc := *c.document
	doc.wrong = maps.Clone(doc.wrong) // the next call must begin without the errors of this call
	signers := doc.build(c.Signers, d)
	return result(signers, doc.errs)
}

// build is Build without errors that follow from an earlier one.
func (d *document) build(from []Signer, defaults Defaults) map[string]signer.Signer {
	signers := map[string]signer.Signer{}
	for i := range from {
		s := &from[i]
		at, source := s.path+".", defaults.CA
		var made signer.Signer
		var err error
		switch {
		case d.wrong[at+"ca"]:
		case s.CA != (CAFiles{}):
			ca, err := signer.LoadEncryptedCA(s.CA.CertFile, s.CA.KeyFile, s.CA.PassphraseFile)
			d.check(at+"ca", err)
			source = signer.Fixed(ca)
		case source == nil:
			d.fail(at+"ca", "missing, and no cluster CA is configured: set ca here, or --cluster-signing-cert-file and --cluster-signing-key-file")
		}
		// Check the duration first, with arbitrary usages, because the usages of the signer may be invalid.
		profile := signer.ProfileConfig{Usages: required[certificates.KubeAPIServerClientSignerName], Min: time.Duration(s.Duration.Min), Max: time.Duration(s.Duration.Max)}
		profile.Default = cmp.Or(time.Duration(cmp.Or(s.Duration.Default, s.Duration.Max)), defaults.Duration)
		if !d.wrong[at+"duration"] {
			_, err = signer.NewProfile(profile)
			d.check(at+"duration", err)
		}
		if !slices.ContainsFunc([]string{"name", "ca", "duration", "usages", "keys"}, func(field string) bool { return d.wrong[at+field] }) {
			if profile.Usages = s.Usages; len(s.Usages) == 0 {
				profile.Usages = signer.KubernetesUsages(s.Name)
			}
			profile.Keys = s.Keys.policy()
			made, err = signer.NewSigner(s.Name, source, profile, s.check)
			d.check(at+"ca", err)
		}
		if !d.wrong[at+"approval"] {
			made.Rules, err = approval.Rules(s.Approval, defaults.Scope)
			d.check(at+"approval", err)
		}
		signers[s.Name] = made
	}
	return signers
}
