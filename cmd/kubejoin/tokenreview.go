package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/kubejoin/kubejoin/internal/reload"
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
	var byCertificate server.Authenticate
	if file := s.options.webhookClientCA; file != "" {
		cas, err := reload.Files[*x509.CertPool]{
			Name: "webhook-client-ca", Paths: []string{file},
			Load:   func() (*x509.CertPool, error) { return loadPool(file) },
			Logger: s.log, Registerer: s.registry,
		}.Open()
		if err != nil {
			return fmt.Errorf("--webhook-client-ca-file: %w", err)
		}
		s.goBackground(cas.Run)
		s.check("webhook-client-ca", func(context.Context) error {
			if cas.Err() != nil {
				return errors.New("the file of --webhook-client-ca-file has changed and cannot be used; the last good one is in use, see the log")
			}
			return nil
		})
		byCertificate = server.ClientCertificate{CAs: cas.Get, Name: s.options.webhookClientName}.Remembering()
	}
	s.api.TokenReview = &server.TokenReview{Authenticate: server.HeaderOrCertificate(known.Authenticate, byCertificate), Audiences: s.options.webhookAudiences}
	return nil
}

func loadPool(file string) (*x509.CertPool, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	cas, err := clusterinfo.ParseCAs(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	pool := x509.NewCertPool()
	for _, ca := range cas {
		pool.AddCert(ca)
	}
	return pool, nil
}
