package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// loadOperators loads the operators from the token file, if there is one.
func (s *service) loadOperators() error {
	file := s.options.Callers.TokenFile
	if file == "" {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--token-auth-file: %w", err)
	}
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
		s.log.Warn("others on this machine can read the operators' bearer tokens; want mode 0600", "file", file, "mode", info.Mode().Perm())
	}
	if s.operators, err = auth.ParseTokenFile(content); err != nil {
		return fmt.Errorf("--token-auth-file: %s: %w", file, err)
	}
	return nil
}

// openPool loads CA certificates from a file and reloads them. flag names the file in errors.
func (s *service) openPool(name, flag, file string) (*reload.Value[*x509.CertPool], error) {
	pool, err := reload.Files[*x509.CertPool]{
		Name: name, Paths: []string{file},
		Load:   func() (*x509.CertPool, error) { return loadPool(file) },
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	s.goBackground(pool.Run)
	return pool, nil
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

// usable is the check of a pool that openPool has opened.
func usable(pool *reload.Value[*x509.CertPool], flag string) func(context.Context) error {
	return func(context.Context) error {
		if pool.Err() != nil {
			return fmt.Errorf("the file of --%s has changed and cannot be used; the last good one is in use, see the log", flag)
		}
		return nil
	}
}

// knowCertificates authenticates callers by client certificates of the client CA, if there is one.
func (s *service) knowCertificates() error {
	file := s.options.Callers.ClientCAFile
	if file == "" {
		return nil
	}
	pool, err := s.openPool("client-ca", "client-ca-file", file)
	if err != nil {
		return err
	}
	s.check("client-ca", usable(pool, "client-ca-file"))
	s.byCertificate = auth.ClientCertificate{CAs: pool.Get, Everybody: true}.Cached()
	return nil
}

// knowOwnCertificates is knowCertificates for a standalone kubejoin. Without a client CA it uses the
// cluster CA, and for nodes also the CA that their signer has of its own.
func (s *service) knowOwnCertificates() error {
	if s.options.Callers.ClientCAFile != "" {
		return s.knowCertificates()
	}
	known := auth.ClientCertificate{CAs: s.ownCAs(), Everybody: true}.Cached()
	if s.configured != nil {
		files := s.configured.files
		nodes := auth.ClientCertificate{CAs: func() *x509.CertPool { return files.Get().nodes }, Everybody: true}.Cached()
		known = auth.AnyOf(known, onlyNodes(nodes))
	}
	s.byCertificate = known
	return nil
}

// onlyNodes authenticates nodes, each in no group but that of nodes. Only certificates that a CA has
// issued itself count: a CA below it may be another signer's.
func onlyNodes(nodes auth.Authenticate) auth.Authenticate {
	return func(r *http.Request) (auth.User, error) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 1 {
			alone := *r.TLS
			alone.PeerCertificates = alone.PeerCertificates[:1]
			r = r.WithContext(r.Context()) // a copy
			r.TLS = &alone
		}
		user, err := nodes(r)
		if err == nil && !(approval.IsNode(user.Name, user.Groups) && len(user.Groups) == 1) {
			return auth.User{}, fmt.Errorf("%w: the CA of kubelets' client certificates makes nodes known, and %q in %q is none", auth.ErrBadCredentials, user.Name, user.Groups)
		}
		return user, err
	}
}

// knowCallers authenticates operators, and whom the API server knows. RBAC says what they may do.
func (c *cluster) knowCallers() {
	reviewed := &kubeauth.Tokens{Client: c.client, Audiences: c.Audiences, Registerer: c.registry}
	permissions := &kubeauth.Permissions{Client: c.client, Registerer: c.registry}
	c.api.Authenticate = auth.HeaderOrCertificate(auth.AnyOf(c.operators.Authenticate, reviewed.Authenticate), c.byCertificate)
	c.api.Authorize = adminsOr(c.operators, permissions.Authorize)
}

// knowCallers authenticates operators, and callers with a certificate. Of the operators, only admins
// may do anything; a node may request what every node may.
func (s *standalone) knowCallers() {
	s.api.Authenticate = auth.HeaderOrCertificate(s.operators.Authenticate, s.byCertificate)
	s.api.Authorize = adminsOr(s.operators, func(*http.Request, auth.User, auth.Access) error {
		return fmt.Errorf("%w: only members of group %s in the token file may", auth.ErrForbidden, AdminGroup)
	})
}

// adminsOr allows everything to the admins of the token file, and asks others about other callers. Only
// that file makes admins: in a client certificate or in a TokenReview the group is like any other.
func adminsOr(operators *auth.TokenFile, others auth.Authorize) auth.Authorize {
	admins := auth.AllowGroup(AdminGroup)
	return func(r *http.Request, u auth.User, a auth.Access) error {
		if operator, err := operators.Authenticate(r); err == nil && admins(r, operator, a) == nil {
			return nil
		}
		return others(r, u, a)
	}
}
