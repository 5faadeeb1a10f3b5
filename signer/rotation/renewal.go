package rotation

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"time"
)

// Leaving returns the certificates of the CA that will not be trusted at the end of the rotation, or of its abort.
// Certificates that they signed must be renewed before that. Leaving returns none if nothing needs a renewal: in stage
// Prepare, and without a rotation.
func (r Rotation) Leaving() []*x509.Certificate {
	switch {
	case !r.InProgress(), r.Stage == Prepare && !r.Aborting:
		return nil
	case r.Aborting:
		return r.New
	}
	return r.Old
}

// CrossCert returns the cross certificate for a server whose certificate the new CA signed: clients that know only the
// old CA need the cross certificate to verify it. CrossCert returns nil if there is none, and in stages in which no
// client needs it.
func (r Rotation) CrossCert() *x509.Certificate {
	if !r.InProgress() || !r.TrustsOld() || len(r.Cross) == 0 {
		return nil
	}
	return r.Cross[0]
}

const (
	// shortest is the shortest lifetime of a certificate that must be renewed early. With this lifetime, a kubelet has
	// about 15 minutes between its first attempt to renew the certificate and the expiration.
	shortest = time.Hour
	// earliest is the fraction of a certificate's lifetime after which a kubelet may renew it. A kubelet renews at 70
	// to 90 percent.
	earliest = 0.7
	// ofNode is how many certificates a kubelet renews: one for clients and one for serving.
	ofNode = 2
)

// ShortLifetime returns the lifetime of a certificate of a node that must be renewed early. It is one hour and a share of
// the time that all renewals need at the rate perSecond. The share depends on the name of the node, so that the nodes renew
// one after the other, even if all of them got their certificates at once.
func ShortLifetime(node string, nodes int, perSecond float64) time.Duration {
	return shortest + share(node, spread(nodes, perSecond))
}

// Wave returns how long the nodes need for a stage if they follow the rotation by themselves, at perSecond renewals
// per second.
func (r Rotation) Wave(perSecond float64) time.Duration { return spread(r.Nodes, perSecond) }

// Start returns when a node applies the stage if it follows the rotation by itself. The nodes begin at different times
// within the Wave, so that not all of them restart their kubelets and renew their certificates at once.
func (r Rotation) Start(node string, perSecond float64) time.Time {
	return r.Since.Add(share(node, r.Wave(perSecond)))
}

// spread returns the range of lifetimes over which the renewals of the nodes are spread. A kubelet renews after a
// fraction of the lifetime, so the time between the first and the last renewal is shorter.
func spread(nodes int, perSecond float64) time.Duration {
	return time.Duration(min(float64(nodes*ofNode)/perSecond/earliest, maxSpread.Seconds()) * float64(time.Second))
}

// share returns a part of the time all for a node, in whole seconds. It depends only on the name of the node.
func share(node string, all time.Duration) time.Duration {
	sum := sha256.Sum256([]byte(node))
	share := float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53)
	return time.Duration(share * float64(all)).Truncate(time.Second)
}

// maxSpread keeps a lifetime in the range of a Duration.
const maxSpread = 365 * 24 * time.Hour

// followed is the maximum time until the leader of kubejoin has put a new CA into cluster-info and new join commands.
const followed = time.Minute

// PinsOnlyOld reports whether the join command of a token may pin only the old CA. It may if the token is older than
// the stage in which join commands began to pin both CAs. The zero time is older.
func (r Rotation) PinsOnlyOld(created time.Time) bool {
	return r.Trusting.IsZero() || created.Before(r.Trusting.Add(followed))
}
