package admission

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kubejoin/kubejoin/signer/approval"
	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// StoreIdentity stores a certificate with the claim of its node, so that the node can rejoin with its key after the
// certificate has expired. Call it when the certificate is made, and do not return the certificate if it fails. Without
// RejoinWindow, or if the certificate is no client certificate of a node, it does nothing. For a node that rejoins, it sets
// a.Fingerprint to that of the certificate which this one replaces.
//
// A machine that is not the one of the claim renews, but stores nothing. A node without a claim gets a released one, which
// leaves the name free.
func (n *Nodes) StoreIdentity(ctx context.Context, request Request, a *Admitted, cert *x509.Certificate) error {
	r := request.asked
	if n == nil || n.RejoinWindow <= 0 || n.Claims == nil || n.dry || r.CSR == nil {
		return nil
	}
	node, ok := nodeOf(r)
	if !ok || tokens.CheckNodeName(node) != nil || tokens.IsOwnName(node) {
		return nil
	}
	made := tokens.Credential{Key: pkcs10.IDOfKey(cert.RawSubjectPublicKeyInfo), Fingerprint: string(revocation.FingerprintOf(cert))}
	first := tokens.Identity{
		NodeUID: a.nodeUID, Credentials: []tokens.Credential{made}, NotAfter: cert.NotAfter.UTC().Truncate(time.Second), TokenID: tokens.IDOfUser(r.User),
	}
	// A token with limits holds a claim, even if the cache does not have it yet. So does a node that rejoins.
	held := a.TokenID != "" || r.Rejoin != nil
	_, err := n.Claims.Find(ctx, node)
	for range attempts {
		if errors.Is(err, tokens.ErrNotFound) && !held {
			if _, err = n.Claims.Create(ctx, withCertificate(tokens.Claim{Node: node}, first, r)); !errors.Is(err, tokens.ErrExists) {
				break
			}
		}
		_, err = n.Claims.Update(ctx, node, func(c *tokens.Claim) (err error) {
			if a.TokenID != "" && c.TokenID != a.TokenID {
				return errClaimLost
			}
			if r.Rejoin != nil {
				if *c, err = n.rejoined(*c, r, a.nodeUID); err != nil {
					return err
				}
				a.Fingerprint = c.Identity.Last().Fingerprint
			}
			*c = withCertificate(*c, first, r)
			return nil
		})
		if held || !errors.Is(err, tokens.ErrNotFound) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("store identity of node %s: %w", node, err)
	}
	return nil
}

// errClaimLost means that another token has taken the claim between admission and certificate. The request starts over.
var errClaimLost = errors.New("another token has taken the claim")

// withCertificate returns a claim with the identity of a certificate of its node. first is the identity that has only this
// certificate. A request that the node's own credential has authenticated continues the identity. With any other
// certificate of the node, which is for example that of a machine that was replaced, the identity stays as it is. All
// other requesters bring a new machine, which starts the identity first: the machine that had the name before cannot rejoin.
func withCertificate(c tokens.Claim, first tokens.Identity, r approval.Request) tokens.Claim {
	by, own := authenticated(c.Identity, r)
	switch {
	case c.Bound().Rejoin == tokens.RejoinDeny:
		// The claim lasts as long as the certificate, which may not rejoin.
		c.Identity = tokens.Identity{NodeUID: first.NodeUID, NotAfter: first.NotAfter}
	case !isOwn(r) || c.Identity.IsZero():
		c.Identity = first
	case own:
		c.Identity = continued(c.Identity, by, first)
	}
	return c
}

// authenticated returns the credential of an identity that authenticated a request.
func authenticated(i tokens.Identity, r approval.Request) (by tokens.Credential, found bool) {
	if p := r.Rejoin; p != nil && p.NotAfter.IsZero() {
		return i.Bound, p.Key != "" && p.Key == i.Bound.Key
	}
	fingerprints := revocation.SubjectOf(r.User, r.Groups, r.Extra).Fingerprints
	for _, c := range i.Credentials {
		if r.Rejoin != nil && r.Rejoin.Key == c.Key || slices.Contains(fingerprints, revocation.Fingerprint(c.Fingerprint)) {
			return c, true
		}
	}
	return tokens.Credential{}, false
}

// continued returns an identity with another certificate. It keeps the one that authenticated the request, because the
// machine may not get the response. If the bound key did, it keeps the last certificate with another key.
func continued(i tokens.Identity, by tokens.Credential, next tokens.Identity) tokens.Identity {
	made, kept := next.Last(), []tokens.Credential{by}
	if by == i.Bound {
		kept = slices.DeleteFunc(slices.Clone(i.Credentials), func(c tokens.Credential) bool { return c.Key == made.Key })
		kept = kept[max(0, len(kept)-1):]
	}
	i.Credentials = append(kept, made)
	i.NodeUID, i.NotAfter = cmp.Or(next.NodeUID, i.NodeUID), next.NotAfter
	return i
}
