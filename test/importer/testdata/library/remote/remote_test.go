package remote

import (
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/kubejoin/kubejoin/clusterinfo"
	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
	"github.com/kubejoin/kubejoin/tokens/rowstore/memdb"
)

func TestCreateToken(t *testing.T) {
	const bearer = "0123456789abcdef0123456789abcdef"
	store := memdb.Open()
	info := &clusterinfo.Computed{Tokens: store}
	api := server.Server{
		Tokens: store, ClusterInfo: info,
		Callers: server.Callers{
			Authenticate: func(r *http.Request) (auth.User, error) {
				if r.Header.Get("Authorization") != "Bearer "+bearer {
					return auth.User{}, auth.ErrBadCredentials
				}
				return auth.User{Name: "ada", Groups: []string{"admins"}}, nil
			},
			Authorize: auth.AllowGroup("admins"),
		},
	}
	web := httptest.NewTLSServer(api.Handler())
	defer web.Close()
	var err error
	if info.Kubeconfig, err = clusterinfo.Kubeconfig(web.URL, []*x509.Certificate{web.Certificate()}); err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	made, err := createToken(t.Context(), web.URL, bearer, roots)
	if err != nil || made.MaxNodes != 1 {
		t.Errorf("got %+v, %v", made, err)
	}
	if _, err := clusterinfo.ParseJoinCommand(made.JoinCommand.Reveal()); err != nil {
		t.Error(err)
	}
}
