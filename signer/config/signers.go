package config

import (
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// Defaults are the values for fields that a file leaves out.
type Defaults struct {
	// CA returns the CA of the cluster, for signers without one. Nil means that the cluster has none.
	CA func() (*signer.CA, error)
	// Duration is the default and maximum lifetime of certificates, for signers that set neither. Zero is
	// [signer.DefaultDuration].
	Duration time.Duration
	// Scope limits the names and addresses in kubelets' serving certificates, for rule kubelet-serving.
	Scope approval.ServingScope
}

// Build loads the CAs that the file names and returns the signers by name, as signer.Authority needs them.
// Mistakes are returned as an [Errors].
func (c *Configuration) Build(d Defaults) (map[string]signer.Signer, error) {
	signers, errs := c.build(d)
	if err := errs.asError(); err != nil {
		return nil, err
	}
	return signers, nil
}

// build is Build without errors about fields that already have one.
func (c *Configuration) build(d Defaults) (map[string]signer.Signer, Errors) {
	r := &yamlReader{file: c.file}
	signers := map[string]signer.Signer{}
	for i := range c.Signers {
		s := &c.Signers[i]
		fail := func(field, format string, args ...any) { r.fail(s.at(field), s.path+"."+field, format, args...) }
		source := d.CA
		switch {
		case s.isWrong("ca"):
		case s.CA != (CAFiles{}):
			ca, err := signer.LoadEncryptedCA(s.CA.CertFile, s.CA.KeyFile, s.CA.PassphraseFile)
			if source = signer.Fixed(ca); err != nil {
				source = nil
				fail("ca", "%v", err)
			}
		case d.CA == nil:
			fail("ca", "missing, and no cluster CA is configured: set ca here, or --cluster-signing-cert-file and --cluster-signing-key-file")
		}
		var made signer.Signer
		if profile := s.profile(d.Duration); !s.isWrong("name", "usages", "keys", "duration") {
			if _, err := signer.NewProfile(profile); err != nil {
				fail("duration", "%v", err)
			} else if source != nil {
				if made, err = signer.NewSigner(s.Name, source, profile, s.check); err != nil {
					fail("ca", "%v", err)
				}
			}
		}
		if !s.isWrong("approval") {
			var err error
			if made.Rules, err = approval.Rules(s.Approval, d.Scope); err != nil {
				fail("approval", "%v", err)
			}
		}
		signers[s.Name] = made
	}
	return signers, r.errs
}

// profile returns the certificate profile of the signer. d is the lifetime if the file sets none.
func (s *Signer) profile(d time.Duration) signer.ProfileConfig {
	p := signer.ProfileConfig{Usages: slices.Clone(s.Usages), Min: s.Duration.Min, Default: s.Duration.Default, Max: s.Duration.Max, Keys: s.Keys}
	if len(p.Usages) == 0 {
		p.Usages = signer.KubernetesUsages(s.Name)
	}
	switch {
	case p.Default == 0 && p.Max == 0:
		p.Default = d
	case p.Default == 0:
		p.Default = p.Max
	}
	return p
}
