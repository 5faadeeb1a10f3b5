// Package caexpiry reports when a CA expires and how that affects certificates. kubejoin shows it in readiness,
// warnings, Events, logs and metrics.
package caexpiry

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer"
)

// state is the expiration state of a CA.
type state int

const (
	good state = iota
	// shortens: the CA expires before the normal end of certificates that it signs now.
	shortens
	expired
)

// stateOf returns the state of a CA that expires at end, and when the next state begins (zero if never). lifetime is
// the normal lifetime of its certificates.
func stateOf(end time.Time, lifetime time.Duration, now time.Time) (s state, next time.Time) {
	_, notAfter, err := signer.Validity(end, cmp.Or(lifetime, signer.DefaultDuration), now)
	switch {
	case err != nil:
		return expired, time.Time{}
	case notAfter.Before(end):
		return good, now.Add(end.Sub(notAfter))
	}
	return shortens, end
}

// Expired reports whether a CA that expires at end can no longer sign certificates of that lifetime.
func Expired(end time.Time, lifetime time.Duration, now time.Time) bool {
	s, _ := stateOf(end, lifetime, now)
	return s == expired
}

// warnBefore is how long before its expiration the warnings about a CA begin.
const warnBefore = 30 * 24 * time.Hour

// Soon reports whether a CA expires within 30 days and has not expired yet.
func Soon(end, now time.Time) bool {
	soon, _ := expiresSoon(end, now)
	return soon
}

// expiresSoon also returns when the result changes (zero if never).
func expiresSoon(end, now time.Time) (soon bool, next time.Time) {
	switch left := end.Sub(now); {
	case left <= 0:
		return false, time.Time{}
	case left <= warnBefore:
		return true, end
	}
	return false, end.Add(-warnBefore)
}

// Notice returns a notice for operators about a CA that can still sign; empty if there is nothing to report.
func Notice(end time.Time, lifetime time.Duration, now time.Time) string {
	s, _ := stateOf(end, lifetime, now)
	soon := Soon(end, now)
	switch {
	case s == shortens && soon:
		return shortened(end, lifetime) + "; that is within 30 days, so replace it"
	case s == shortens:
		return shortened(end, lifetime)
	case soon:
		return fmt.Sprintf("the CA expires at %s, within 30 days, and cannot sign after that: replace it", end.UTC().Format(time.RFC3339))
	}
	return ""
}

func shortened(end time.Time, lifetime time.Duration) string {
	return fmt.Sprintf("the CA expires at %s, so certificates expire then instead of lasting %s", end.UTC().Format(time.RFC3339), lifetime)
}
