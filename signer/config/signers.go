package config

import (
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// Defaults are what a file leaves to others.
type Defaults struct {
	// CA is the cluster's, for signers that name none. Nil is that there is none.
	CA func() (*signer.CA, error)
	// Duration is how long certificates last, at most and by default, of signers that say
	// neither. Zero is [signer.DefaultDuration].
	Duration time.Duration
	// Scope is what kubelets may serve as, for rule kubelet-serving.
	Scope approval.ServingScope
}

// Build loads the CAs that the file names and gives the signers by name, as signer.Authority
// takes them. What cannot be used is an [Errors].
func (c *Configuration) Build(d Defaults) (map[string]signer.Signer, error) {
	signers, errs := c.build(d)
	if err := errs.asError(); err != nil {
		return nil, err
	}
	return signers, nil
}

// build is Build that says nothing anew of fields that are known to be wrong.
func (c *Configuration) build(d Defaults) (map[string]signer.Signer, Errors) {
	r := &nodes{file: c.file}
	signers := map[string]signer.Signer{}
	for i := range c.Signers {
		s := &c.Signers[i]
		fail := func(field, format string, args ...any) { r.fail(s.at(field), s.path+"."+field, format, args...) }
		made := signer.Signer{CA: d.CA, Check: s.check, Profile: s.profile(d.Duration)}
		switch {
		case s.isWrong("ca"):
		case s.CA != (CAFiles{}):
			ca, err := signer.LoadCA(s.CA.CertFile, s.CA.KeyFile)
			if err != nil {
				fail("ca", "%v", err)
			}
			made.CA = signer.Fixed(ca)
		case d.CA == nil:
			fail("ca", "missing, and the cluster has none either: give it here or with --cluster-signing-cert-file and --cluster-signing-key-file")
		}
		if !s.isWrong("name", "usages", "keys", "duration") {
			if err := made.Profile.Check(); err != nil {
				fail("duration", "%v", err)
			} else if err := signer.CheckSigners(map[string]signer.Signer{s.Name: made}); err != nil && made.CA != nil {
				fail("ca", "%v", err)
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

// profile is what certificates are like, where they last for d unless the file says something.
func (s *Signer) profile(d time.Duration) signer.Profile {
	p := signer.Profile{Usages: slices.Clone(s.Usages), Min: s.Duration.Min, Default: s.Duration.Default, Max: s.Duration.Max, Keys: s.Keys}
	if len(p.Usages) == 0 {
		p.Usages = builtIn()[s.Name].Profile.Usages
	}
	switch {
	case p.Default == 0 && p.Max == 0:
		p.Default = d
	case p.Default == 0:
		p.Default = p.Max
	}
	return p
}

// Default is the file that says what kubejoin does without one.
const Default = `# What kubejoin signs without a file: kubejoin serve --signer-config FILE has this instead.
# All fields: docs/signer-configuration.md. To try a file: kubejoin signer-config check FILE.
apiVersion: kubejoin.io/v1alpha1
kind: SignerConfiguration
signers:
# Kubelets' client certificates.
- name: kubernetes.io/kube-apiserver-client-kubelet
  approval: [selfnodeclient, nodeclient]
# Kubelets' serving certificates.
- name: kubernetes.io/kubelet-serving
  approval: [kubelet-serving]
# Clients of the API server. People approve them.
- name: kubernetes.io/kube-apiserver-client
`
