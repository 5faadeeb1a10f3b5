package server

import (
	"net/http"

	"github.com/kubejoin/kubejoin/server/auth"
)

// Route is a route of Handler.
type Route struct {
	Method, Path, Name string
	Access             auth.Access
}

// Routes returns all routes of the handler of s.
func (s Server) Routes() []Route {
	var all []Route
	for _, on := range (&handler{Server: s}).routes() {
		all = append(all, Route{on.method, on.path, on.name, on.access})
	}
	return all
}

// AllRoutes returns the routes of a server with every feature enabled.
func AllRoutes() []Route {
	return Server{
		Console:      true,
		Certificates: &Certificates{},
		Webhooks:     Webhooks{TokenReview: &TokenReview{}, Authorization: &Authorization{}},
		Status:       Status{Metrics: http.NotFoundHandler()},
	}.Routes()
}
