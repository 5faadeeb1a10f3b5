// Package kubeauth asks a Kubernetes API server who sent a request and what they may do: bearer tokens by TokenReview,
// permissions by SubjectAccessReview. It caches results for seconds, and refuses whatever the API server did not allow.
//
//	tokens := &kubeauth.Tokens{Client: client}
//	permissions := &kubeauth.Permissions{Client: client}
//	s.Authenticate, s.Authorize = tokens.Authenticate, permissions.Authorize
package kubeauth
