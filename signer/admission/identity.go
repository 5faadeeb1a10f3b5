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
// a.Fingerprint to that of the certificate which this one replaces. For each node that has a bound key, it sets a.BoundBy.
//
// If the certificate that authenticated the request is not of the claim's identity, StoreIdentity leaves the identity as it
// is. A node without a claim gets a released one, which leaves the name free.
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
			if isOwn(r) {
				a.BoundBy = c.Identity.Bound.Fingerprint
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

// withCertificate returns a claim after a certificate was made for its node. first is the identity that has only this
// certificate.
//
// A request that a credential of the identity has authenticated continues the identity. Another certificate of the node leaves
// it as it is: it may be that of a machine that was replaced. Any other requester, for example a token, brings a new machine.
// The identity then starts with first, and the machine that had the name before cannot rejoin.
func withCertificate(c tokens.Claim, first tokens.Identity, r approval.Request) tokens.Claim {
	by, own := authenticated(c.Identity, r)
	switch {
	case c.Remaining().Rejoin == tokens.RejoinDeny:
		// The claim must last as long as any certificate of the machine: see [tokens.Claim.PastAfterRelease].
		end := first.NotAfter
		if c.Identity.NotAfter.After(end) {
			end = c.Identity.NotAfter
		}
		c.Identity = tokens.Identity{NodeUID: first.NodeUID, NotAfter: end}
	case isOwn(r) && c.Identity.IsZero():
		if by := (tokens.Credential{Fingerprint: fingerprintOf(r)}); by.Fingerprint != "" { // the machine may not get the response
			first.Credentials = []tokens.Credential{by, first.Last()}
		}
		c.Identity = first
	case !isOwn(r):
		made := first.Last()
		if first.TokenID != "" && first.TokenID == c.Identity.TokenID { // the same key: the machine may have got only the certificate before
			first.Credentials = appended(slices.DeleteFunc(slices.Clone(c.Identity.Credentials), func(other tokens.Credential) bool { return other.Key != made.Key }), made)
		}
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
	key := ""
	if r.Rejoin != nil {
		key = r.Rejoin.Key
	}
	return i.Find(key, fingerprintOf(r))
}

// fingerprintOf returns the fingerprint of the certificate that authenticated a request; empty if it is not known.
func fingerprintOf(r approval.Request) string {
	if all := revocation.SubjectOf(r.User, r.Groups, r.Extra).Fingerprints; len(all) == 1 {
		return string(all[0])
	}
	return ""
}

// isStranger reports whether kubejoin knows which certificate authenticated a node, and the identity does not have it.
func isStranger(i tokens.Identity, r approval.Request) bool {
	_, own := authenticated(i, r)
	return !own && len(i.Credentials) > 0 && fingerprintOf(r) != ""
}

// continued returns an identity with another certificate. It keeps the certificate that authenticated the request, and those
// that kubejoin has issued for it before: the machine may hold any of them. If the bound key authenticated the request, it
// keeps the last certificate with another key than the new one.
func continued(i tokens.Identity, by tokens.Credential, next tokens.Identity) tokens.Identity {
	made, kept := next.Last(), i.Credentials
	switch {
	case by == i.Bound:
		kept = slices.DeleteFunc(slices.Clone(kept), func(c tokens.Credential) bool { return c.Key == made.Key })
		kept = kept[max(0, len(kept)-1):]
	case by != kept[0]:
		kept = []tokens.Credential{by}
	}
	i.Credentials = appended(kept, made)
	i.NodeUID, i.NotAfter = cmp.Or(next.NodeUID, i.NodeUID), next.NotAfter
	return i
}

// appended returns a list with another certificate. Of a full list, it drops the second one: the machine has used the first.
func appended(list []tokens.Credential, made tokens.Credential) []tokens.Credential {
	list = append(slices.Clone(list), made)
	if len(list) > tokens.MaxCredentials {
		list = slices.Delete(list, 1, 2)
	}
	return list
}
