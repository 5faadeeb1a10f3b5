package main

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/kubeauth"
	"github.com/kubejoin/kubejoin/signer"
	"k8s.io/client-go/kubernetes"
)

// loadOperators takes users of the API from a file.
func (s *service) loadOperators(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--token-auth-file: %w", err)
	}
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
		s.log.Warn("others on this machine can read the operators' bearer tokens; want mode 0600", "file", file, "mode", info.Mode().Perm())
	}
	if s.operators, err = server.ParseTokenFile(content); err != nil {
		return fmt.Errorf("--token-auth-file: %s: %w", file, err)
	}
	return nil
}

// knowCertificates knows callers by client certificates that --client-ca-file has issued, and nobody
// without it.
func (s *service) knowCertificates() error {
	file := s.options.clientCA
	if file == "" {
		return nil
	}
	files, err := reload.Files[*x509.CertPool]{
		Name: "client-ca", Paths: []string{file},
		Load:   func() (*x509.CertPool, error) { return loadPool(file) },
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if err != nil {
		return fmt.Errorf("--client-ca-file: %w", err)
	}
	s.goBackground(files.Run)
	s.check("client-ca", func(context.Context) error {
		if files.Err() != nil {
			return errors.New("the file of --client-ca-file has changed and cannot be used; the last good one is in use, see the log")
		}
		return nil
	})
	s.knowBy(server.ClientCertificate{CAs: files.Get, Everybody: true}.Remembering())
	return nil
}

// knowBy has callers asked for their client certificates.
func (s *service) knowBy(certificate server.Authenticate) {
	s.askForCertificate, s.byCertificate = true, certificate
}

// knowOwnCertificates is knowCertificates where without --client-ca-file callers are known by the
// cluster CA, and nodes by the CA that their signer has for itself as well.
func (s *service) knowOwnCertificates() error {
	if s.options.clientCA != "" {
		return s.knowCertificates()
	}
	known := server.ClientCertificate{CAs: s.ownCAs(), Everybody: true}.Remembering()
	if s.configured != nil {
		files := s.configured.files
		nodes := server.ClientCertificate{CAs: func() *x509.CertPool { return files.Get().nodes }, Everybody: true}.Remembering()
		known = server.AnyOf(known, onlyNodes(nodes))
	}
	s.knowBy(known)
	return nil
}

// onlyNodes knows of those whom nodes knows the nodes, each in no group but that of nodes. Only what a
// CA has issued itself counts: a CA below it may be another signer's.
func onlyNodes(nodes server.Authenticate) server.Authenticate {
	return func(r *http.Request) (server.User, error) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 1 {
			alone := *r.TLS
			alone.PeerCertificates = alone.PeerCertificates[:1]
			r = r.WithContext(r.Context()) // a copy
			r.TLS = &alone
		}
		user, err := nodes(r)
		if err == nil && !(signer.IsNode(user.Name, user.Groups) && len(user.Groups) == 1) {
			return server.User{}, fmt.Errorf("%w: the CA of kubelets' client certificates makes nodes known, and %q in %q is none", server.ErrBadCredentials, user.Name, user.Groups)
		}
		return user, err
	}
}

// callersOnCluster are the token file's, and whom the API server knows; what they may do is RBAC's to
// say.
func (s *service) callersOnCluster(client kubernetes.Interface) {
	reviewed := &kubeauth.Tokens{Client: client, Audiences: s.options.apiAudiences, Registerer: s.registry}
	permissions := &kubeauth.Permissions{Client: client, Registerer: s.registry}
	s.api.Authenticate = server.HeaderOrCertificate(server.AnyOf(s.operators.Authenticate, reviewed.Authenticate), s.byCertificate)
	s.api.Authorize = adminsOr(s.operators, permissions.Authorize)
}

// callersStandalone are the token file's alone, of whom admins may do everything. Who has a
// certificate is known, and may ask for what every node may.
func (s *service) callersStandalone() {
	s.api.Authenticate = server.HeaderOrCertificate(s.operators.Authenticate, s.byCertificate)
	s.api.Authorize = adminsOr(s.operators, func(*http.Request, server.User, server.Access) error {
		return fmt.Errorf("%w: only members of group %s in the token file may", server.ErrForbidden, adminGroup)
	})
}

// adminsOr lets the admins of the token file do everything, and asks others about everybody else.
// The group makes admins by the word of that file alone: in a client certificate or in a TokenReview it
// is a group like any other.
func adminsOr(operators *server.TokenFile, others server.Authorize) server.Authorize {
	admins := server.AllowGroup(adminGroup)
	return func(r *http.Request, u server.User, a server.Access) error {
		if operator, err := operators.Authenticate(r); err == nil && admins(r, operator, a) == nil {
			return nil
		}
		return others(r, u, a)
	}
}
