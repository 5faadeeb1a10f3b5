package tokens

import (
	"cmp"
	"context"
	"time"
)

// ByCertificate is the [Claim.NodeUID] of a joined node if kubejoin has no access to Nodes. kubejoin sets it when the node
// uses its certificate to request another one.
const ByCertificate = "by-certificate"

// pastMargin is how much longer a Past lasts than the certificates of its claim. It covers clock skew, and signers whose
// minimum lifetime is longer than the certificate duration of the claim. It also saves writes: a renewal extends the Past
// only when half of the margin is used up.
const pastMargin = 48 * time.Hour

// A ReleasedClaim is what remains of a released claim, because a certificate issued on the claim may still be
// valid. Kubernetes cannot revoke certificates, and a machine that has one can renew it as soon as there
// is a Node of its name again. The zero Past means that nothing remains.
type ReleasedClaim struct {
	// Until is the time when all certificates of the claim have expired, in whole seconds.
	Until time.Time
	// CertificateDuration limits the lifetime of renewals, as in the [Limits] of the claim. Zero sets no
	// limit.
	CertificateDuration time.Duration
	// Rejoin is [RejoinDeny] if the machine cannot rejoin, as in the Limits of the claim, and otherwise empty.
	Rejoin string
	// Node is what the Node of the machine gets if it registers again.
	Node NodeProperties
}

// leftBy returns those limits of a token that apply to a machine after it has joined. The other limits only decide whether
// a machine can join.
func leftBy(l Limits) ReleasedClaim {
	l = l.Strictest()
	p := ReleasedClaim{CertificateDuration: l.CertificateDuration, Node: l.Node}
	if l.Rejoin == RejoinDeny {
		p.Rejoin = RejoinDeny
	}
	return p
}

// Remaining returns the limits that apply to the machine of the claim: those of its token, or what a released claim has left.
// Until is zero unless the claim is released. A machine whose Node waits no longer had what [NodeProperties.ReadyAfter] asks for,
// and its kubelet keeps its serving certificate, so another Node of the machine does not wait.
func (c Claim) Remaining() ReleasedClaim {
	if c.Released() {
		return c.Past
	}
	p := leftBy(c.Limits)
	if c.NodeUID != "" && !c.Waits {
		p.Node.ReadyAfter = ""
	}
	return p
}

// Active reports whether a certificate of the released claim may still be valid at the time now.
func (p ReleasedClaim) Active(now time.Time) bool { return p.Until.After(now) }

// Renewed returns the Past after kubejoin has issued a certificate with the lifetime CertificateDuration at now. It returns
// p unchanged if p lasts long enough for that certificate.
func (p ReleasedClaim) Renewed(now time.Time) ReleasedClaim {
	if p.Until.Before(now.Add(p.CertificateDuration + pastMargin/2)) {
		p = p.Lasting(now.Add(p.CertificateDuration))
	}
	return p
}

func (p ReleasedClaim) equal(q ReleasedClaim) bool {
	return p.Until.Equal(q.Until) && p.CertificateDuration == q.CertificateDuration && p.Rejoin == q.Rejoin && p.Node == q.Node
}

func (p ReleasedClaim) check() error {
	switch {
	case p.Until.IsZero() && p != ReleasedClaim{Until: p.Until}:
		return fieldErrorf("past", "limits given without until")
	case p.Until.Nanosecond() != 0:
		return fieldErrorf("past", "until %s given, want whole seconds", p.Until)
	}
	if err := (Limits{CertificateDuration: p.CertificateDuration, Rejoin: p.Rejoin, Node: p.Node}).Check(); err != nil {
		return &FieldError{"past", err}
	}
	return nil
}

// Lasting returns p, extended if necessary, so that it lasts at least until a certificate with this end has expired.
func (p ReleasedClaim) Lasting(end time.Time) ReleasedClaim {
	if until := end.Add(pastMargin).UTC().Truncate(time.Second); until.After(p.Until) {
		p.Until = until
	}
	return p
}

// Released reports whether the claim is released: no token holds its name.
func (c Claim) Released() bool { return c.TokenID == "" }

// PastAfterRelease returns the Past of a claim that is released at the time now. It has the limits that still apply to the
// machine. If kubejoin has access to Nodes, longest must be zero: in this case the Node shows whether the name is free.
// Without access to Nodes, longest is the longest lifetime of any certificate, and the Past lasts at least that long.
func (c Claim) PastAfterRelease(now time.Time, longest time.Duration) ReleasedClaim {
	p := c.Remaining()
	p.Node.ReadyAfter = "" // the kubelet may have its serving certificate long before its Node registers
	if longest > 0 || !c.Released() && p.CertificateDuration > 0 {
		p = p.Lasting(now.Add(max(p.CertificateDuration, longest)))
	}
	if p.Rejoin != "" || p.Node != (NodeProperties{}) {
		p = p.Lasting(now).Lasting(c.Identity.NotAfter)
	}
	return p
}

// AfterRelease returns the claim after its release: only the Past leaves and the Machine remain, and the Identity ends.
func (c Claim) AfterRelease(leaves ReleasedClaim) Claim {
	return Claim{Node: c.Node, Past: leaves, Machine: c.Machine, Created: c.Created, UID: c.UID, Version: c.Version}
}

// Empty reports whether the claim is released and nothing remains of it.
func (c Claim) Empty() bool {
	return c.Released() && c.Past == (ReleasedClaim{}) && c.Identity.IsZero() && c.Machine.IsZero()
}

// Release releases a claim: its name is then free, unless the claim has a Machine. Release stores the Past leaves without an
// Identity. The token still counts the name. If the claim has changed, the error wraps [ErrConflict].
func Release(ctx context.Context, claims Claims, c Claim, leaves ReleasedClaim) error {
	_, err := CommitClaim(ctx, claims, c, c.AfterRelease(leaves))
	return err
}

// CommitClaim commits the change of one claim without a token. It returns the stored claim.
func CommitClaim(ctx context.Context, claims Claims, before, after Claim) (Claim, error) {
	outcomes, err := claims.Commit(ctx, Record{}, Record{}, []ClaimChange{{before, after}})
	if len(outcomes) == 0 {
		return Claim{}, err
	}
	return outcomes[0].Claim, cmp.Or(outcomes[0].Err, err)
}
