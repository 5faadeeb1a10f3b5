package tokens

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ByCertificate is the [Claim.NodeUID] of a node if kubejoin has no access to Nodes. The node has used
// its certificate to request another one, so it has joined.
const ByCertificate = "by-certificate"

// pastMargin is how much longer a Past lasts than the certificates of its claim. It covers clock skew
// and signers whose minimum lifetime is longer than the claim's. It also saves writes: a renewal
// extends the Past only when half of the margin is used up.
const pastMargin = 48 * time.Hour

// A ReleasedClaim is what remains of a released claim, because a certificate issued on the claim may still be
// valid. Kubernetes cannot revoke certificates, and a machine that has one can renew it as soon as there
// is a Node of its name again. The zero Past means that nothing remains.
type ReleasedClaim struct {
	// Until is when all certificates of the claim have expired, in whole seconds.
	Until time.Time
	// CertificateDuration limits the lifetime of renewals, as in the [Limits] of the claim. Zero sets no
	// limit.
	CertificateDuration time.Duration
}

// Active reports whether a certificate of the released claim may still be valid at the time now.
func (p ReleasedClaim) Active(now time.Time) bool { return p.Until.After(now) }

// Renewed returns the Past after a certificate with the lifetime CertificateDuration was issued at now.
// It returns p unchanged if p lasts long enough for that certificate.
func (p ReleasedClaim) Renewed(now time.Time) ReleasedClaim {
	if p.Until.Before(now.Add(p.CertificateDuration + pastMargin/2)) {
		p.Until = past(now, p.CertificateDuration).Until
	}
	return p
}

func (p ReleasedClaim) equal(q ReleasedClaim) bool {
	return p.Until.Equal(q.Until) && p.CertificateDuration == q.CertificateDuration
}

func (p ReleasedClaim) check() error {
	switch {
	case p.Until.IsZero() && p.CertificateDuration != 0:
		return fieldErrorf("past", "certificate-duration given without until")
	case p.Until.Nanosecond() != 0:
		return fieldErrorf("past", "until %s given, want whole seconds", p.Until)
	}
	if err := (Limits{CertificateDuration: p.CertificateDuration}).Check(); err != nil {
		return &FieldError{"past", err}
	}
	return nil
}

func past(now time.Time, lifetime time.Duration) ReleasedClaim {
	return ReleasedClaim{Until: now.Add(lifetime + pastMargin).UTC().Truncate(time.Second)}
}

// Released reports whether the claim is released: it has no TokenID, and its name is free.
func (c Claim) Released() bool { return c.TokenID == "" }

// PastAfterRelease returns the Past of a claim that is released at the time now, if certificates may have been
// issued on it. If kubejoin has access to Nodes, longest must be zero. The Node then tells whether the
// name is free, so the Past is zero unless the claim limits CertificateDuration. Without access to
// Nodes, longest is the longest lifetime of any certificate, and the Past lasts at least that long.
func (c Claim) PastAfterRelease(now time.Time, longest time.Duration) ReleasedClaim {
	d := c.Limits.CertificateDuration
	if d == 0 && longest == 0 {
		return ReleasedClaim{}
	}
	p := past(now, max(d, longest))
	p.CertificateDuration = d
	return p
}

// Release releases a claim, so that its name is free, and stores the Past that it leaves, without the
// Identity. If the Past is zero, Release deletes the claim. If the claim has changed, the error wraps [ErrConflict], as in Delete.
// If the token still counts the name, call [Leave] before.
func Release(ctx context.Context, claims Claims, c Claim, leaves ReleasedClaim) error {
	if leaves == (ReleasedClaim{}) {
		return claims.Delete(ctx, c)
	}
	_, err := claims.Update(ctx, c.Node, func(now *Claim) error {
		if now.UID != c.UID || now.Version != c.Version {
			return fmt.Errorf("claim of node %s: %w", c.Node, ErrConflict)
		}
		*now = Claim{Node: now.Node, Past: leaves, Created: now.Created, UID: now.UID, Version: now.Version}
		return nil
	})
	return err
}

var errHasLeft = errors.New("left already")

// Leave adds the name of a claim to the [Record.Left] of its token, so that the token admits nobody under the name. It must
// be called before the claim is released, or written over for another token. A token that does not count the name, or is
// gone, stays as it is. With a [Counter], Leave does nothing: there, a counted name without a claim has left.
func Leave(ctx context.Context, store Store, claims Claims, c Claim) error {
	if _, ok := claims.(Counter); ok || c.Released() {
		return nil
	}
	_, err := store.Update(ctx, c.TokenID, func(r *Record) error {
		if r.Problem != nil || r.Limits.Problem != nil || !slices.Contains(r.Nodes, c.Node) || slices.Contains(r.Left, c.Node) {
			return errHasLeft
		}
		r.Left = append(r.Left, c.Node)
		r.Lost = slices.DeleteFunc(r.Lost, func(name string) bool { return name == c.Node })
		return nil
	})
	if err != nil && !errors.Is(err, errHasLeft) && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("token %s, node %s has left: %w", c.TokenID, c.Node, err)
	}
	return nil
}

// changeAttempts is how often GiveBack and a Releaser retry while others change the token or the claim.
const changeAttempts = 20

// GiveBack removes a name without a claim from the count of a token, which frees the slot. Nobody needs to know why the
// claim is missing: it was released, somebody deleted it, or kubejoin stopped before it could write it. GiveBack returns
// the record as it is then. The error wraps [ErrNotFound] if there is no such token, or if it does not count the name. It
// wraps [ErrConflict] if the token holds a claim of the name: it must be released first, see [Release].
//
// A request may be about to write the claim. So GiveBack first adds the name to [Record.Lost], unless it has left: then
// that request is not admitted, and counts the name again if there is a slot.
func GiveBack(ctx context.Context, store Store, claims Claims, id, node string) (Record, error) {
	_, atomic := claims.(Counter) // it writes claim and count together
	for range changeAttempts {
		r, err := store.Get(ctx, id)
		switch {
		case err != nil || r.Problem != nil || r.Limits.Problem != nil: // nobody can join with a malformed token
			return r, err
		case !slices.Contains(r.Nodes, node):
			return r, fmt.Errorf("token %s counts node %s: %w", id, node, ErrNotFound)
		}
		switch c, err := claims.Get(ctx, node); {
		case err == nil && c.TokenID == id:
			return r, fmt.Errorf("token %s has a claim on node %s: %w", id, node, ErrConflict)
		case err != nil && !errors.Is(err, ErrNotFound):
			return r, err
		}
		closed := atomic || slices.Contains(r.Left, node) || slices.Contains(r.Lost, node)
		after, err := store.Update(ctx, id, func(now *Record) error {
			if now.Version != r.Version {
				return ErrConflict
			}
			if closed {
				now.Uncount(node)
			} else {
				now.Lost = append(now.Lost, node)
			}
			return nil
		})
		if (closed || err != nil) && !errors.Is(err, ErrConflict) {
			return after, err
		}
	}
	return Record{}, fmt.Errorf("token %s changed during each of %d attempts to give back the slot of node %s", id, changeAttempts, node)
}
