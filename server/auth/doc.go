// Package auth says who sent a request to a server of the HTTPS API, and what they may do. [Authenticate] and [Authorize] are
// functions that an importer may write; this package has them for bearer tokens in a file, client certificates and a group,
// and package kubeauth below it asks an API server.
package auth
