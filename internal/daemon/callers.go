package daemon

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/internal/reload"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/server/auth/kubeauth"
	"github.com/kubejoin/kubejoin/signer/approval"
)

// loadOperators returns a function that authenticates the operators in a token file. Without a file, that function
// authenticates nobody. loadOperators also reloads the file. It calls changed after each change; nil does nothing.
func (s *service) loadOperators(file string, changed func() error) (auth.Authenticate, error) {
	if file == "" {
		return (&auth.TokenFile{}).Authenticate, nil
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
		return nil, fmt.Errorf("--token-auth-file: %w", err)
	}
	s.goBackground(operators.Run)
	s.check("operators", usable(operators, "token-auth-file"))
	return func(r *http.Request) (auth.User, error) { return operators.Get().Authenticate(r) }, nil
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

// usable returns the readiness check for a reloaded file: it fails if the new content cannot be used.
func usable[T any](value *reload.Value[T], flag string) func(context.Context) error {
	return func(context.Context) error {
		if value.Err() != nil {
			return fmt.Errorf("the new file of --%s cannot be used, and kubejoin keeps the last valid one; see the log", flag)
		}
		return nil
	}
}

// byClientCA authenticates callers by client certificates of the client CA. Without a client CA, it returns nil.
func (s *service) byClientCA(t trust) (auth.Authenticate, error) {
	file := s.options.Callers.ClientCAFile
	if file == "" {
		return nil, nil
	}
	cas, err := s.openCAs("client-ca", "client-ca-file", file)
	if err != nil {
		return nil, err
	}
	s.check("client-ca", usable(cas, "client-ca-file"))
	return t.clients(cas.Get), nil
}

// byOwnCAs authenticates callers by client certificates of the cluster CA. For nodes it also uses the separate CA of their
// signer, if there is one.
func byOwnCAs(t trust, ca *clusterCA, c *configured) auth.Authenticate {
	known := t.clients(func() []*x509.Certificate { return ca.Get().Bundle() })
	if c == nil {
		return known
	}
	return auth.AnyOf(known, onlyNodes(t.clients(func() []*x509.Certificate { return c.files.Get().nodeCAs })))
}

// onlyNodes accepts only nodes, which must have no group except system:nodes. It ignores intermediates: the CA itself
// must have issued the certificate, because an intermediate CA may belong to another signer.
func onlyNodes(nodes auth.Authenticate) auth.Authenticate {
	return func(r *http.Request) (auth.User, error) {
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 1 {
			alone := *r.TLS
			alone.PeerCertificates = alone.PeerCertificates[:1]
			r = r.WithContext(r.Context()) // copy r
			r.TLS = &alone
		}
		user, err := nodes(r)
		if err == nil && !(approval.IsNode(user.Name, user.Groups) && len(user.Groups) == 1) {
			return auth.User{}, fmt.Errorf("%w: the CA of kubelet client certificates authenticates only nodes, and user %q in groups %q is not a node", auth.ErrBadCredentials, user.Name, strings.Join(user.Groups, ", "))
		}
		return user, err
	}
}

// callers authenticates the operators in the token file, and the users that the API server accepts. RBAC authorizes them.
func (c *connection) callers(operators, byCertificate auth.Authenticate) server.Callers {
	reviewed := &kubeauth.Tokens{Client: c.client, Audiences: c.Audiences, Registerer: c.registry}
	permissions := &kubeauth.Permissions{Client: c.client, Registerer: c.registry}
	return server.Callers{
		Authenticate: auth.HeaderOrCertificate(auth.AnyOf(operators, reviewed.Authenticate), byCertificate),
		Authorize:    adminsOr(operators, permissions.Authorize),
	}
}

// ownCallers authenticates the operators in the token file, and callers with a certificate. Only admins in the token
// file may do everything. A node may send only the requests that every node may send.
func ownCallers(operators, byCertificate auth.Authenticate) server.Callers {
	return server.Callers{
		Authenticate: auth.HeaderOrCertificate(operators, byCertificate),
		Authorize: adminsOr(operators, func(*http.Request, auth.User, auth.Access) error {
			return auth.Hint(auth.ErrForbidden, "only members of group "+AdminGroup+" in the token file may")
		}),
	}
}

// adminsOr allows everything to the admins of the token file, and calls others for other callers. Only the token file
// can make a caller an admin. A client certificate or a TokenReview with the admin group cannot.
func adminsOr(operators auth.Authenticate, others auth.Authorize) auth.Authorize {
	admins := auth.AllowGroup(AdminGroup)
	return func(r *http.Request, u auth.User, a auth.Access) error {
		if operator, err := operators(r); err == nil && admins(r, operator, a) == nil {
			return nil
		}
		return others(r, u, a)
	}
}
