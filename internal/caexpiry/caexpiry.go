// Package caexpiry reports when a CA expires and what its end does to certificates. kubejoin shows it in
// readiness, warnings, Events, logs and metrics.
package caexpiry

import (
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer"
	certificates "k8s.io/api/certificates/v1"
)

// state is what an operator must know of a CA.
type state int

const (
	good state = iota
	// shortens: the CA expires before certificates that it signs now are to expire.
	shortens
	expired
)

// stateOf returns the state of a CA that expires at end, and when the next state begins: zero if
// never. Its certificates are to last for lifetime.
func stateOf(end time.Time, lifetime time.Duration, now time.Time) (s state, next time.Time) {
	profile := signer.Profile{Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature}, Default: lifetime}
	_, notAfter, err := profile.Validity(end, 0, now)
	switch {
	case err != nil:
		return expired, time.Time{}
	case notAfter.Before(end):
		return good, now.Add(end.Sub(notAfter))
	}
	return shortens, end
}

// Expired reports whether a CA that expires at end can sign no more certificates of that lifetime.
func Expired(end time.Time, lifetime time.Duration, now time.Time) bool {
	s, _ := stateOf(end, lifetime, now)
	return s == expired
}

// warnBefore is how long before its end an operator should have replaced a CA.
const warnBefore = 30 * 24 * time.Hour

// Soon reports whether a CA has not expired and will within 30 days.
func Soon(end, now time.Time) bool {
	soon, _ := expiresSoon(end, now)
	return soon
}

// expiresSoon also returns when that changes: zero if never.
func expiresSoon(end, now time.Time) (soon bool, next time.Time) {
	switch left := end.Sub(now); {
	case left <= 0:
		return false, time.Time{}
	case left <= warnBefore:
		return true, end
	}
	return false, end.Add(-warnBefore)
}

// Notice returns what an operator should know of a CA that can sign; empty if there is nothing.
func Notice(end time.Time, lifetime time.Duration, now time.Time) string {
	s, _ := stateOf(end, lifetime, now)
	soon := Soon(end, now)
	switch {
	case s == shortens && soon:
		return shortened(end, lifetime) + "; that is within 30 days: replace it"
	case s == shortens:
		return shortened(end, lifetime)
	case soon:
		return fmt.Sprintf("the CA expires at %s, within 30 days, and nothing can be signed then: replace it", end.UTC().Format(time.RFC3339))
	}
	return ""
}

func shortened(end time.Time, lifetime time.Duration) string {
	return fmt.Sprintf("the CA expires at %s, and with it certificates that are to last for %s", end.UTC().Format(time.RFC3339), lifetime)
}
