package server

import (
	"github.com/kubejoin/kubejoin/server/auth"
)

// A Route is one of Handler's.
type Route struct {
	Method, Path, Name string
	Access             auth.Access
}

// Routes are all that the handler of s answers.
func (s Server) Routes() []Route {
	var all []Route
	for _, on := range (&handler{Server: s}).routes() {
		all = append(all, Route{on.method, on.path, on.name, on.access})
	}
	return all
}
