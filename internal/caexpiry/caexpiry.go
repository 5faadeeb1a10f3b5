// Package caexpiry reports when a CA expires and how that affects certificates. kubejoin shows the reports in
// readiness, warnings, Events, logs and metrics.
package caexpiry

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

// state is the expiration state of a CA.
type state int

const (
	good state = iota
	// shortens: the CA expires before certificates that it signs now would normally expire.
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

// Expired reports whether a CA that expires at end can no longer sign certificates with this lifetime.
func Expired(end time.Time, lifetime time.Duration, now time.Time) bool {
	s, _ := stateOf(end, lifetime, now)
	return s == expired
}

// steps are the numbers of days before the expiration of a CA at which warnings begin. A Watch reports each step once.
var steps = []int{90, 30, 7}

// Within returns the last step that has begun for a CA that expires at end: 90, 30 or 7 days. It returns 0 before the
// first step and after the expiration. next is when the result changes (zero if never).
func Within(end, now time.Time) (days int, next time.Time) {
	if !now.Before(end) {
		return 0, time.Time{}
	}
	for _, step := range steps {
		if begins := end.Add(-time.Duration(step) * 24 * time.Hour); now.Before(begins) {
			return days, begins
		}
		days = step
	}
	return days, end
}

// Prepare says which command begins the rotation of a CA.
func Prepare(ca rotation.CA) string { return "run: " + ca.Command("prepare") }

// Replace says which files an operator must replace, for a CA that 'kubejoin ca' does not rotate.
func Replace(files ...string) string {
	return "replace " + strings.Join(slices.Compact(files), " and ") // certificate and key may be in one file
}

// renew says what to do about a CA that has expired. A rotation does not help, because no client trusts the old CA any more.
const renew = "renew it with the same key: docs/operate.md#renew-an-expired-ca"

// Notice returns a notice for operators about a CA that can still sign; empty if there is nothing to report. todo says
// what an operator must do: the result of [Prepare] or [Replace].
func Notice(end time.Time, lifetime time.Duration, now time.Time, todo string) string {
	s, _ := stateOf(end, lifetime, now)
	days, _ := Within(end, now)
	switch {
	case s == shortens && days > 0:
		return fmt.Sprintf("%s; that is within %d days; %s", shortened(end, lifetime), days, todo)
	case s == shortens:
		return shortened(end, lifetime) + "; " + todo
	case days > 0:
		return fmt.Sprintf("the CA expires at %s, within %d days, and cannot sign after that; %s", end.UTC().Format(time.RFC3339), days, todo)
	}
	return ""
}

func shortened(end time.Time, lifetime time.Duration) string {
	return fmt.Sprintf("the CA expires at %s, so certificates expire then instead of lasting %s", end.UTC().Format(time.RFC3339), safetext.Duration(lifetime))
}
