// Package auth authenticates and authorizes callers of the HTTPS API. An importer may write its own [Authenticate]
// and [Authorize] functions. This package provides such functions for bearer tokens in a file, client certificates
// and a group. Package kubeauth provides them for users of a Kubernetes API server.
package auth
