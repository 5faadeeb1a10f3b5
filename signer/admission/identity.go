package admission

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/kubejoin/kubejoin/signer/pkcs10"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/tokens"
)

// An issuedKey is what StoreIdentity stores of a certificate.
type issuedKey struct {
	key         string
	notAfter    time.Time
	fingerprint string
	renewal     bool   // the node has authenticated with its certificate
	tokenID     string // the bootstrap token that authenticated a first certificate; empty for other users
	nodeUID     string // of the Node that renews or is replaced; empty for a new Node
	nodes       bool   // whether there are Nodes
}

// StoreIdentity stores the key of a certificate with the claim of its node, so that the node can rejoin with it after the
// certificate has expired. Call it when the certificate is made, and do not return the certificate if it fails. Without
// RejoinWindow, or if the certificate is no client certificate of a node, it does nothing.
//
// A node without a claim gets a released one, which leaves the name free.
func (n *Nodes) StoreIdentity(ctx context.Context, request Request, a Admitted, cert *x509.Certificate) error {
	r := request.asked
	if n == nil || n.RejoinWindow <= 0 || n.Claims == nil || n.dry || r.CSR == nil {
		return nil
	}
	node, ok := nodeOf(r)
	if !ok || tokens.CheckNodeName(node) != nil || n.Lease != "" && node == n.Lease {
		return nil
	}
	made := issuedKey{
		key: pkcs10.IDOfKey(cert.RawSubjectPublicKeyInfo), notAfter: cert.NotAfter, fingerprint: string(revocation.FingerprintOf(cert)), renewal: isOwn(r), tokenID: tokens.IDOfUser(r.User), nodeUID: a.nodeUID, nodes: n.Node != nil,
	}
	_, err := n.Claims.Find(ctx, node)
	// Probably free: Create fails if not. A token with limits holds a claim, even if the cache does not have it yet.
	free := errors.Is(err, tokens.ErrNotFound) && a.TokenID == ""
	var open, deleted tokens.Identity
	for range attempts {
		if free {
			fresh := withCertificate(tokens.Claim{Node: node}, made)
			if _, err = n.Claims.Create(ctx, fresh); !errors.Is(err, tokens.ErrExists) {
				break
			}
		}
		_, err = n.Claims.Update(ctx, node, func(c *tokens.Claim) error {
			if a.TokenID != "" && c.TokenID != a.TokenID {
				return errClaimLost
			}
			next := withCertificate(*c, made)
			if open = c.Identity; open.Open() && open.TokenID != next.Identity.TokenID && !open.Equal(deleted) {
				return errOpenRejoin
			}
			*c = next
			return nil
		})
		if errors.Is(err, errOpenRejoin) {
			if err = open.DeleteToken(ctx, n.Tokens, node); err != nil {
				break
			}
			deleted, err = open, errOpenRejoin // in case this was the last attempt
			continue
		}
		if free = errors.Is(err, tokens.ErrNotFound) && a.TokenID == ""; !free {
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

// errOpenRejoin means that the machine whose identity ends has a token of a rejoin, which must be deleted before.
var errOpenRejoin = errors.New("the machine before has a token to rejoin")

// withCertificate returns a claim with a certificate of its node. A renewal continues the identity, and so does a certificate
// on the token of the last rejoin. Any other certificate is for a new machine, and starts a new identity: the machine that
// had the name before cannot rejoin.
func withCertificate(c tokens.Claim, made issuedKey) tokens.Claim {
	if c.Limits.Rejoin == tokens.RejoinDeny {
		c.Identity = tokens.Identity{}
		return c
	}
	i := c.Identity
	rejoined := made.tokenID != "" && made.tokenID == i.TokenID
	if !made.renewal && !rejoined {
		i = tokens.Identity{}
	}
	if rejoined {
		i.TokenExpires = time.Time{} // used: another rejoin gets another token
	}
	switch {
	case made.nodes && made.nodeUID != "":
		i.NodeUID = made.nodeUID
	case !made.nodes && i.NodeUID == "":
		i.NodeUID = made.key
	}
	i = i.WithKey(made.key)
	i.NotAfter, i.Fingerprint = made.notAfter.UTC().Truncate(time.Second), made.fingerprint
	c.Identity = i
	return c
}

// IsReserved reports whether only tokens of role control-plane may take a node name.
func (n *Nodes) IsReserved(node string) bool { return n.reserved(node) }
