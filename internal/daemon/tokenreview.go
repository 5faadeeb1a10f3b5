package daemon

import (
	"fmt"

	"github.com/kubejoin/kubejoin/internal/datadir"
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
	o := s.options.Webhook
	var byCertificate auth.Authenticate
	if o.ClientCAFile != "" {
		pool, err := s.openPool("webhook-client-ca", "webhook-client-ca-file", o.ClientCAFile)
		if err != nil {
			return err
		}
		s.check("webhook-client-ca", usable(pool, "webhook-client-ca-file"))
		byCertificate = auth.ClientCertificate{CAs: pool.Get, Name: o.ClientName}.Cached()
	}
	s.api.TokenReview = &server.TokenReview{Authenticate: auth.HeaderOrCertificate(known.Authenticate, byCertificate), Audiences: o.Audiences}
	return nil
}
