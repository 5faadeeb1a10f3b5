package daemon

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	"github.com/kubejoin/kubejoin/internal/metrics"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/signer"
	"github.com/kubejoin/kubejoin/signer/revocation"
	"github.com/kubejoin/kubejoin/signer/revocation/configmaps"
	"github.com/kubejoin/kubejoin/signer/revocation/desk"
	"github.com/kubejoin/kubejoin/signer/revocation/rowlist"
	"github.com/kubejoin/kubejoin/tokens/secretstore"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const eventNodeRevoked = "NodeRevoked"

// revokedTimeout limits how long a caller waits for revocations that have not been listed yet.
const revokedTimeout = 2 * time.Second

// checkRevoked returns an [*auth.Revoked] if a client certificate is revoked.
func (s *service) checkRevoked(ctx context.Context, leaf *x509.Certificate) error {
	ctx, cancel := context.WithTimeout(ctx, revokedTimeout)
	defer cancel()
	e, err := s.revocations.Known(ctx, revocation.SubjectOfCertificate(leaf))
	if err != nil || e == nil {
		return err
	}
	return &auth.Revoked{Message: e.Message()}
}

// openRevocations opens the revocations in the store of the tokens.
func (s *standalone) openRevocations() {
	s.revocations = &revocation.Guard{Store: rowlist.New(s.revocationRows)}
}

// openRevocations opens the revocations in ConfigMaps, even if tokens are in a file: the ValidatingAdmissionPolicy
// reads them.
func (c *cluster) openRevocations() error {
	list, err := configmaps.Open(c.watch, c.client, secretstore.ClaimNamespace, c.log)
	if err != nil {
		return err
	}
	c.revocations = &revocation.Guard{Store: list}
	c.revoked = list
	c.check("revocations", func(ctx context.Context) error {
		if _, err := list.Cached(ctx); err != nil {
			return errors.New("kubejoin has not listed the revocations in " + secretstore.ClaimNamespace + " yet; see the log")
		}
		return nil
	})
	return nil
}

// newDesk returns the Desk of the API.
func (s *service) newDesk(a *signer.Authority) *desk.Desk {
	return &desk.Desk{
		Guard: s.revocations, Tokens: s.api.Tokens, Claims: s.api.Claims, ClusterInfo: s.api.ClusterInfo, IssuanceRecord: s.api.IssuanceRecord, Node: s.api.Cluster.Node,
		Lifetime: a.MaxRemainingLifetime, RejoinWindow: s.options.NodeRules.RejoinWindow,
	}
}

// answerAccessReviews enables the webhook with which kube-apiserver refuses revoked certificates, if it can
// authenticate kube-apiserver.
func (s *service) answerAccessReviews() error {
	way, err := s.reviewer()
	if err != nil || way == nil {
		return err
	}
	s.api.Webhooks.Authorization = &server.Authorization{Authenticate: way, Revoked: s.revocations.Known}
	return nil
}

// reportRevocations returns a controller that creates an Event on each Node that is revoked from now on, by whatever
// replica or command. It also reports how full the list is.
func (c *cluster) reportRevocations() func(context.Context) error {
	fill := metrics.Gauge(c.registry, "kubejoin_revocations_fill_ratio", "How full the fullest ConfigMap of revocations is, from 0 to 1.").WithLabelValues()
	return func(ctx context.Context) error {
		start, reported := time.Now().Truncate(time.Second), map[revocation.Key]time.Time{}
		hourly := time.NewTicker(time.Hour) // entries end without a hint
		defer hourly.Stop()
		for hints := c.revoked.Watch(ctx); ; {
			select {
			case <-ctx.Done():
				return nil
			case <-hints:
			case <-hourly.C:
			}
			entries, err := c.revoked.Cached(ctx)
			if err != nil {
				return nil // ctx has ended
			}
			fill.Set(c.revoked.Fill())
			for _, e := range entries {
				if e.Node == "" || e.Since.Before(start) || reported[e.Key()].Equal(e.Since) {
					continue
				}
				reported[e.Key()] = e.Since
				c.eventOn(&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.Node, UID: types.UID(e.Node)}, corev1.EventTypeWarning, eventNodeRevoked,
					"kubejoin refuses the certificates of this node: "+e.Message()+". To let the machine come back, create a token for it: kubejoin token create --replace-node "+e.Node)
			}
		}
	}
}
