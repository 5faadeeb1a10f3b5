package revocation

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kubejoin/kubejoin/tokens"
)

// ErrNotFound is wrapped if no entry has the key.
var ErrNotFound = errors.New("not revoked")

// ErrFull is wrapped if the store has no space for another entry.
var ErrFull = errors.New("the list of revocations is full")

// A Store stores entries. Its methods may be called concurrently.
type Store interface {
	// Get returns the entry of a key. Without one, the error wraps [ErrNotFound]. A cached read fails until the cache was
	// filled for the first time.
	Get(ctx context.Context, key Key, read tokens.Read) (Entry, error)
	// List returns all entries, sorted by key.
	List(ctx context.Context, read tokens.Read) ([]Entry, error)
	// Update replaces the entry of a key with the result of change, and returns this result. The argument and the
	// result of change are nil if there is no entry. Update writes nothing if change returns its argument unchanged.
	// Update may call change several times, each time with a newer entry, and must not change the entry in place. If
	// change fails, Update returns its error.
	Update(ctx context.Context, key Key, change func(*Entry) (*Entry, error)) (*Entry, error)
}

// A Certificate has the facts about a certificate that revocations need.
type Certificate struct {
	// TokenID is the token that requested the certificate; empty if no token did.
	TokenID string
	// Requester is the node or the client certificate that requested the certificate.
	Requester Subject
	// Node is the node that the certificate is for, as a client or a server; empty if it is not for a node.
	Node string
	// Serial is the serial number in lower-case hexadecimal digits.
	Serial      string
	Fingerprint Fingerprint
	NotAfter    time.Time
}

// CertificateOf returns the facts about a certificate that revocations need.
func CertificateOf(tokenID string, requester Subject, cert *x509.Certificate) Certificate {
	node, found := strings.CutPrefix(cert.Subject.CommonName, tokens.NodeUserPrefix)
	if !found || tokens.CheckNodeName(node) != nil {
		node = ""
	}
	return Certificate{TokenID: tokenID, Requester: requester, Node: node, Serial: cert.SerialNumber.Text(16), Fingerprint: FingerprintOf(cert), NotAfter: cert.NotAfter}
}

// A Guard decides which credentials are revoked. A nil Guard revokes no credential.
type Guard struct {
	Store Store
	// Now is the clock; nil is time.Now.
	Now func() time.Time
}

func (g *Guard) now() time.Time {
	if g.Now != nil {
		return g.Now()
	}
	return time.Now()
}

// Revoked returns the entry that bars the credential of a subject, read live, or nil.
func (g *Guard) Revoked(ctx context.Context, s Subject) (*Entry, error) {
	return g.barring(ctx, s, tokens.Live)
}

// RevokedRecently is [Guard.Revoked], but may lack an entry for [tokens.MaxAge] after it was stored.
func (g *Guard) RevokedRecently(ctx context.Context, s Subject) (*Entry, error) {
	return g.barring(ctx, s, tokens.Recent)
}

// Known is [Guard.Revoked] from the cache of the store, which may lag.
func (g *Guard) Known(ctx context.Context, s Subject) (*Entry, error) {
	return g.barring(ctx, s, tokens.Cached)
}

// RevokedCertificate is [Guard.Revoked] for the user of a client certificate.
func (g *Guard) RevokedCertificate(ctx context.Context, cert *x509.Certificate) (*Entry, error) {
	return g.Revoked(ctx, SubjectOfCertificate(cert))
}

func (g *Guard) barring(ctx context.Context, s Subject, read tokens.Read) (*Entry, error) {
	if g == nil {
		return nil, nil
	}
	for _, key := range s.Keys() {
		e, err := g.Store.Get(ctx, key, read)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return nil, fmt.Errorf("revocation of %s: %w", key, err)
		case e.Bars(s, g.now()):
			return &e, nil
		}
	}
	return nil, nil
}

// Issue must be called with each new client certificate of a node, before the certificate is delivered. If the node is
// revoked, Issue allows the certificate: it adds its fingerprint to the entry. If the entry bars the requester at that
// moment, Issue returns the entry instead. If Issue returns an entry or an error, the certificate must not be
// delivered.
//
// If Issue misses a new entry, the entry bars the certificate, because it does not allow it.
func (g *Guard) Issue(ctx context.Context, requester Subject, cert *x509.Certificate) (*Entry, error) {
	if g == nil {
		return nil, nil
	}
	key, err := NodeKey(SubjectOfCertificate(cert).Node)
	if err != nil || !authenticates(cert) { // the API server does not accept it as a node
		return nil, nil
	}
	read := tokens.Recent
	if len(requester.Keys()) == 0 { // no entry bars a bootstrap token, so a cached view is enough
		read = tokens.Cached
	}
	if _, err := g.Store.Get(ctx, key, read); errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	var bars *Entry
	_, err = g.Store.Update(ctx, key, func(e *Entry) (*Entry, error) {
		bars = nil
		switch {
		case e == nil || e.Ended(g.now()):
			return e, nil
		case e.Bars(requester, g.now()):
			bars = e
			return e, nil
		case e.Malformed != nil:
			return nil, e.Malformed
		}
		allowed := e.Allow(FingerprintOf(cert), cert.NotAfter, requester, g.now())
		return &allowed, nil
	})
	if err != nil {
		return nil, fmt.Errorf("revocation of %s: %w", key, err)
	}
	return bars, nil
}

// authenticates reports whether an API server accepts a certificate from a client.
func authenticates(cert *x509.Certificate) bool {
	if len(cert.ExtKeyUsage)+len(cert.UnknownExtKeyUsage) == 0 {
		return true
	}
	for _, usage := range cert.ExtKeyUsage {
		if usage == x509.ExtKeyUsageClientAuth || usage == x509.ExtKeyUsageAny {
			return true
		}
	}
	return false
}

// Revoke stores an entry. It replaces an earlier entry of the same key: this also revokes certificates that
// kubejoin has issued since the earlier entry.
func (g *Guard) Revoke(ctx context.Context, e Entry) (Entry, error) {
	e.Since, e.Allowed = g.now().UTC().Truncate(time.Second), nil
	stored, err := g.Store.Update(ctx, e.Key(), func(old *Entry) (*Entry, error) {
		next := e
		if old != nil {
			if !next.Until.IsZero() && (old.Until.IsZero() && old.Malformed == nil || old.Until.After(next.Until)) {
				next.Until = old.Until
			}
			for _, end := range old.Allowed { // these certificates are now barred, too
				if !next.Until.IsZero() && end.After(next.Until) {
					next.Until = end
				}
			}
		}
		return &next, nil
	})
	if err != nil {
		return Entry{}, err
	}
	return *stored, nil
}

// Undo removes an entry and returns it. The error wraps [ErrNotFound] if there is none.
func (g *Guard) Undo(ctx context.Context, key Key) (Entry, error) {
	var removed Entry
	_, err := g.Store.Update(ctx, key, func(e *Entry) (*Entry, error) {
		if e == nil {
			return nil, fmt.Errorf("%s: %w", key, ErrNotFound)
		}
		removed = *e
		return nil, nil
	})
	return removed, err
}

// List returns the entries that have not ended, sorted by key.
func (g *Guard) List(ctx context.Context) ([]Entry, error) {
	return g.inForce(g.Store.List(ctx, tokens.Live))
}

// cachedNodesTimeout limits how long CachedNodes waits for the cache.
const cachedNodesTimeout = 2 * time.Second

// CachedNodes returns the names of revoked nodes, from the cache of the store.
func (g *Guard) CachedNodes(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, cachedNodesTimeout)
	defer cancel()
	entries, err := g.inForce(g.Store.List(ctx, tokens.Cached))
	nodes := map[string]bool{}
	for _, e := range entries {
		if e.Node != "" {
			nodes[e.Node] = true
		}
	}
	return nodes, err
}

func (g *Guard) inForce(all []Entry, err error) ([]Entry, error) {
	if err != nil {
		return nil, err
	}
	kept := all[:0]
	for _, e := range all {
		if !e.Ended(g.now()) {
			kept = append(kept, e)
		}
	}
	return kept, nil
}
