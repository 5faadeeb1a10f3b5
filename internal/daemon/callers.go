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

// loadOperators loads the operators from the token file, if there is one, and reloads them. changed is called after a
// change of the file; nil does nothing.
func (s *service) loadOperators(changed func() error) error {
	file := s.options.Callers.TokenFile
	if file == "" {
		return nil
	}
	operators, err := reload.Files[*auth.TokenFile]{
		Name: "operators", Paths: []string{file},
		Load: func() (*auth.TokenFile, error) { return s.readOperators(file) },
		Changed: func(*auth.TokenFile) error {
			if changed == nil {
				return nil
			}
			return changed()
		},
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if err != nil {
		return fmt.Errorf("--token-auth-file: %w", err)
	}
	s.goBackground(operators.Run)
	s.check("operators", usable(operators, "token-auth-file"))
	s.operators = func(r *http.Request) (auth.User, error) { return operators.Get().Authenticate(r) }
	return nil
}

func (s *service) readOperators(file string) (*auth.TokenFile, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(file); err == nil && info.Mode().Perm()&0o077 != 0 {
		s.log.Warn("token file is readable by other users, want mode 0600", "file", file, "mode", info.Mode().Perm())
	}
	operators, err := auth.ParseTokenFile(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return operators, nil
}

// openCAs loads CA certificates from a file and reloads them. flag names the file in errors.
func (s *service) openCAs(name, flag, file string) (*reload.Value[[]*x509.Certificate], error) {
	cas, err := reload.Files[[]*x509.Certificate]{
		Name: name, Paths: []string{file},
		Load:   func() ([]*x509.Certificate, error) { return loadCAs(file) },
		Logger: s.log, Registerer: s.registry,
	}.Open()
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", flag, err)
	}
	s.goBackground(cas.Run)
	return cas, nil
}

func loadCAs(file string) ([]*x509.Certificate, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	cas, err := clusterinfo.ParseCAs(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return cas, nil
}

// usable returns the readiness check of a file that reloads.
func usable[T any](value *reload.Value[T], flag string) func(context.Context) error {
	return func(context.Context) error {
		if value.Err() != nil {
			return fmt.Errorf("the new file of --%s cannot be used, and kubejoin keeps the last valid one; see the log", flag)
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
	cas, err := s.openCAs("client-ca", "client-ca-file", file)
	if err != nil {
		return err
	}
	s.check("client-ca", usable(cas, "client-ca-file"))
	s.byCertificate = auth.ClientCertificate{CAs: s.trusting(cas.Get), Everybody: true, Revoked: s.checkRevoked}.Cached()
	return nil
}

// knowOwnCertificates is knowCertificates for a standalone kubejoin. Without a client CA it uses the cluster CA. For
// nodes it also uses the separate CA of their signer, if there is one.
func (s *service) knowOwnCertificates() error {
	if s.options.Callers.ClientCAFile != "" {
		return s.knowCertificates()
	}
	known := auth.ClientCertificate{CAs: s.trusting(func() []*x509.Certificate { return s.ca.Get().Bundle() }), Everybody: true, Revoked: s.checkRevoked}.Cached()
	if s.configured != nil {
		files := s.configured.files
		nodes := auth.ClientCertificate{CAs: s.trusting(func() []*x509.Certificate { return files.Get().nodeCAs }), Everybody: true, Revoked: s.checkRevoked}.Cached()
		known = auth.AnyOf(known, onlyNodes(nodes))
	}
	s.byCertificate = known
	return nil
}

// onlyNodes accepts only nodes, which must have no group except that of nodes. It ignores intermediates: certificates
// must be issued by the CA itself, because an intermediate CA may belong to another signer.
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
			return auth.User{}, fmt.Errorf("%w: the CA of kubelet client certificates authenticates only nodes, and user %q in groups %q is not a node", auth.ErrBadCredentials, user.Name, user.Groups)
		}
		return user, err
	}
}

// knowCallers authenticates operators of the token file and users that the API server accepts. RBAC authorizes them.
func (c *cluster) knowCallers() {
	reviewed := &kubeauth.Tokens{Client: c.client, Audiences: c.Audiences, Registerer: c.registry}
	permissions := &kubeauth.Permissions{Client: c.client, Registerer: c.registry}
	c.api.Callers.Authenticate = auth.HeaderOrCertificate(auth.AnyOf(c.operators, reviewed.Authenticate), c.byCertificate)
	c.api.Callers.Authorize = adminsOr(c.operators, permissions.Authorize)
}

// knowCallers authenticates operators of the token file and callers with a certificate. Only admins of the token file
// may do everything. A node may send the requests that every node may.
func (s *standalone) knowCallers() {
	s.api.Callers.Authenticate = auth.HeaderOrCertificate(s.operators, s.byCertificate)
	s.api.Callers.Authorize = adminsOr(s.operators, func(*http.Request, auth.User, auth.Access) error {
		return fmt.Errorf("%w: only members of group %s in the token file may do this", auth.ErrForbidden, AdminGroup)
	})
}

// adminsOr allows everything to the admins of the token file, and calls others for other callers. Only the token file
// makes admins: a client certificate or a TokenReview with the admin group does not.
func adminsOr(operators auth.Authenticate, others auth.Authorize) auth.Authorize {
	admins := auth.AllowGroup(AdminGroup)
	return func(r *http.Request, u auth.User, a auth.Access) error {
		if operator, err := operators(r); err == nil && admins(r, operator, a) == nil {
			return nil
		}
		return others(r, u, a)
	}
}
