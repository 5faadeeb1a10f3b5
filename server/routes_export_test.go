package server

import (
	"net/http"
	"regexp"

	"github.com/kubejoin/kubejoin/server/auth"
)

// A DescribedRoute is a route as openapi.yaml is to describe it.
type DescribedRoute struct{ Method, Path, Name, Access string }

var parameterPattern = regexp.MustCompile(`:[^}]*\}`)

// DescribedRoutes are all that there can be.
func DescribedRoutes() []DescribedRoute {
	h := &handler{Server: Server{Certificates: &Certificates{}, TokenReview: &TokenReview{}, Metrics: http.NotFoundHandler()}}
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
