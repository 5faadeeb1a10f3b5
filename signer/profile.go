package signer

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	certificates "k8s.io/api/certificates/v1"
)

const (
	// backdate is how long before now a certificate begins, for machines whose clock is late.
	backdate = 5 * time.Minute
	// shortLived certificates are not made shorter by backdate at their end: it is one percent
	// of 8 hours.
	shortLived = 8 * time.Hour

	// DefaultDuration is the lifetime of certificates unless [Profile.Default] says otherwise,
	// as in kube-controller-manager.
	DefaultDuration = 365 * 24 * time.Hour
	// DefaultMin is the shortest lifetime that can be asked for unless [Profile.Min] says
	// otherwise, as in kube-controller-manager.
	DefaultMin = 10 * time.Minute
	// MinDuration is the shortest lifetime that any profile may have. A kubelet renews when 70
	// to 90 percent of a certificate's time have passed, counted from its beginning, which is
	// five minutes ago: with less than three minutes to come that is at once, and for ever.
	MinDuration = 3 * time.Minute
)

// ErrExpiredCA is wrapped when the CA has expired: nothing can be issued until it is replaced.
var ErrExpiredCA = errors.New("the CA has expired")

// A Profile is what certificates of one signer are like. The zero Profile issues nothing, since
// it allows no usages.
type Profile struct {
	// Usages are those that may be asked for. A request need not ask for all of them.
	Usages []certificates.KeyUsage
	// Min is the shortest lifetime that can be asked for; less is raised to it. Zero is
	// [DefaultMin].
	Min time.Duration
	// Default is the lifetime where none is asked for. Zero is [DefaultDuration].
	Default time.Duration
	// Max is the longest lifetime that can be asked for; more is cut to it. Zero is Default.
	Max time.Duration
	// Keys are the public keys that may have one. Zero is all that are any good.
	Keys KeyPolicy
}

// Check says what is wrong with the profile, or nil.
func (p Profile) Check() error {
	if len(p.Usages) == 0 {
		return errors.New("profile without usages: want at least one")
	}
	if _, _, err := approval.X509Usages(p.Usages); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if err := p.Keys.Check(); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	minimum, standard, maximum := p.durations()
	for _, d := range []struct {
		what  string
		value time.Duration
	}{{"shortest", minimum}, {"default", standard}, {"longest", maximum}} {
		if d.value < MinDuration {
			return fmt.Errorf("%s duration of certificates is %s, want at least %s: a certificate begins %s before it is issued, "+
				"and a kubelet would renew a shorter one again at once", d.what, d.value, MinDuration, backdate)
		}
	}
	if standard > maximum {
		return fmt.Errorf("default duration of certificates is %s, and the longest %s", standard, maximum)
	}
	if p.Min > maximum {
		return fmt.Errorf("shortest duration of certificates is %s, and the longest %s", p.Min, maximum)
	}
	if p.Min > standard { // a Default below DefaultMin is meant, and used as it is
		return fmt.Errorf("default duration of certificates is %s, and the shortest %s", standard, p.Min)
	}
	return nil
}

// refuses returns a [*approval.Refused] if the profile does not allow a request that [admission.Check] has accepted.
func (p Profile) refuses(r approval.Request) error {
	if err := p.Keys.check(r.CSR.PublicKey); err != nil {
		return err
	}
	if len(r.Usages) == 0 {
		return approval.Refuse("the request has no usages, want at least one")
	}
	for _, u := range r.Usages {
		if !slices.Contains(p.Usages, u) {
			return approval.Refuse("usage %q is not allowed, want some of %q", u, p.Usages)
		}
	}
	return nil
}

func (p Profile) durations() (minimum, standard, maximum time.Duration) {
	minimum, standard, maximum = p.Min, p.Default, p.Max
	if minimum == 0 {
		minimum = DefaultMin
	}
	if standard == 0 {
		standard = DefaultDuration
	}
	if maximum == 0 {
		maximum = standard
	}
	return minimum, standard, maximum
}

// Validity is when a certificate that is issued now begins and ends, in whole seconds, if a
// lifetime of requested is asked for (zero: none) and the CA ends at caNotAfter. It is the
// arithmetic of kube-controller-manager: a lifetime asked for is held between Min and Max; the
// beginning is five minutes before now; the end is now and the lifetime, less five minutes if
// that is 8 hours or more, and never after the CA's. The error wraps [ErrExpiredCA].
func (p Profile) Validity(caNotAfter time.Time, requested time.Duration, now time.Time) (notBefore, notAfter time.Time, err error) {
	if !now.Before(caNotAfter) {
		return time.Time{}, time.Time{}, fmt.Errorf("%w: it ended at %s, it is %s", ErrExpiredCA,
			caNotAfter.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	minimum, d, maximum := p.durations()
	switch {
	case requested == 0:
	case requested > maximum: // before the minimum, which may be more
		d = maximum
	case requested < minimum:
		d = minimum
	default:
		d = requested
	}
	notBefore = now.Add(-backdate)
	notAfter = now.Add(d)
	if d >= shortLived {
		notAfter = notAfter.Add(-backdate)
	}
	if notAfter.After(caNotAfter) {
		notAfter = caNotAfter
	}
	// X.509 has no fractions of seconds; truncated here, the times can be compared later.
	return notBefore.UTC().Truncate(time.Second), notAfter.UTC().Truncate(time.Second), nil
}
