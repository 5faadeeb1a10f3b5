// Package kubeauth lets a Kubernetes API server say who calls a [server.Server] and what they may do
// there: bearer tokens by TokenReview, permissions by SubjectAccessReview. It remembers answers for
// seconds, says no to whatever the API server did not say yes to, and leaves what is asked for to
// package server.
//
//	tokens := &kubeauth.Tokens{Client: client}
//	permissions := &kubeauth.Permissions{Client: client}
//	s.Authenticate, s.Authorize = tokens.Authenticate, permissions.Authorize
package kubeauth
