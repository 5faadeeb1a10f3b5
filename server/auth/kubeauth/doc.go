// Package kubeauth authenticates and authorizes callers with a Kubernetes API server: bearer tokens by TokenReview,
// permissions by SubjectAccessReview. It caches results for a few seconds, and denies everything that the API server
// did not allow.
//
//	tokens := &kubeauth.Tokens{Client: client}
//	permissions := &kubeauth.Permissions{Client: client}
//	s.Callers.Authenticate, s.Callers.Authorize = tokens.Authenticate, permissions.Authorize
package kubeauth
