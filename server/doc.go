// Package server is the HTTPS API of kubejoin as an http.Handler. It makes join commands, manages tokens
// and claims, explains why a machine has not joined, and serves discovery. [Server] is the one type that
// most importers need. Package server/client is the client, also for use in the same process.
//
// The package stores nothing. Tokens are in a tokens.Store, cluster-info comes from [ClusterInfo], and the
// importer's functions authenticate and authorize. The caller provides the listener and the certificate.
// [Server.HTTPServer] limits the resources that a client can use, and [LimitHandshakes] limits the data that a
// client can send before its first request.
//
// # Mounting on an existing mux
//
// The Handler serves its own paths and returns 404 for all others. It may be mounted under any prefix with
// http.StripPrefix. A prefix also keeps its /healthz, /readyz, /version, /metrics and / apart from the paths of
// the importer. The Client's URL and the URL of token reviews in kube-apiserver's webhook kubeconfig must then
// include the prefix. One path must be at the root, because kubeadm reads it from the HOST:PORT of a join
// command (Minting.Advertise): /api/v1/namespaces/kube-public/configmaps/cluster-info.
//
// Serve the Handler with a certificate that the cluster's CA has signed: joining nodes trust no other.
//
// Middleware may log, count and refuse requests, with these limits:
//   - It must not read the body.
//   - A ResponseWriter that it wraps needs an Unwrap method (see http.ResponseController). Otherwise the
//     Handler cannot disconnect slow readers.
//   - It should log the path without the query.
//   - It should not compress: this package compresses each document once for all clients.
//
// The limits of HTTPServer apply to the whole http.Server. Each Handler has its own limits on requests in flight: call
// Server.Handler only once. A custom Authenticate need not support bearer tokens. A 401 response still names them in
// WWW-Authenticate.
//
// See examples/mount-server for a complete program.
package server
