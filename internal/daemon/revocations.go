package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/internal/codes"
	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
)

// revokedTimeout limits how long a caller waits for revocations that have not been listed yet.
const revokedTimeout = 2 * time.Second

// A trust decides which client certificates kubejoin trusts.
type trust struct {
	rotation    *rotationState
	revocations *revocation.Guard
}

// clients returns a function that authenticates by client certificates of the CAs that get returns. The function does
// not accept CAs that a rotation took out of use.
func (t trust) clients(get func() []*x509.Certificate) auth.Authenticate {
	return auth.ClientCertificate{CAs: t.rotation.trusting(get), Everybody: true, Revoked: t.checkRevoked}.Cached()
}

// checkRevoked returns an [*auth.Revoked] if a client certificate is revoked.
func (t trust) checkRevoked(ctx context.Context, leaf *x509.Certificate) error {
	ctx, cancel := context.WithTimeout(ctx, revokedTimeout)
	defer cancel()
	e, err := t.revocations.Known(ctx, revocation.SubjectOfCertificate(leaf))
	if err != nil || e == nil {
		return err
	}
	return &auth.Revoked{Message: e.Message()}
}

// openRevocations opens the revocations in ConfigMaps. It uses ConfigMaps even if tokens are in a file, because the
// ValidatingAdmissionPolicy reads them.
func (c *connection) openRevocations() (*configmaps.List, error) {
	list, err := configmaps.Open(c.watch, c.client, secretstore.ClaimNamespace, c.log)
	if err != nil {
		return nil, err
	}
	c.check("revocations", func(ctx context.Context) error {
		if _, err := list.List(ctx, tokens.Cached); err != nil {
			return errors.New("kubejoin has not listed the revocations in " + secretstore.ClaimNamespace + " yet; see the log")
		}
		return nil
	})
	return list, nil
}

// reportRevocations returns a controller that creates an Event on each Node that is revoked from now on, by any
// replica or command. It also reports in a metric how full the list is.
func (c *cluster) reportRevocations() func(context.Context) error {
	fill := metrics.Gauge(c.registry, "kubejoin_revocations_fill_ratio", "How full the fullest ConfigMap of revocations is, from 0 to 1.").WithLabelValues()
	return func(ctx context.Context) error {
		start, reported := time.Now().Truncate(time.Second), map[revocation.Key]time.Time{}
		hourly := time.NewTicker(time.Hour) // no hint arrives when an entry expires
		defer hourly.Stop()
		for hints := c.revoked.Watch(ctx); ; {
			select {
			case <-ctx.Done():
				return nil
			case <-hints:
			case <-hourly.C:
			}
			entries, err := c.revoked.List(ctx, tokens.Cached)
			if err != nil {
				return nil // ctx has ended
			}
			fill.Set(c.revoked.Fill())
			for _, e := range entries {
				if e.Node == "" || e.Since.Before(start) || reported[e.Key()].Equal(e.Since) {
					continue
				}
				reported[e.Key()] = e.Since
				c.events.onNode(e.Node, codes.NodeRevoked,
					"kubejoin refuses the certificates of this node: "+e.Message()+". How to let the machine come back: kubejoin explain "+e.Node)
			}
		}
	}
}
