package signer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

// A Signer is one kind of certificate that is given out.
type Signer struct {
	// CA is called for each certificate, so that it can follow its files. See [Fixed].
	CA func() (*CA, error)
	// Profile is what the certificates are like.
	Profile Profile
	// Check says why a request is not one for this signer, or nil; its message goes to the
	// requester. The signers that Kubernetes names have their own rules, and Check is in
	// addition. Every other signer needs it.
	Check func(approval.Request) error
}

// KubernetesSigners are the signers that kube-controller-manager has, with its rules, each with
// certificates from ca that last for duration unless less is asked for (zero: 365 days):
// kubernetes.io/kube-apiserver-client-kubelet, kubernetes.io/kubelet-serving and
// kubernetes.io/kube-apiserver-client.
func KubernetesSigners(ca func() (*CA, error), duration time.Duration) map[string]Signer {
	client := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, certificates.UsageClientAuth}
	serving := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, certificates.UsageServerAuth}
	return map[string]Signer{
		certificates.KubeAPIServerClientKubeletSignerName: {CA: ca, Profile: Profile{Usages: client, Default: duration}},
		certificates.KubeletServingSignerName:             {CA: ca, Profile: Profile{Usages: serving, Default: duration}},
		certificates.KubeAPIServerClientSignerName:        {CA: ca, Profile: Profile{Usages: client, Default: duration}},
	}
}

// An Authority is the one door to a certificate. Its zero value approves and signs nothing. It
// must not be changed while it is used.
type Authority struct {
	// Rules approve requests, in this order. None leaves every request to others.
	Rules []approval.Rule
	// Facts is what the rules may ask.
	Facts approval.Facts
	// Nodes says who may have which node's name. Nil refuses every bootstrap token.
	Nodes *NodeAdmission
	// Signers are the kinds of certificates that can be had, by signer name.
	Signers map[string]Signer
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

// Check says what is wrong with the authority's signers, or nil.
func (a *Authority) Check() error {
	var errs []error
	for name, s := range a.Signers {
		if err := s.check(name); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (s Signer) check(name string) error {
	if s.CA == nil {
		return fmt.Errorf("signer %s has no CA", name)
	}
	if s.Check == nil && kubernetesChecks[name] == nil {
		return fmt.Errorf("signer %s has no check, and would sign anything", name)
	}
	if err := s.Profile.Check(); err != nil {
		return fmt.Errorf("signer %s: %w", name, err)
	}
	return nil
}

// ruleNodes stands in Decision.Rule where it is not a rule that decided.
const ruleNodes = "node-admission"

// Decide says whether a request is to be approved: the rules approve of it, and so does Nodes.
// The admission is for [Authority.Sign], and nil unless the verdict is to approve. The error is
// for the log: the verdict beside it is to wait.
func (a *Authority) Decide(ctx context.Context, r approval.Request) (approval.Decision, *Admission, error) {
	d, err := approval.Decide(ctx, a.Rules, r, a.Facts)
	if err != nil || d.Verdict != approval.Approve {
		return d, nil, err
	}
	admission, err := a.Nodes.Admit(ctx, r)
	var (
		refused *Refused
		waits   *waiting
	)
	switch {
	case err == nil:
		return d, admission, nil
	case errors.As(err, &refused):
		return approval.Decision{Verdict: approval.Deny, Reason: refused.Reason, Message: refused.Message, Rule: ruleNodes}, nil, nil
	case errors.As(err, &waits):
		return approval.Decision{Verdict: approval.Wait, Reason: waits.reason, Message: waits.message, Rule: ruleNodes}, nil, nil
	}
	return approval.Decision{Verdict: approval.Wait, Reason: approval.ReasonFactsUnavailable, Message: fmt.Sprintf("cannot be decided yet: %v", err), Rule: ruleNodes}, nil, err
}

// Sign issues the certificate of a request that was approved, and returns it as PEM with the
// intermediates that a client needs. It checks the request against the rules of its signer and
// asks Nodes, whoever approved it: what breaks them is a [*Refused], an unknown signer wraps
// [ErrUnknownSigner], and all other errors may pass by themselves. With the admission that a
// Decide has just given, Nodes is not asked again.
func (a *Authority) Sign(ctx context.Context, r approval.Request, admission *Admission) ([]byte, error) {
	s, ok := a.Signers[r.SignerName]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownSigner, r.SignerName)
	}
	if err := s.check(r.SignerName); err != nil {
		return nil, err
	}
	for _, check := range []func(approval.Request) error{kubernetesChecks[r.SignerName], s.Check} {
		if check == nil {
			continue
		}
		if err := check(r); err != nil {
			return nil, refuse("not a request for signer %s: %v", r.SignerName, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ca, err := s.CA()
	if err != nil {
		return nil, fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	now := time.Now
	if a.Now != nil {
		now = a.Now
	}
	if !admission.good(r, now()) {
		if admission, err = a.Nodes.Admit(ctx, r); err != nil {
			return nil, err
		}
	}
	duration := r.Expiration
	if d := admission.Duration; d > 0 && (duration == 0 || d < duration) {
		duration = d
	}
	chain, err := s.Profile.Issue(ca, Template{CSR: r.CSR, Usages: r.Usages, Duration: duration}, now())
	if err != nil {
		return nil, fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	return chain, nil
}

// Issue decides and, if the verdict is to approve, signs. Without approval there is no
// certificate and no error; the error beside the verdict to wait is the one of [Authority.Decide].
func (a *Authority) Issue(ctx context.Context, r approval.Request) ([]byte, approval.Decision, error) {
	d, admission, err := a.Decide(ctx, r)
	if err != nil || d.Verdict != approval.Approve {
		return nil, d, err
	}
	chain, err := a.Sign(ctx, r, admission)
	return chain, d, err
}
