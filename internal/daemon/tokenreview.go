package daemon

import (
	"fmt"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
)

// reviewTokens enables token reviews, with which kube-apiserver authenticates the tokens of the store.
func (s *service) reviewTokens(dir datadir.Dir) error {
	bearer, err := dir.WebhookBearer()
	if err != nil {
		return err
	}
	known, err := auth.ParseTokenFile([]byte(bearer + ",kube-apiserver,\n"))
	if err != nil {
		return fmt.Errorf("%s: %w", dir.Path(datadir.WebhookToken), err)
	}
	s.reviewerBearer = known.Authenticate
	way, err := s.reviewer()
	if err != nil {
		return err
	}
	s.api.Webhooks.TokenReview = &server.TokenReview{Authenticate: way, Audiences: s.options.Webhook.Audiences}
	return nil
}

// reviewer returns how kube-apiserver authenticates to its webhooks: by the bearer token of the file store, or by the
// client certificate of the options. It is nil if there is neither.
func (s *service) reviewer() (auth.Authenticate, error) {
	o := s.options.Webhook
	if o.ClientCAFile == "" && s.reviewerBearer == nil {
		return nil, nil
	}
	if o.ClientCAFile != "" && s.reviewerCertificate == nil {
		cas, err := s.openCAs("webhook-client-ca", "webhook-client-ca-file", o.ClientCAFile)
		if err != nil {
			return nil, err
		}
		s.check("webhook-client-ca", usable(cas, "webhook-client-ca-file"))
		s.reviewerCertificate = auth.ClientCertificate{CAs: s.trusting(cas.Get), Name: o.ClientName}.Cached()
	}
	return auth.HeaderOrCertificate(s.reviewerBearer, s.reviewerCertificate), nil
}
