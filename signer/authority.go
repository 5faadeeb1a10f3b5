package signer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/foreign"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	certificates "k8s.io/api/certificates/v1"
)

// ErrUnknownSigner is wrapped when a signer name is not configured.
var ErrUnknownSigner = errors.New("signer is not configured")

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
	// Rules approve requests, in this order. None leaves every request to others.
	Rules []approval.Rule
}

// KubernetesSigners are the signers that kube-controller-manager has, with its rules, each with
// certificates from ca that last for duration unless less is asked for (zero: 365 days):
// kubernetes.io/kube-apiserver-client-kubelet, kubernetes.io/kubelet-serving and
// kubernetes.io/kube-apiserver-client. As there, requests of the first alone are approved.
func KubernetesSigners(ca func() (*CA, error), duration time.Duration) map[string]Signer {
	client := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, certificates.UsageClientAuth}
	serving := []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, certificates.UsageServerAuth}
	return map[string]Signer{
		certificates.KubeAPIServerClientKubeletSignerName: {CA: ca, Profile: Profile{Usages: client, Default: duration}, Rules: approval.Kubelet()},
		certificates.KubeletServingSignerName:             {CA: ca, Profile: Profile{Usages: serving, Default: duration}},
		certificates.KubeAPIServerClientSignerName:        {CA: ca, Profile: Profile{Usages: client, Default: duration}},
	}
}

// An Admission allows one request to have its certificate, for a second. Nil allows nothing.
type Admission struct {
	admission.Admitted
	// decision is why it was approved here; the zero Decision if it was not.
	decision approval.Decision
}

func (a *Admission) of(r approval.Request) bool { return a != nil && a.Of(r) }

// An Authority is the one door to a certificate. Its zero value approves and signs nothing. It
// must not be copied or changed once it is used.
type Authority struct {
	// Signers gives the kinds of certificates that can be had, by signer name. It is called for
	// each request, so that it can follow a configuration; what it returned must not be changed.
	// See [FixedSigners]. Nil is none.
	Signers func() map[string]Signer
	// Facts is what the rules may ask.
	Facts approval.Facts
	// Nodes says who may have which node's name. Nil refuses every bootstrap token.
	Nodes *admission.Nodes
	// Record has every certificate that is issued, refused or could not be issued. What it cannot
	// keep is not issued. Nil keeps no record.
	Record issuance.Log
	// Unthrottled leaves requesters without a rate. Otherwise a machine gets 60 certificates at once and
	// 4 more a minute, whatever it asks for, and so does each key of others; a bootstrap token gets
	// 10,000 and one more a second. The rates are of this process and are not stored. See [TooMany].
	Unthrottled bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	lastRecorded lastRecorded
	rates        rates
}

// maxCALifetime is longer than anybody keeps a CA.
const maxCALifetime = 100 * 365 * 24 * time.Hour

// MaxRemainingLifetime is how long a certificate of its signers may still be valid, whatever lifetimes they gave
// when it was issued: none outlives its CA. It is zero if there are no signers, and a hundred years at
// the most or where a CA cannot be read.
func (a *Authority) MaxRemainingLifetime() time.Duration {
	longest := time.Duration(0)
	if a.Signers == nil {
		return longest
	}
	for _, s := range a.Signers() {
		if s.CA == nil { // it issues nothing
			continue
		}
		ca, err := s.CA()
		if err != nil {
			return maxCALifetime
		}
		for _, cert := range ca.bundle {
			longest = max(longest, cert.NotAfter.Sub(a.now()))
		}
	}
	return min(longest, maxCALifetime)
}

// FixedSigners is the source of signers that do not change, for [Authority.Signers].
func FixedSigners(signers map[string]Signer) func() map[string]Signer {
	return func() map[string]Signer { return signers }
}

// Signer gives the signer of that name, if there is one.
func (a *Authority) Signer(name string) (Signer, bool) {
	if a.Signers == nil {
		return Signer{}, false
	}
	s, ok := a.Signers()[name]
	return s, ok
}

// Check says what is wrong with the authority's signers, or nil.
func (a *Authority) Check() error {
	if a.Signers == nil {
		return nil
	}
	return CheckSigners(a.Signers())
}

// CheckSigners says what is wrong with signers, or nil.
func CheckSigners(signers map[string]Signer) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(signers)) {
		s := signers[name]
		err := s.check(name)
		if err == nil {
			// A CA that cannot be had now may be later.
			if ca, caErr := s.CA(); caErr == nil && ca != nil && ca.cert != nil {
				err = ca.checkUsages(s.Profile.Usages)
			}
			if err != nil {
				err = fmt.Errorf("signer %s: %w", name, err)
			}
		}
		errs = append(errs, err)
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

// validate says with a [*approval.Refused] why a request is not one for this signer, or nil.
func (s Signer) validate(r approval.Request) error {
	// First what no signer takes: it says the worst of a request.
	if err := pkcs10.Check(r.CSR); err != nil {
		return err
	}
	for _, check := range []func(approval.Request) error{kubernetesChecks[r.SignerName], s.Check} {
		if check == nil {
			continue
		}
		if err := check(r); err != nil {
			return approval.Refuse("not a request for signer %s: %v", r.SignerName, err)
		}
	}
	if len(s.Profile.Usages) == 0 {
		return nil // it approves for others to sign
	}
	if err := s.Profile.refuses(r.CSR, r.Usages); err != nil {
		return fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	return nil
}

// What stands in Decision.Rule where it is not a rule that decided.
const (
	ruleSigner = "signer"
	ruleNodes  = "node-admission"
	ruleRate   = "issuance-rate"
)

// Decide says whether a request is to be approved: the rules of its signer approve of it, and so
// does Nodes. The admission is for [Authority.Sign], and nil unless the verdict is to approve. The
// error is for the log: the verdict beside it is to wait.
func (a *Authority) Decide(ctx context.Context, r approval.Request) (approval.Decision, *Admission, error) {
	s, known := a.Signer(r.SignerName)
	d, err := approval.Decide(ctx, s.Rules, r, a.Facts)
	if err != nil {
		return d, nil, err
	}
	if known && d.Rule == "" {
		// Why no rule knows it, perhaps.
		if err := s.validate(r); err != nil {
			d.Evidence = []string{err.Error()}
		}
	}
	var admission *Admission
	if d.Verdict == approval.Approve {
		if d, admission, err = a.admit(ctx, s, r, d); err != nil {
			return d, nil, err
		}
	}
	if d.Verdict == approval.Deny {
		e := a.entry(r, nil)
		e.Rule, e.Evidence = d.Rule, d.Evidence
		if err := a.recordRefusal(ctx, r, e, d.Reason, d.Message); err != nil {
			return unavailable(err, d.Rule), nil, err
		}
	}
	return d, admission, nil
}

// admit asks Nodes about a request that the rules approve of, if its signer would sign it: no name
// is claimed for one that it would not.
func (a *Authority) admit(ctx context.Context, s Signer, r approval.Request, d approval.Decision) (approval.Decision, *Admission, error) {
	if err := s.validate(r); err != nil {
		denied := step(ruleSigner, err, "", "")
		denied.Evidence = d.Evidence
		return denied, nil, nil
	}
	admitted, err := a.Nodes.Admit(ctx, r)
	if err == nil {
		return d, &Admission{*admitted, d}, nil
	}
	denied := step(ruleNodes, err, "", "")
	denied.Evidence = d.Evidence
	if denied.Reason == approval.ReasonFactsUnavailable {
		return denied, nil, err
	}
	return denied, nil, nil
}

func unavailable(err error, rule string) approval.Decision {
	if d := WaitDecision(err); d != nil {
		return *d
	}
	return approval.Decision{Verdict: approval.Wait, Reason: approval.ReasonFactsUnavailable, Message: foreign.Text(fmt.Sprintf("cannot be decided yet: %v", err), foreign.MaxMessage), Rule: rule}
}

// Sign issues the certificate of a request that was approved, and returns it as PEM with the
// intermediates that a client needs. It checks the request against the rules of its signer and
// asks Nodes, whoever approved it: what breaks them is a [*approval.Refused], an unknown signer wraps
// [ErrUnknownSigner], and all other errors may pass by themselves. With the admission that a
// Decide gave for the same request within the last second, Nodes is not asked again.
func (a *Authority) Sign(ctx context.Context, r approval.Request, admission *Admission) ([]byte, error) {
	done, err := a.sign(ctx, r, &admission)
	if errors.Is(err, ErrUnknownSigner) || errors.Is(err, context.Canceled) {
		return nil, err
	}
	if recordErr := a.record(ctx, r, admission, done, err); recordErr != nil {
		return nil, recordErr
	}
	return done.chain, err
}

// sign is Sign without the record. It leaves the admission that it went by.
func (a *Authority) sign(ctx context.Context, r approval.Request, admission **Admission) (issued, error) {
	s, ok := a.Signer(r.SignerName)
	if !ok {
		return issued{}, fmt.Errorf("%w: %q", ErrUnknownSigner, r.SignerName)
	}
	if err := s.check(r.SignerName); err != nil {
		return issued{}, err
	}
	// Before Nodes, which claims a name for a request that can be signed.
	if err := s.validate(r); err != nil {
		return issued{}, err
	}
	if err := ctx.Err(); err != nil {
		return issued{}, err
	}
	ca, err := s.CA()
	if err != nil {
		return issued{}, fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	// Before Nodes as well, which may ask an API server: this request may be looked at again and again.
	if err := a.take(r, false, false); err != nil {
		return issued{}, err
	}
	if before := *admission; before == nil || !before.Holds(r, a.now()) {
		admitted, err := a.Nodes.Admit(ctx, r)
		if err != nil {
			return issued{}, err
		}
		*admission = &Admission{Admitted: *admitted}
		if before.of(r) { // why it was approved has not changed
			(*admission).decision = before.decision
		}
	}
	if err := a.take(r, false, true); err != nil {
		return issued{}, err
	}
	done, err := s.Profile.issue(ca, Template{CSR: r.CSR, Usages: r.Usages, Duration: (*admission).Lifetime(r)}, a.now())
	if err != nil {
		return issued{}, fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	return done, nil
}

// take is the [*TooMany] of a requester that has had enough for now.
func (a *Authority) take(r approval.Request, refusal, spend bool) error {
	if a.Unthrottled {
		return nil
	}
	return a.rates.take(r, refusal, spend, a.now())
}

func (a *Authority) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// Issue decides and, if the verdict is to approve, signs. Without approval there is no
// certificate and no error; the error beside the verdict to wait is the one of [Authority.Decide].
func (a *Authority) Issue(ctx context.Context, r approval.Request) ([]byte, approval.Decision, error) {
	d, admission, err := a.Decide(ctx, r)
	if d.Verdict != approval.Approve {
		return nil, d, err
	}
	chain, err := a.Sign(ctx, r, admission)
	return chain, d, err
}
