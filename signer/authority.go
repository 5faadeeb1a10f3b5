package signer

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/pemfile"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/issuance"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// ErrUnknownSigner is wrapped when a signer name is not configured.
var ErrUnknownSigner = errors.New("signer is not configured")

// A Signer issues one kind of certificate. [NewSigner] and [KubernetesSigners] make one. The zero Signer refuses every
// request.
type Signer struct {
	// Rules approve requests, in this order. Without rules, other approvers decide every request.
	Rules []approval.Rule

	name    string
	ca      func() (*CA, error)
	profile Profile
	checks  []func(approval.Request) error
}

// NewSigner returns a signer that has no rules.
//
// The signer calls ca for each certificate, so that ca can follow its files. NewSigner calls it once, and ignores its error:
// the files may come later. See [Fixed].
//
// check returns an error if a request is not for this signer; the requester sees its message. For signers of Kubernetes
// it applies in addition to their own rules, and may be nil. Every other signer must have a check.
func NewSigner(name string, ca func() (*CA, error), c ProfileConfig, check func(approval.Request) error) (Signer, error) {
	if ca == nil {
		return Signer{}, fmt.Errorf("signer %s has no CA", name)
	}
	s := Signer{name: name, ca: ca}
	for _, check := range []func(approval.Request) error{kubernetesChecks[name], check} {
		if check != nil {
			s.checks = append(s.checks, check)
		}
	}
	if len(s.checks) == 0 {
		return Signer{}, fmt.Errorf("signer %s has no check and would sign any request", name)
	}
	var err error
	if s.profile, err = NewProfile(c); err == nil {
		switch now, unreadable := ca(); {
		case unreadable != nil:
		case now == nil:
			err = errNoCA
		default:
			err = now.checkUsages(c.Usages)
		}
	}
	if err != nil {
		return Signer{}, fmt.Errorf("signer %s: %w", name, err)
	}
	return s, nil
}

// CA returns the CA that signs now. It fails for the zero Signer.
func (s Signer) CA() (*CA, error) {
	if s.ca == nil {
		return nil, errNoCA
	}
	ca, err := s.ca()
	if err == nil && ca == nil {
		return nil, errNoCA
	}
	return ca, err
}

var errNoCA = errors.New("no CA given")

// Profile returns the configuration of the profile with its defaults filled in. It must not be changed. The zero Signer
// has the zero ProfileConfig.
func (s Signer) Profile() ProfileConfig { return s.profile.config }

// KubernetesUsages returns the usages of a signer of [KubernetesSigners], or nil for any other name.
func KubernetesUsages(name string) []certificates.KeyUsage {
	purpose := certificates.UsageClientAuth
	switch name {
	case certificates.KubeAPIServerClientKubeletSignerName, certificates.KubeAPIServerClientSignerName:
	case certificates.KubeletServingSignerName:
		purpose = certificates.UsageServerAuth
	default:
		return nil
	}
	return []certificates.KeyUsage{certificates.UsageDigitalSignature, certificates.UsageKeyEncipherment, purpose}
}

// KubernetesSigners returns signers with the rules of kube-controller-manager:
// kubernetes.io/kube-apiserver-client-kubelet, kubernetes.io/kubelet-serving and kubernetes.io/kube-apiserver-client.
// They issue certificates from ca with the lifetime duration, unless the request asks for less; zero means 365 days. As
// in kube-controller-manager, only requests for the first signer are approved automatically. Errors are errors of
// [NewSigner].
func KubernetesSigners(ca func() (*CA, error), duration time.Duration) (map[string]Signer, error) {
	signers := map[string]Signer{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(kubernetesChecks)) {
		s, err := NewSigner(name, ca, ProfileConfig{Usages: KubernetesUsages(name), Default: duration}, nil)
		if name == certificates.KubeAPIServerClientKubeletSignerName {
			s.Rules = approval.Kubelet()
		}
		signers[name], errs = s, append(errs, err)
	}
	return signers, errors.Join(errs...)
}

// An Admission is a request that an [Authority] has validated, approved and admitted. Only [Authority.Decide] makes
// one, and [Authority.SignAdmitted] signs it.
type Admission struct {
	valid    validRequest
	admitted admission.Admitted
	at       time.Time
	// decision is the approval by the rules; the zero Decision if another approver approved the request.
	decision approval.Decision
}

// Decision returns the decision of the rule that approved the request.
func (m *Admission) Decision() approval.Decision { return m.decision }

// Keys returns how many keys have been admitted on the claim of the node name, and the ID of the token that holds the
// claim. They are zero and empty if there is no claim.
func (m *Admission) Keys() (keys int, tokenID string) { return m.admitted.Keys, m.admitted.TokenID }

// An Authority decides certificate requests and signs them. The zero Authority approves and signs nothing. An
// Authority must not be copied or changed after first use.
type Authority struct {
	// Signers returns the signers by name. It is called for each request, so that it can follow a configuration. The
	// returned map must not be changed. See [FixedSigners]. Nil means no signers.
	Signers func() map[string]Signer
	// Facts gives the rules the facts that they need.
	Facts approval.Facts
	// Nodes decides which requester may have which node name. Nil refuses every bootstrap token.
	Nodes *admission.Nodes
	// Revocations refuses the requests of revoked credentials. With nil, no credential is revoked.
	Revocations *revocation.Guard
	// Record stores an entry for every request that was signed, refused or failed. If it cannot store the entry, no
	// certificate is issued. Nil keeps no record.
	Record issuance.Log
	// MaxLifetime returns the longest lifetime of a certificate that ca signs for a kubelet; zero means that only the
	// profile limits it. Kubelets renew their certificates by themselves. A nil function limits no certificate.
	MaxLifetime func(ca *x509.Certificate, node string) time.Duration
	// Unthrottled disables the rate limits of requesters. With limits, a machine gets 60 certificates at once and
	// then 4 a minute, for all its requests together. For other requesters, this limit applies to each key. A
	// bootstrap token gets 10,000 at once and then one a second. The counters are kept in memory, separately in
	// each process. See [ReasonTooManyCertificates].
	Unthrottled bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	lastRecorded lastRecorded
	rates        rates
}

// maxCALifetime is longer than the time for which any CA is used.
const maxCALifetime = 100 * 365 * 24 * time.Hour

// MaxRemainingLifetime returns how long a certificate of these signers may still be valid, including certificates
// issued with other lifetimes. It is the remaining lifetime of the CAs, because no certificate outlives its CA. It is
// zero without signers, at most 100 years, and 100 years if a CA cannot be read.
func (a *Authority) MaxRemainingLifetime() time.Duration {
	longest := time.Duration(0)
	if a.Signers == nil {
		return longest
	}
	for _, s := range a.Signers() {
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

// FixedSigners returns a source of signers that do not change, for [Authority.Signers].
func FixedSigners(signers map[string]Signer) func() map[string]Signer {
	return func() map[string]Signer { return signers }
}

// Signer returns the signer of that name, if there is one.
func (a *Authority) Signer(name string) (Signer, bool) {
	if a.Signers == nil {
		return Signer{}, false
	}
	s, ok := a.Signers()[name]
	return s, ok
}

// A validRequest is a request that its signer would sign. Only Signer.validate makes one, and an [Authority] signs nothing
// else.
type validRequest struct {
	signer  Signer
	checked admission.CheckedRequest
}

// validate checks a request. It returns an [*approval.Error] if this signer does not sign the request.
func (s Signer) validate(r approval.Request) (validRequest, error) {
	// First check the rules of all signers: they give the most serious reasons for a refusal.
	checked, err := admission.Check(r)
	if err != nil {
		return validRequest{}, err
	}
	if s.name != r.SignerName {
		return validRequest{}, approval.Refuse("not a request for signer %s: it has signer name %q", s.name, r.SignerName)
	}
	for _, check := range s.checks {
		if err := check(r); err != nil {
			return validRequest{}, approval.Refuse("not a request for signer %s: %v", r.SignerName, err)
		}
	}
	if err := s.profile.refuses(r); err != nil {
		return validRequest{}, fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	return validRequest{s, checked}, nil
}

// Values of Decision.Rule if no rule decided.
const (
	ruleSigner = "signer"
	ruleNodes  = "node-admission"
	ruleRate   = "issuance-rate"
	ruleRevoke = "revocation"
	ruleRejoin = "rejoin"
)

// Decide approves a request if the rules of its signer approve it and Nodes admits it. The Admission is for
// [Authority.SignAdmitted]. If it is nil, the error is an [*approval.Error].
func (a *Authority) Decide(ctx context.Context, r approval.Request) (*Admission, error) {
	m, no := a.decide(ctx, r)
	if no == nil {
		return m, nil
	}
	if no.Verdict == approval.Deny {
		e := a.entry(r, approval.Decision{})
		e.Rule, e.Evidence = no.Rule, no.Evidence
		if err := a.recordRefusal(ctx, r, e, no); err != nil {
			no = because(err, no.Rule, nil)
			no.Err = err
		}
	}
	return nil, no
}

// decide does the work of Decide, without the record.
func (a *Authority) decide(ctx context.Context, r approval.Request) (*Admission, *approval.Error) {
	s, known := a.Signer(r.SignerName)
	if known {
		if err := a.checkRevoked(ctx, r); err != nil {
			return nil, because(err, ruleRevoke, nil)
		}
	}
	d, err := approval.Decide(ctx, s.Rules, r, a.Facts)
	if known && d.Rule == "" {
		// The signer's checks may say why no rule recognizes the request.
		if _, err := s.validate(r); err != nil {
			d.Evidence = []string{err.Error()}
		}
	}
	if d.Verdict != approval.Approve {
		return nil, &approval.Error{Decision: d, Err: err}
	}
	at := a.now()
	// Check first that the signer would sign the request: only such a request may claim a name.
	v, err := s.validate(r)
	if err != nil {
		return nil, because(err, ruleSigner, d.Evidence)
	}
	admitted, err := a.Nodes.Admit(ctx, v.checked)
	if err == nil {
		return &Admission{v, *admitted, at, d}, nil
	}
	if r.Rejoin != nil {
		return nil, because(err, ruleRejoin, d.Evidence)
	}
	return nil, because(err, ruleNodes, d.Evidence)
}

// because returns the [*approval.Error] in err with a rule and its evidence. Any other error means that the request waits.
func because(err error, rule string, evidence []string) *approval.Error {
	no := approval.Error{Err: err, Decision: approval.Decision{
		Verdict: approval.Wait, Reason: approval.ReasonFactsUnavailable,
		Message: safetext.Text(fmt.Sprintf("kubejoin cannot decide the request yet: %v", err), safetext.MaxMessage),
	}}
	if e, found := errors.AsType[*approval.Error](err); found {
		no = *e
	}
	no.Rule, no.Evidence = cmp.Or(no.Rule, rule), evidence
	return &no
}

// Sign issues the certificate of a request that was approved. It returns PEM with the intermediates that a client
// needs. It checks the request against the rules of its signer and asks Nodes, regardless of who approved it. If the
// request breaks them or has to wait, the error wraps an [*approval.Error]. For an unknown signer it wraps
// [ErrUnknownSigner]. Any other error may be temporary.
func (a *Authority) Sign(ctx context.Context, r approval.Request) ([]byte, error) {
	return a.sign(ctx, r, Admission{})
}

// SignAdmitted is [Authority.Sign] for an admitted request. For [admission.MaxAge] after the admission it neither
// validates the request nor asks Nodes again.
func (a *Authority) SignAdmitted(ctx context.Context, m *Admission) ([]byte, error) {
	return a.sign(ctx, m.valid.checked.Request(), *m)
}

func (a *Authority) sign(ctx context.Context, r approval.Request, m Admission) ([]byte, error) {
	done, err := a.issue(ctx, r, &m)
	if errors.Is(err, ErrUnknownSigner) || errors.Is(err, context.Canceled) {
		return nil, err
	}
	if recordErr := a.record(ctx, r, m.decision, done, err); recordErr != nil {
		return nil, recordErr
	}
	if err != nil {
		return nil, err
	}
	if err := a.checkDelivery(ctx, r, m, done); err != nil {
		if refused := approval.Refused(err); refused != nil {
			err = a.Refuse(ctx, r, refused)
		}
		return nil, err
	}
	return done.chain, nil
}

// checkDelivery is the last step before a certificate is delivered, after the last write. It fails if the requester was
// revoked meanwhile. If signing took longer than [admission.MaxDelivery], it also fails if Nodes no longer admits the
// bootstrap token. A revocation withdraws a CSR object that has no certificate yet, but cannot withdraw a response. So
// without an object, checkDelivery repeats checks that took a second or longer.
func (a *Authority) checkDelivery(ctx context.Context, r approval.Request, m Admission, done issued) error {
	for {
		began := a.now()
		if tokens.IDOfUser(r.User) != "" && began.Sub(m.at) > admission.MaxDelivery {
			if _, err := a.Nodes.Admit(ctx, m.valid.checked); err != nil {
				return err
			}
		}
		if err := a.refuseRevoked(ctx, r, done); err != nil {
			return err
		}
		if err := a.checkBound(ctx, r, m.admitted); err != nil || r.UID != "" || a.now().Sub(began) < time.Second {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// refuseRevoked fails if the requester of a certificate is revoked. The stores already contain this certificate, and a
// retry may return it. So refuseRevoked also revokes the certificate itself, even if the client has disconnected.
func (a *Authority) refuseRevoked(ctx context.Context, r approval.Request, done issued) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	e, err := a.revoked(ctx, r, done.requester)
	if e != nil && e.Node == "" {
		own := revocation.Entry{Fingerprint: revocation.FingerprintOf(done.cert), Until: e.Until, Reason: e.Reason, By: e.By, TokenID: e.TokenID}
		if !own.Until.IsZero() && own.Until.Before(done.cert.NotAfter) {
			own.Until = done.cert.NotAfter
		}
		_, err = a.Revocations.Revoke(ctx, own)
	}
	return unlessRevoked(e, err)
}

// Undelivered revokes a certificate that could not be written to its CSR object, if its requester was revoked
// meanwhile. The claim may already contain the certificate, and a node could rejoin with it.
func (a *Authority) Undelivered(ctx context.Context, r approval.Request, chain []byte) error {
	presented := pemfile.Presented(chain)
	if len(presented) == 0 {
		return nil
	}
	err := a.refuseRevoked(ctx, r, issued{cert: presented[0], requester: revocation.SubjectOf(r.User, r.Groups, r.Extra)})
	if approval.Refused(err) != nil {
		return nil
	}
	return err
}

// revoked returns the entry that bars a subject, or nil. For a CSR object, it may miss an entry that is less
// than [tokens.MaxAge] old. A revocation waits for that time, and then revokes the certificates in objects that
// were issued meanwhile.
func (a *Authority) revoked(ctx context.Context, r approval.Request, s revocation.Subject) (*revocation.Entry, error) {
	if r.UID != "" {
		return a.Revocations.RevokedRecently(ctx, s)
	}
	return a.Revocations.Revoked(ctx, s)
}

// issue does the work of sign, without the record: it admits the request, checks the requester for revocation, charges
// its rate, makes the certificate and stores it.
func (a *Authority) issue(ctx context.Context, r approval.Request, m *Admission) (issued, error) {
	if err := ctx.Err(); err != nil {
		return issued{}, err
	}
	age := a.now().Sub(m.at)
	recent := age >= 0 && age < admission.MaxAge
	ca, err := a.readmit(ctx, r, m, recent)
	if err != nil {
		return issued{}, err
	}
	requester := revocation.SubjectOf(r.User, r.Groups, r.Extra)
	if f := m.admitted.Fingerprint; f != "" {
		requester.Fingerprints = append(requester.Fingerprints, revocation.Fingerprint(f))
	}
	err = a.checkBound(ctx, r, m.admitted)
	// Decide may not have checked the requester, or the last certificate of a node that rejoins. A revoked credential
	// must not use up the rate of its name.
	if err == nil && (!recent || r.Rejoin != nil) {
		err = unlessRevoked(a.revoked(ctx, r, requester))
	}
	if err == nil {
		err = a.rates.take(r.User, a.allowances(r, nil, m.admitted.Stranger), a.now())
	}
	if err != nil {
		return issued{}, err
	}
	done, err := m.valid.signer.profile.issue(ctx, ca, m.valid.checked.Request(), a.lifetime(m.valid.signer, ca, r, m.admitted), a.now())
	if err != nil {
		return issued{}, fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	done.requester, done.evidence = requester, m.admitted.Evidence()
	// If the node is revoked, the entry now allows this certificate.
	if err := unlessRevoked(a.Revocations.Issue(ctx, requester, done.cert)); err != nil {
		return issued{}, err
	}
	err = a.Nodes.StoreIdentity(ctx, m.valid.checked, &m.admitted, done.cert)
	if r.Rejoin != nil { // StoreIdentity may have read a later certificate, or stored this one in spite of err
		if f := m.admitted.Fingerprint; f != "" {
			done.requester.Fingerprints = append(done.requester.Fingerprints, revocation.Fingerprint(f))
		}
		if err := a.refuseRevoked(ctx, r, done); err != nil {
			return issued{}, err
		}
	}
	if err != nil {
		return issued{}, err
	}
	return done, nil
}

// readmit returns the CA of an admitted request. Unless the admission is recent, it first validates the request, and then
// asks Nodes.
func (a *Authority) readmit(ctx context.Context, r approval.Request, m *Admission, recent bool) (ca *CA, err error) {
	if !recent {
		s, ok := a.Signer(r.SignerName)
		if !ok {
			return nil, fmt.Errorf("%w: %q", ErrUnknownSigner, r.SignerName)
		}
		if m.valid, err = s.validate(r); err != nil {
			return nil, err
		}
	}
	// Read the CA before Nodes, which claims a name only for a request that can be signed.
	if ca, err = m.valid.signer.CA(); err != nil {
		return nil, fmt.Errorf("signer %s: %w", r.SignerName, err)
	}
	if recent {
		return ca, nil
	}
	// Check the rate first: Nodes may call an API server, and this request may be retried many times.
	if err = a.rates.check(r.User, a.allowances(r, nil, false), a.now()); err != nil {
		return nil, err
	}
	m.at = a.now()
	admitted, err := a.Nodes.Admit(ctx, m.valid.checked)
	if err == nil {
		m.admitted = *admitted
	}
	return ca, err
}

// lifetime returns the lifetime for an admitted request, before the limits of the profile; zero leaves it to the profile.
func (a *Authority) lifetime(s Signer, ca *CA, r approval.Request, admitted admission.Admitted) time.Duration {
	asked := r.Expiration
	if admitted.Duration > 0 && (asked == 0 || admitted.Duration < asked) {
		asked = admitted.Duration
	}
	most := a.maxLifetime(s, ca, strings.TrimPrefix(r.CSR.Subject.CommonName, tokens.NodeUserPrefix))
	if most <= 0 {
		return asked
	}
	return min(cmp.Or(asked, s.profile.config.Default), most)
}

func (a *Authority) maxLifetime(s Signer, ca *CA, node string) time.Duration {
	if a.MaxLifetime == nil || s.name != certificates.KubeAPIServerClientKubeletSignerName && s.name != certificates.KubeletServingSignerName {
		return 0
	}
	return a.MaxLifetime(ca.Certificate(), node)
}

// NodeLifetime returns the lifetime of a node's certificate if neither the request nor a token asks for less. The bool
// is false if the signer is not configured.
func (a *Authority) NodeLifetime(signer, node string) (time.Duration, bool) {
	s, found := a.Signer(signer)
	normal := cmp.Or(s.profile.config.Default, DefaultDuration)
	ca, err := s.CA()
	if err != nil {
		return normal, found
	}
	if most := a.maxLifetime(s, ca, node); most > 0 {
		normal = min(normal, most)
	}
	return normal, found
}

// checkBound unbinds the key of a node if the certificate that bound the key is revoked. It then refuses a request that
// was authenticated with this key. So kubejoin refuses the key even after the revocation has ended or was undone.
func (a *Authority) checkBound(ctx context.Context, r approval.Request, admitted admission.Admitted) error {
	e, err := a.unbindRevoked(ctx, strings.TrimPrefix(r.User, tokens.NodeUserPrefix), admitted.BoundBy)
	if r.Rejoin == nil || !r.Rejoin.NotAfter.IsZero() {
		return err
	}
	return unlessRevoked(e, err)
}

// unbindRevoked unbinds the key of a node if the certificate that bound the key is revoked, and returns the
// revocation.
func (a *Authority) unbindRevoked(ctx context.Context, node, by string) (*revocation.Entry, error) {
	if by == "" {
		return nil, nil
	}
	e, err := a.Revocations.Revoked(ctx, revocation.Subject{Fingerprints: []revocation.Fingerprint{revocation.Fingerprint(by)}})
	if e == nil || err != nil {
		return nil, err
	}
	return e, a.Nodes.Unbind(ctx, node, by)
}

// BindKey binds a key to the node of a valid client certificate, see [admission.Nodes.BindKey]. It refuses a revoked
// certificate, because the bound key would outlast it.
func (a *Authority) BindKey(ctx context.Context, cert *x509.Certificate, key string) error {
	if err := unlessRevoked(a.Revocations.RevokedCertificate(ctx, cert)); err != nil {
		return err
	}
	node := strings.TrimPrefix(cert.Subject.CommonName, tokens.NodeUserPrefix)
	before, err := a.Nodes.BoundBy(ctx, node)
	if err != nil {
		return err
	}
	if _, err := a.unbindRevoked(ctx, node, before); err != nil {
		return err
	}
	return a.Nodes.BindKey(ctx, node, tokens.Credential{Key: pkcs10.IDOfKey(cert.RawSubjectPublicKeyInfo), Fingerprint: string(revocation.FingerprintOf(cert))}, key)
}

// checkRevoked returns an [*approval.Error] if the requester's credential is revoked.
func (a *Authority) checkRevoked(ctx context.Context, r approval.Request) error {
	s := revocation.SubjectOf(r.User, r.Groups, r.Extra)
	if r.Rejoin != nil && len(s.Fingerprints) == 0 {
		return nil // a bound key: issue checks the node's last certificate, which the entry may allow
	}
	return unlessRevoked(a.revoked(ctx, r, s))
}

// unlessRevoked returns an [*approval.Error] if a credential is revoked. Its arguments are the results of a
// [revocation.Guard].
func unlessRevoked(e *revocation.Entry, err error) error {
	if err != nil || e == nil {
		return err
	}
	return approval.RefuseFor(revocation.Reason, "kubejoin issues no certificate to this requester: %s", e.Message())
}

func (a *Authority) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// Issue decides a request and signs it if it is approved. It returns the errors of [Authority.Decide] and
// [Authority.SignAdmitted].
func (a *Authority) Issue(ctx context.Context, r approval.Request) ([]byte, error) {
	admission, err := a.Decide(ctx, r)
	if err != nil {
		return nil, err
	}
	return a.SignAdmitted(ctx, admission)
}
