// Package rejoin lets a node come back after its certificate has expired. Its old key proves that it is the node: a
// [Desk] checks it against the claim of the node, and gives a bootstrap token for this one Node.
//
// docs/rejoin.md explains the model.
package rejoin

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/admission"
	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/prometheus/client_golang/prometheus"
	certificates "k8s.io/api/certificates/v1"
)

// DefaultBudget is how often a node may rejoin within the window.
const DefaultBudget = 3

// A Desk lets nodes rejoin. It must not be copied after first use.
type Desk struct {
	// Authority signs the certificates of nodes. Its Nodes have the stores and the window: with a RejoinWindow of zero,
	// every request is refused.
	Authority *signer.Authority
	// Budget is how often a node may rejoin within the window, at most [tokens.MaxRejoins]. Zero is [DefaultBudget].
	Budget int
	// IsServer reports whether a host name or address, in lower case, is one of this server. It gets any text. Nil accepts
	// none.
	IsServer func(host string) bool
	// Event, if set, is called with reason "Rejoined" when a node has rejoined, and with reason "KeyBound" when it has bound a
	// key. It is also called for each refusal of a node that has proven that it has its key.
	Event func(node string, refused bool, reason, message string)
	// Logger logs what happens; nil logs nothing.
	Logger *slog.Logger
	// Registerer registers kubejoin_rejoins_total; nil registers none.
	Registerer prometheus.Registerer
	// Now is the clock; nil is time.Now.
	Now func() time.Time

	once   sync.Once
	log    *slog.Logger
	counts *prometheus.CounterVec
	own    []byte // stands in for the CA's secret if its key cannot be exported
}

// Results of kubejoin_rejoins_total besides [Reasons].
const (
	resultGranted = "granted"
	resultAgain   = "granted_again"
	resultBound   = "bound"
	resultUnbound = "unbound_key"
	resultFailed  = "failed"
)

// Reasons of the Events of a grant, and of a key that was bound.
const (
	eventRejoined = "Rejoined"
	eventKeyBound = "KeyBound"
)

func (d *Desk) start() {
	d.once.Do(func() {
		if d.log = d.Logger; d.log == nil {
			d.log = slog.New(slog.DiscardHandler)
		}
		d.counts = metrics.Counter(d.Registerer, "kubejoin_rejoins_total",
			"Requests of nodes to rejoin, by result: granted, granted_again (the same token), bound (a key), unbound_key (any key that is not bound), failed (an error of kubejoin), or the reason of the refusal.", "result")
		d.own = make([]byte, 32)
		_, _ = rand.Read(d.own) // never fails
	})
}

// Challenge returns a challenge and when it expires. Every process with the same CA accepts it.
func (d *Desk) Challenge() (challenge string, expires time.Time, err error) {
	d.start()
	if err := d.off(); err != nil {
		return "", time.Time{}, d.counted(err)
	}
	ca, err := d.ca()
	if err != nil {
		return "", time.Time{}, d.counted(err)
	}
	now := d.now()
	return newChallenge(d.secret(ca), now), now.Add(challengeTTL).UTC().Truncate(time.Second), nil
}

// Rejoin returns a bootstrap token with which the node that has signed the request can bootstrap again. The error is an
// [*Unproven] or wraps an [*approval.Refused]; any other may be temporary. From is the client's address, for the record.
func (d *Desk) Rejoin(ctx context.Context, r Request, from netip.Addr) (tokens.Record, error) {
	d.start()
	r.Key = nil
	f, err := d.check(ctx, r)
	if err != nil {
		return tokens.Record{}, d.refused(ctx, f.request, from, err)
	}
	f.freshID = tokens.Generate().ID()
	var g grant
	if _, err = d.nodes().Claims.Update(ctx, f.request.node, func(c *tokens.Claim) (err error) {
		f.claim = *c
		if g, err = decide(f); err == nil {
			*c = g.claim
		}
		return err
	}); err != nil {
		return tokens.Record{}, d.refused(ctx, f.request, from, ofClaim(f, err))
	}
	record, err := d.create(ctx, g)
	if err != nil {
		return tokens.Record{}, d.counted(err)
	}
	result := resultGranted
	if g.again {
		result = resultAgain
	}
	d.counts.WithLabelValues(result).Inc()
	d.log.Info("node rejoins", "node", f.request.node, "token", g.token.id, "again", g.again, "rejoins", len(g.claim.Identity.Rejoins))
	if d.Event != nil && !g.again {
		d.Event(f.request.node, false, eventRejoined, fmt.Sprintf("The machine proved that it is Node %s, and got token %s to request another certificate. It may rejoin %d more times within %s.",
			f.request.node, g.token.id, d.budget()-len(g.claim.Identity.Rejoins), f.window))
	}
	return record, nil
}

// Bind binds a key to the node that has signed the request. The node can rejoin with this key instead of its certificate.
// Errors are as in Rejoin.
func (d *Desk) Bind(ctx context.Context, r Request, from netip.Addr) (key string, err error) {
	d.start()
	if len(r.Key) == 0 {
		return "", unproven(ReasonCertificateInvalid, "want a public key to bind, in PEM")
	}
	f, err := d.check(ctx, r)
	if err != nil {
		return "", d.refused(ctx, f.request, from, err)
	}
	again := false
	if _, err = d.nodes().Claims.Update(ctx, f.request.node, func(c *tokens.Claim) (err error) {
		f.claim = *c
		again = c.Identity.BoundKey == f.request.bind
		after, err := bound(f)
		if err == nil {
			*c = after
		}
		return err
	}); err != nil {
		return "", d.refused(ctx, f.request, from, ofClaim(f, err))
	}
	d.counts.WithLabelValues(resultBound).Inc()
	d.log.Info("key bound to node", "node", f.request.node, "key", f.request.bind)
	// A thief with a copy of a valid certificate could bind a key, and rejoin with it for as long as the node renews.
	if d.Event != nil && !again {
		d.Event(f.request.node, false, eventKeyBound, fmt.Sprintf("The machine bound key %s to Node %s, and can rejoin with it. To unbind it: kubejoin claim release %s",
			f.request.bind, f.request.node, f.request.node))
	}
	return f.request.bind, nil
}

// ofClaim returns the refusal of a node without a claim, or the error itself.
func ofClaim(f facts, err error) error {
	if !errors.Is(err, tokens.ErrNotFound) {
		return err
	}
	f.claim = tokens.Claim{}
	_, err = identified(f)
	return err
}

// check verifies a request and reads the facts except the claim.
func (d *Desk) check(ctx context.Context, r Request) (facts, error) {
	f := facts{now: d.now(), budget: d.budget()}
	if err := d.off(); err != nil {
		return f, err
	}
	n := d.nodes()
	f.window, f.nodes = n.RejoinWindow, n.Node != nil
	ca, err := d.ca()
	if err != nil {
		return f, err
	}
	roots := x509.NewCertPool()
	for _, cert := range ca.Bundle() {
		roots.AddCert(cert)
	}
	isServer := d.IsServer
	if isServer == nil {
		isServer = func(string) bool { return false }
	}
	if f.request, err = verify(r, d.secret(ca), roots, isServer, f.now); err != nil {
		return f, err
	}
	node := f.request.node
	f.reserved = n.IsReserved(node)
	var subject revocation.Subject
	if f.request.cert == nil {
		// Anyone can make a key. The cache is enough to refuse it without a call.
		c, err := n.Claims.Find(ctx, node)
		switch {
		case err != nil && !errors.Is(err, tokens.ErrNotFound):
			return f, fmt.Errorf("claim of node %s: %w", node, err)
		case c.Identity.BoundKey != f.request.key:
			return f, approval.RefuseFor(ReasonKeyNotCurrent, "the key is not bound to node %s, or was bound just now; present the node's certificate", node)
		}
		subject = revocation.SubjectOfIdentity(node, c.Identity)
	} else {
		if err := tooLate(node, f.request.cert.NotAfter, f.window, f.now); err != nil {
			return f, err
		}
		subject = revocation.SubjectOfCertificate(f.request.cert)
	}
	// Authority reads the revocations again before it issues a certificate on the token.
	switch e, err := d.Authority.Revocations.Revoked(ctx, subject); {
	case err != nil:
		return f, err
	case e != nil:
		return f, approval.RefuseFor(ReasonRevoked, "%s; to let the machine join again: kubejoin token create --replace-node %s", e.Message(), node)
	}
	if f.nodes {
		switch f.nodeUID, err = n.Node(ctx, node); {
		case errors.Is(err, tokens.ErrNotFound):
			f.nodeUID = ""
		case err != nil:
			return f, fmt.Errorf("node %s: %w", node, err)
		}
	}
	return f, nil
}

// createAttempts is how often create retries while others create and delete the same token.
const createAttempts = 5

// create creates the token of a grant, or returns the one that another replica or an earlier attempt has created.
func (d *Desk) create(ctx context.Context, g grant) (tokens.Record, error) {
	store, spec := d.nodes().Tokens, g.token
	token, err := tokens.New(spec.id, tokens.Generate().RevealSecret())
	if err != nil {
		return tokens.Record{}, err
	}
	record := tokens.NewRecord(token, 0, d.now())
	record.Expires, record.Signing = spec.expires, false
	record.Description = "rejoin of node " + spec.replaces.Name
	record.Limits = tokens.Limits{Replaces: spec.replaces, CertificateDuration: spec.duration, Role: spec.role}
	stored, err := tokens.Record{}, error(tokens.ErrNotFound)
	for range createAttempts {
		if g.again {
			stored, err = store.Get(ctx, spec.id)
		}
		if errors.Is(err, tokens.ErrNotFound) {
			stored, err = store.Create(ctx, record)
		}
		if g.again = errors.Is(err, tokens.ErrExists); !g.again {
			break
		}
	}
	switch {
	case err != nil:
		return tokens.Record{}, fmt.Errorf("token of rejoin: %w", err)
	case stored.Limits.Replaces != spec.replaces:
		return tokens.Record{}, fmt.Errorf("token %s is not the token of this rejoin", spec.id)
	}
	return stored, nil
}

// off returns a refusal if nodes cannot rejoin here.
func (d *Desk) off() error {
	if n := d.nodes(); n == nil || n.RejoinWindow <= 0 || n.Claims == nil || n.Tokens == nil {
		return approval.RefuseFor(ReasonRejoinOff, "nodes cannot rejoin here, since kubejoin runs without --rejoin-window; to let a machine join again: kubejoin token create --replace-node NODE")
	}
	return nil
}

func (d *Desk) nodes() *admission.Nodes {
	if d.Authority == nil {
		return nil
	}
	return d.Authority.Nodes
}

// ca returns the CA of the client certificates of nodes.
func (d *Desk) ca() (*signer.CA, error) {
	s, _ := d.Authority.Signer(certificates.KubeAPIServerClientKubeletSignerName) // an unknown one has no CA
	if s.CA == nil {
		return nil, errors.New("kubejoin has no CA for client certificates of nodes")
	}
	return s.CA()
}

func (d *Desk) secret(ca *signer.CA) []byte {
	secret, err := ca.Secret(purpose)
	if err != nil {
		// Only this process accepts its challenges. A client that meets another one retries.
		return d.own
	}
	return secret
}

// refused counts, records and reports an error of a request, and returns it.
func (d *Desk) refused(ctx context.Context, v verified, from netip.Addr, err error) error {
	var refused *approval.Refused
	if !errors.As(err, &refused) || v.node == "" {
		return d.counted(err)
	}
	// A bound key proves nothing yet: anyone can make one.
	if v.cert != nil {
		if err := d.Authority.RecordRejoinRefusal(ctx, v.node, v.key, from, refused); err != nil {
			return d.counted(err)
		}
		if d.Event != nil {
			d.Event(v.node, true, refused.Reason, refused.Message)
		}
	}
	if v.cert == nil && refused.Reason == ReasonKeyNotCurrent {
		// Not as the reason, which has an alert: anyone could set it off.
		d.counts.WithLabelValues(resultUnbound).Inc()
		d.log.Info("key is not bound to node", "node", v.node, "key", v.key)
		return err
	}
	d.log.Warn("node may not rejoin", "node", v.node, "reason", refused.Reason, "key", v.key, "message", refused.Message)
	return d.counted(err)
}

// counted counts an error and returns it.
func (d *Desk) counted(err error) error {
	var refused *approval.Refused
	var no *Unproven
	result := resultFailed
	switch {
	case errors.As(err, &refused):
		result = refused.Reason
	case errors.As(err, &no):
		result = no.Reason
	}
	d.counts.WithLabelValues(result).Inc()
	return err
}

func (d *Desk) budget() int {
	if d.Budget <= 0 {
		return DefaultBudget
	}
	return min(d.Budget, tokens.MaxRejoins)
}

func (d *Desk) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}
