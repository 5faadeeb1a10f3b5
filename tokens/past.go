package tokens

import (
	"context"
	"fmt"
	"time"
)

// ByCertificate is the [Claim.NodeUID] of a node that has come back with its certificate, where
// there are no Nodes.
const ByCertificate = "by-certificate"

// pastMargin is how much longer the past of a claim is kept than its certificates last: for
// clocks that differ, for signers whose shortest certificates are longer, and so that not each
// renewal has to put the end off.
const pastMargin = 48 * time.Hour

// A Past is what has to be known of a claim that was released, because a certificate that was
// issued on it may still be valid: Kubernetes revokes none, and a machine that has one renews it,
// once there is a Node of its name again. The zero Past is none.
type ReleasedClaim struct {
	// Until is when no certificate of the claim can be valid any more, in whole seconds.
	Until time.Time
	// CertificateDuration is that of the claim's [Limits], for renewals. Zero is the signer's.
	CertificateDuration time.Duration
}

// Active reports whether the past is still to be minded.
func (p ReleasedClaim) Active(now time.Time) bool { return p.Until.After(now) }

// Renewed is the past after a renewal now, which lasts as the claim said; it is the same for as
// long as that makes no difference.
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
		return fieldErrorf("past", "a certificate-duration without end")
	case p.Until.Nanosecond() != 0:
		return fieldErrorf("past", "end %s given, want whole seconds", p.Until)
	}
	if err := (Limits{CertificateDuration: p.CertificateDuration}).Check(); err != nil {
		return &FieldError{"past", err}
	}
	return nil
}

func past(now time.Time, lifetime time.Duration) ReleasedClaim {
	return ReleasedClaim{Until: now.Add(lifetime + pastMargin).UTC().Truncate(time.Second)}
}

// Released reports whether the claim holds no name (any more).
func (c Claim) Released() bool { return c.TokenID == "" }

// PastAfterRelease is the past that a claim leaves that is released now, after something may have been
// issued on it. Where there are Nodes, by which a name is free or is not, that is none unless its
// certificates were to be short. Where there are none the name is remembered for as long as any
// certificate may be valid: longest is for how long that is, and zero where there are Nodes.
func (c Claim) PastAfterRelease(now time.Time, longest time.Duration) ReleasedClaim {
	d := c.Limits.CertificateDuration
	if d == 0 && longest == 0 {
		return ReleasedClaim{}
	}
	p := past(now, max(d, longest))
	p.CertificateDuration = d
	return p
}

// Release makes the name of exactly the claim given free, as Delete does, and keeps what it leaves.
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
