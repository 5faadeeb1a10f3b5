package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kubejoin/kubejoin/internal/loop"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

// Reasons of Events about the CA.
const (
	eventCAFilesUnusable = "CAFilesUnusable"
	eventCAReplaced      = "CAReplaced"
	eventCAShortens      = "CAShortensCertificates"
	eventCAExpiresSoon   = "CAExpiresSoon"
	eventCAExpired       = "CAExpired"
)

// loadCA takes the CA from files and follows them. Certificates that it signs are to last for
// lifetime.
func (s *service) loadCA(certFile, keyFile string, lifetime time.Duration) error {
	hint := make(chan struct{}, 1)
	ca, err := reload.Files[*signer.CA]{
		Name: "ca", Paths: []string{certFile, keyFile},
		Load: func() (*signer.CA, error) { return signer.LoadCA(certFile, keyFile) },
		Changed: func(ca *signer.CA) error {
			select {
			case hint <- struct{}{}:
			default:
			}
			var errs []error
			for _, follow := range s.caChanged {
				errs = append(errs, follow(ca))
			}
			return errors.Join(errs...)
		},
		Failed: func(err error) {
			s.event(corev1.EventTypeWarning, eventCAFilesUnusable, fmt.Sprintf("The CA files have changed and cannot be used, the last good ones stay in use: %v", err))
		},
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if err != nil {
		return fmt.Errorf("cluster CA: %w", err)
	}
	s.ca = ca
	s.goBackground(ca.Run)
	watch := &caWatch{
		ca: ca.Get, lifetime: lifetime, log: s.log, event: s.event,
		end:  metrics.Gauge(s.registry, "kubejoin_ca_not_after_timestamp_seconds", "When the CA that signs expires.").WithLabelValues(),
		many: metrics.Gauge(s.registry, "kubejoin_ca_certificates", "CA certificates that are trusted, the one that signs among them.").WithLabelValues(),
	}
	s.goBackground(loop.Loop{Name: "ca", Hint: hint, Step: watch.step, Logger: s.log, Registerer: s.registry}.Run)
	s.check("cluster-ca", func(context.Context) error {
		if err := ca.Err(); err != nil {
			return errors.New("the CA files have changed and cannot be used; the last good ones are in use, see the log")
		}
		end := ca.Get().Certificate().NotAfter
		if state, _ := stateOfCA(end, lifetime, time.Now()); state == caExpired {
			return fmt.Errorf("the CA expired at %s and nothing can be signed", end.UTC().Format(time.RFC3339))
		}
		if notice := noticeOfCA(end, lifetime, time.Now()); notice != "" {
			return server.Notice(notice)
		}
		return nil
	})
	return nil
}

// caState is what an operator has to know of a CA.
type caState int

const (
	caGood caState = iota
	// caShortens is a CA that ends before certificates that it signs now are to end.
	caShortens
	caExpired
)

// stateOfCA is the state of a CA that expires at end, and when there will be another one: zero
// if never. Certificates that it signs are to last for lifetime.
func stateOfCA(end time.Time, lifetime time.Duration, now time.Time) (state caState, next time.Time) {
	profile := signer.Profile{Usages: []certificates.KeyUsage{certificates.UsageDigitalSignature}, Default: lifetime}
	_, notAfter, err := profile.Validity(end, 0, now)
	switch {
	case err != nil:
		return caExpired, time.Time{}
	case notAfter.Before(end):
		return caGood, now.Add(end.Sub(notAfter))
	}
	return caShortens, end
}

func shortens(end time.Time, lifetime time.Duration) string {
	return fmt.Sprintf("the CA expires at %s, and with it certificates that are to last for %s", end.UTC().Format(time.RFC3339), lifetime)
}

// caSoon is how long before its end a CA is to be replaced at the latest.
const caSoon = 30 * 24 * time.Hour

// expiresSoon reports whether a CA that has not expired will within caSoon, and when that changes:
// zero if never.
func expiresSoon(end, now time.Time) (soon bool, next time.Time) {
	switch left := end.Sub(now); {
	case left <= 0:
		return false, time.Time{}
	case left <= caSoon:
		return true, end
	}
	return false, end.Add(-caSoon)
}

// noticeOfCA is what an operator should know of a CA that can sign; empty if that is nothing.
func noticeOfCA(end time.Time, lifetime time.Duration, now time.Time) string {
	state, _ := stateOfCA(end, lifetime, now)
	soon, _ := expiresSoon(end, now)
	switch {
	case state == caShortens && soon:
		return shortens(end, lifetime) + "; that is within 30 days: replace it"
	case state == caShortens:
		return shortens(end, lifetime)
	case soon:
		return fmt.Sprintf("the CA expires at %s, within 30 days, and nothing can be signed then: replace it", end.UTC().Format(time.RFC3339))
	}
	return ""
}

// caWatch tells of a CA whenever it is another one, or in another state.
type caWatch struct {
	ca        func() *signer.CA
	lifetime  time.Duration
	log       *slog.Logger
	event     func(kind, reason, message string)
	end, many prometheus.Gauge

	told      *signer.CA
	toldState caState
	toldSoon  bool
}

func (w *caWatch) step(context.Context) (next time.Time, err error) {
	ca := w.ca()
	end := ca.Certificate().NotAfter
	w.end.Set(float64(end.Unix()))
	w.many.Set(float64(len(ca.Bundle())))
	state, next := stateOfCA(end, w.lifetime, time.Now())
	soon, then := expiresSoon(end, time.Now())
	if !then.IsZero() && (next.IsZero() || then.Before(next)) {
		next = then
	}
	replaced := w.told != nil && w.told != ca
	changed, nowSoon := w.told != ca || w.toldState != state, soon && (w.told != ca || !w.toldSoon)
	w.told, w.toldState, w.toldSoon = ca, state, soon
	log := w.log.With("subject", ca.Certificate().Subject.String(), "serial", ca.Certificate().SerialNumber.Text(16), "expires", end, "certificates", len(ca.Bundle()))
	if replaced {
		log.Info("another CA signs, or is trusted, now")
		w.event(corev1.EventTypeNormal, eventCAReplaced, fmt.Sprintf("The CA files have changed: %s signs, expires at %s, and %d certificates are trusted",
			ca, end.UTC().Format(time.RFC3339), len(ca.Bundle())))
	}
	if nowSoon {
		log.Warn("the CA expires within 30 days, and nothing can be signed then: replace it")
		w.event(corev1.EventTypeWarning, eventCAExpiresSoon, fmt.Sprintf("The CA expires at %s, in %d days, and nothing can be signed then: replace it", end.UTC().Format(time.RFC3339), int(time.Until(end).Hours()/24)))
	}
	switch {
	case !changed:
	case state == caShortens:
		log.Warn("certificates are shortened to the end of the CA", "lifetime", w.lifetime)
		w.event(corev1.EventTypeWarning, eventCAShortens, "Certificates are shortened: "+shortens(end, w.lifetime))
	case state == caExpired:
		log.Error("the CA has expired and nothing can be signed")
		w.event(corev1.EventTypeWarning, eventCAExpired, fmt.Sprintf("The CA expired at %s and nothing can be signed", end.UTC().Format(time.RFC3339)))
	}
	return next, nil
}
