package client

import (
	"net/http"

	"github.com/kubejoin/kubejoin/server"
	"github.com/kubejoin/kubejoin/server/auth"
)

// InProcess asks a server in this process, with no network, as somebody who may do everything:
// for who has the stores at hand, and needs nobody's leave. Of s it takes Tokens and ClusterInfo
// to make tokens with, and no Authenticate, Authorize, rates and bound on tokens. What fails says why in full, as with
// [server.Server.ShowCauses].
func InProcess(s server.Server) *Client {
	s.Authenticate = func(*http.Request) (auth.User, error) { return auth.User{Name: "in process"}, nil }
	s.Authorize = func(*http.Request, auth.User, auth.Access) error { return nil }
	s.ClientRate, s.UserRate = server.Rate{QPS: -1}, server.Rate{QPS: -1}
	s.UserTokens = -1
	s.ShowCauses = true
	return &Client{URL: "https://in-process", HTTP: &http.Client{Transport: Handler(s.Handler())}}
}
