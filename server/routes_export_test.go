package server

import (
	"net/http"
	"regexp"

	"github.com/kubejoin/kubejoin/server/auth"
)

// DescribedRoute is a route as openapi.yaml must describe it.
type DescribedRoute struct{ Method, Path, Name, Access string }

var parameterPattern = regexp.MustCompile(`:[^}]*\}`)

// DescribedRoutes returns the routes of a server with every feature enabled.
func DescribedRoutes() []DescribedRoute {
	h := &handler{Server: Server{
		Certificates: &Certificates{},
		Webhooks:     Webhooks{TokenReview: &TokenReview{}, Authorization: &Authorization{}},
		Status:       Status{Metrics: http.NotFoundHandler()},
	}}
	var all []DescribedRoute
	for _, on := range h.routes() {
		r := DescribedRoute{Method: on.method, Path: parameterPattern.ReplaceAllString(on.path, "}"), Name: on.name}
		if on.access != (auth.Access{}) {
			r.Access = on.access.String()
		}
		all = append(all, r)
	}
	return all
}
