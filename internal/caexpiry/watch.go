package caexpiry

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/prometheus/client_golang/prometheus"
)

// A Watch reports when a CA is replaced or its state changes.
type Watch struct {
	CA       func() *signer.CA
	Lifetime time.Duration // normal lifetime of the certificates that the CA signs
	// Trust returns why clients would refuse certificates of the CA, for example by calling signer.CheckTrust.
	Trust  func(*signer.CA) error
	Logger *slog.Logger
	Event  func(e codes.Event, message string)
	// Todo says what an operator must do before the CA expires: the result of Prepare or Replace.
	Todo string
	// NotAfter is the expiration of the CA in Unix seconds. Certificates is the number of certificates in its bundle.
	NotAfter, Certificates prometheus.Gauge
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	reported      *signer.CA
	reportedState state
	reportedDays  int
}

// Step reports changes since the last call, and returns when the state changes next (zero if never).
func (w *Watch) Step(context.Context) (next time.Time, err error) {
	ca := w.CA()
	if w.reported != nil && same(w.reported, ca) {
		ca = w.reported // the same CA, loaded again
	}
	end := ca.Certificate().NotAfter
	w.NotAfter.Set(float64(end.Unix()))
	w.Certificates.Set(float64(len(ca.Bundle())))
	now := time.Now()
	if w.Now != nil {
		now = w.Now()
	}
	state, next := stateOf(end, w.Lifetime, now)
	days, then := Within(end, now)
	if !then.IsZero() && (next.IsZero() || then.Before(next)) {
		next = then
	}
	isNew := w.reported != ca
	replaced := w.reported != nil && isNew
	changed, nextStep := isNew || w.reportedState != state, days > 0 && (isNew || w.reportedDays != days)
	w.reported, w.reportedState, w.reportedDays = ca, state, days
	log := w.Logger.With("subject", ca.Certificate().Subject.String(), "serial", ca.Certificate().SerialNumber.Text(16), "expires", end, "certificates", len(ca.Bundle()))
	if replaced {
		log.Info("CA replaced")
		w.Event(codes.CAReplaced, fmt.Sprintf("kubejoin uses the new CA files: %s signs and expires at %s, and %d certificates are trusted",
			ca, end.UTC().Format(time.RFC3339), len(ca.Bundle())))
	}
	if isNew {
		if err := w.Trust(ca); err != nil {
			log.Warn("clients refuse certificates of the CA", "error", err)
			w.Event(codes.CANotTrusted, fmt.Sprintf("Replace the CA: %v", err))
		}
	}
	if nextStep {
		log.Warn("CA expires soon", "days", days, "next", w.Todo)
		w.Event(codes.CAExpiresSoon, fmt.Sprintf("The CA expires at %s, within %d days, and cannot sign after that; %s", end.UTC().Format(time.RFC3339), days, w.Todo))
	}
	switch {
	case !changed:
	case state == shortens:
		log.Warn("CA expires before the certificates that it signs, shortening them", "lifetime", w.Lifetime, "next", w.Todo)
		w.Event(codes.CAShortensCertificates, "kubejoin shortens certificates: "+shortened(end, w.Lifetime)+"; "+w.Todo)
	case state == expired:
		log.Error("CA expired, cannot sign", "next", renew)
		w.Event(codes.CAExpired, fmt.Sprintf("The CA expired at %s, and kubejoin cannot sign with it: %s", end.UTC().Format(time.RFC3339), renew))
	}
	return next, nil
}

// same reports whether two CAs have the same signing certificate and the same bundle.
func same(a, b *signer.CA) bool {
	return a.Certificate().Equal(b.Certificate()) && slices.EqualFunc(a.Bundle(), b.Bundle(), (*x509.Certificate).Equal)
}
