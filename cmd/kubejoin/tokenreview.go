package main

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/atomicfile"
	"github.com/kubejoin/kubejoin/internal/owned"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/server"
)

// webhookToken is the file in --data-dir that has the bearer token by which kube-apiserver is
// known, and nothing else, as a kubeconfig's tokenFile wants it.
const webhookToken = "kube-apiserver.token"

// reviewTokens answers kube-apiserver about the tokens of the store.
func (s *service) reviewTokens(dir dataDir) error {
	bearer, err := dir.webhookToken()
	if err != nil {
		return err
	}
	known, err := server.ParseTokenFile([]byte(bearer + ",kube-apiserver,\n"))
	if err != nil {
		return fmt.Errorf("%s: %w", dir.path(webhookToken), err)
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

// RFC 6750, section 2.1. None of it means anything in a token file.
var bearerPattern = regexp.MustCompile(`\A[A-Za-z0-9._~+/-]+=*\n?\z`)

// webhookToken gives the bearer token of kube-apiserver, and makes one unless there is one.
func (d dataDir) webhookToken() (string, error) {
	file := d.path(webhookToken)
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		content = []byte(rand.Text() + rand.Text() + "\n")
		err = atomicfile.Write(file, content)
	}
	if err != nil {
		return "", fmt.Errorf("bearer token of kube-apiserver: %w", err)
	}
	return parseBearer(file, content)
}

// readBearer reads what webhookToken made.
func readBearer(file string) (string, error) {
	if err := owned.Check(file); err != nil {
		return "", fmt.Errorf("bearer token of kube-apiserver: %w", err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("bearer token of kube-apiserver: %w", err)
	}
	return parseBearer(file, content)
}

func parseBearer(file string, content []byte) (string, error) {
	if !bearerPattern.Match(content) {
		return "", fmt.Errorf("%s: want one line with a bearer token of letters, digits and ._~+/-", file)
	}
	return strings.TrimSuffix(string(content), "\n"), nil
}
