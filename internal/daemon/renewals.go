package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/safetext"
	"github.com/kubejoin/kubejoin/server/api"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/csr"
	"github.com/kubejoin/kubejoin/signer/kubefacts"
	"github.com/kubejoin/kubejoin/tokens"
	certificates "k8s.io/api/certificates/v1"
)

// reportAgain is how often kubejoin reports an unchanged state again, because an Event expires after an hour.
const reportAgain = time.Hour

// watchRenewals returns a controller that reports nodes that wait too long for a renewed certificate. The caller sets
// its informer.
func (s *service) watchRenewals(authority *signer.Authority, nodes *kubefacts.NodeCache, events events) csr.Renewals {
	late := &lateRenewals{log: s.log, events: events}
	s.check("renewals", func(context.Context) error {
		if text := late.text(time.Now()); text != "" {
			return api.Notice(text)
		}
		return nil
	})
	return csr.Renewals{
		Nodes: nodes.Nodes, Late: func(waiting []csr.WaitingRenewal) { late.report(waiting, time.Now()) },
		Lifetime: renewedFor{authority}.lifetime,
		Logger:   s.log, Registerer: s.registry,
	}
}

// renewedFor looks up the lifetime of node certificates.
type renewedFor struct{ *signer.Authority }

// lifetime returns the lifetime of the node's certificates, or the token's certificate duration if that is shorter.
func (a renewedFor) lifetime(ctx context.Context, w csr.WaitingRenewal) (time.Duration, bool) {
	lifetime, found := a.NodeLifetime(w.Signer, w.Node)
	if w.Signer != certificates.KubeAPIServerClientKubeletSignerName || a.Nodes == nil || a.Nodes.Claims == nil {
		return lifetime, found
	}
	// If the claim cannot be read, use the signer's lifetime: then a report comes late if the token's duration is shorter.
	claim, err := a.Nodes.Claims.Get(ctx, w.Node, tokens.Cached)
	if d := claim.Remaining().CertificateDuration; err == nil && d > 0 && d < lifetime {
		lifetime = d
	}
	return lifetime, found
}

// lateRenewals holds the renewals that have waited too long.
type lateRenewals struct {
	log    *slog.Logger
	events events

	mu       sync.Mutex
	waiting  []csr.WaitingRenewal
	reported time.Time // zero while no renewal waits
}

func (l *lateRenewals) report(waiting []csr.WaitingRenewal, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = waiting
	switch {
	case len(waiting) == 0 && !l.reported.IsZero():
		l.log.Info("late renewals done")
		l.reported = time.Time{}
	case len(waiting) > 0 && now.Sub(l.reported) >= reportAgain:
		text := l.words(now)
		l.log.Warn("renewals are late", "nodes", len(waiting), "node", safetext.Text(waiting[0].Node, safetext.MaxName), "csr", safetext.Text(waiting[0].Request, safetext.MaxName), "signer", waiting[0].Signer, "since", waiting[0].Since)
		l.events.own(codes.RenewalsWait, text)
		l.reported = now
	}
}

// text returns a notice for operators; empty if there is nothing to report.
func (l *lateRenewals) text(now time.Time) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		return ""
	}
	return l.words(now)
}

func (l *lateRenewals) words(now time.Time) string {
	w := l.waiting[0]
	others := ""
	if n := len(l.waiting) - 1; n > 0 {
		others = fmt.Sprintf(", and %d more", n)
	}
	return fmt.Sprintf("node %s has waited for a certificate of signer %s for %s%s; a node drops out of the cluster when its certificate expires: %s",
		safetext.Text(w.Node, safetext.MaxName), w.Signer, now.Sub(w.Since).Round(time.Second), others, safetext.ShowCSR(w.Request, w.UID))
}
