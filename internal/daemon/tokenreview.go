package daemon

import (
	"fmt"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
)

// reviewer returns the authentication of kube-apiserver by its bearer token in the data folder.
func reviewer(dir datadir.Dir) (auth.Authenticate, error) {
	bearer, err := dir.WebhookBearer()
	if err != nil {
		return nil, err
	}
	known, err := auth.ParseTokenFile([]byte(bearer + ",kube-apiserver,\n"))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir.Path(datadir.WebhookToken), err)
	}
	return known.Authenticate, nil
}

// webhooks returns the webhooks for kube-apiserver: with own stores, token reviews, and in any case a webhook that
// refuses revoked certificates. kube-apiserver authenticates by the bearer token of own stores, or by the client
// certificate in the options. If neither is configured, there are no webhooks.
func (s *service) webhooks(own stores, t trust) (server.Webhooks, error) {
	var byCertificate auth.Authenticate
	if o := s.options.Webhook; o.ClientCAFile != "" {
		cas, err := s.openCAs("webhook-client-ca", "webhook-client-ca-file", o.ClientCAFile)
		if err != nil {
			return server.Webhooks{}, err
		}
		s.check("webhook-client-ca", usable(cas, "webhook-client-ca-file"))
		byCertificate = auth.ClientCertificate{CAs: t.rotation.trusting(cas.Get), Name: o.ClientName}.Cached()
	}
	if own.reviewer == nil && byCertificate == nil {
		return server.Webhooks{}, nil
	}
	way := auth.HeaderOrCertificate(own.reviewer, byCertificate)
	w := server.Webhooks{Authorization: &server.Authorization{Authenticate: way, Revoked: t.revocations.Known}}
	if own.reviewer != nil {
		w.TokenReview = &server.TokenReview{Authenticate: way, Audiences: s.options.Webhook.Audiences}
	}
	return w, nil
}
