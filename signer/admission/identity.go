package admission

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// StoreIdentity stores the key of a certificate with the claim of its node, so that the node can rejoin with it after the
// certificate has expired. Call it when the certificate is made, and do not return the certificate if it fails. Without
// RejoinWindow, or if the certificate is no client certificate of a node, it does nothing. For a node that rejoins, it sets
// a.Fingerprint to that of the certificate which this one replaces.
//
// A node without a claim gets a released one, which leaves the name free.
func (n *Nodes) StoreIdentity(ctx context.Context, request Request, a *Admitted, cert *x509.Certificate) error {
	r := request.asked
	if n == nil || n.RejoinWindow <= 0 || n.Claims == nil || n.dry || r.CSR == nil {
		return nil
	}
	node, ok := nodeOf(r)
	if !ok || tokens.CheckNodeName(node) != nil || tokens.IsOwnName(node) {
		return nil
	}
	first := tokens.Identity{
		NodeUID: a.nodeUID, Keys: []string{pkcs10.IDOfKey(cert.RawSubjectPublicKeyInfo)}, NotAfter: cert.NotAfter.UTC().Truncate(time.Second),
		Fingerprint: string(revocation.FingerprintOf(cert)), TokenID: tokens.IDOfUser(r.User),
	}
	// A token with limits holds a claim, even if the cache does not have it yet. So does a node that rejoins.
	held := a.TokenID != "" || r.Rejoin != nil
	_, err := n.Claims.Find(ctx, node)
	for range attempts {
		if errors.Is(err, tokens.ErrNotFound) && !held {
			if _, err = n.Claims.Create(ctx, withCertificate(tokens.Claim{Node: node}, first, isOwn(r))); !errors.Is(err, tokens.ErrExists) {
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
				a.Fingerprint = c.Identity.Fingerprint
			}
			*c = withCertificate(*c, first, isOwn(r))
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

// withCertificate returns a claim with the identity of a certificate of its node. A renewal continues the identity. Any
// other certificate is for a new machine, and starts the identity first: the machine that had the name before cannot rejoin.
func withCertificate(c tokens.Claim, first tokens.Identity, renewal bool) tokens.Claim {
	i := first
	switch {
	case c.Limits.Rejoin == tokens.RejoinDeny:
		i = tokens.Identity{}
	case renewal:
		i = c.Identity.WithKey(first.Keys[0])
		i.NodeUID = cmp.Or(first.NodeUID, i.NodeUID)
		i.NotAfter, i.Fingerprint = first.NotAfter, first.Fingerprint
	}
	c.Identity = i
	return c
}
