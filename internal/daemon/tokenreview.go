package daemon

import (
	"fmt"

	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/server"
)

// reviewTokens answers kube-apiserver about the tokens of the store.
func (s *service) reviewTokens(dir datadir.Dir) error {
	bearer, err := dir.WebhookBearer()
	if err != nil {
		return err
	}
	known, err := server.ParseTokenFile([]byte(bearer + ",kube-apiserver,\n"))
	if err != nil {
		return fmt.Errorf("%s: %w", dir.Path(datadir.WebhookToken), err)
	}
	o := s.options.Webhook
	var byCertificate server.Authenticate
	if o.ClientCAFile != "" {
		pool, err := s.openPool("webhook-client-ca", "webhook-client-ca-file", o.ClientCAFile)
		if err != nil {
			return err
		}
		s.check("webhook-client-ca", usable(pool, "webhook-client-ca-file"))
		byCertificate = server.ClientCertificate{CAs: pool.Get, Name: o.ClientName}.Remembering()
	}
	s.api.TokenReview = &server.TokenReview{Authenticate: server.HeaderOrCertificate(known.Authenticate, byCertificate), Audiences: o.Audiences}
	return nil
}
