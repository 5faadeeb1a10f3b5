// Package server is the HTTPS API of kubejoin as an http.Handler: it hands out join commands,
// looks after tokens and claims, says why a machine has not joined, and answers discovery.
// [Server] is the one type that most importers need; package server/client asks it, also in the
// same process.
//
// It keeps nothing: tokens are in a tokens.Store, cluster-info is where [ClusterInfo] finds it,
// and who may do what is decided by the functions that the importer gives. Listening and the
// certificate are the caller's; [Server.HTTPServer] bounds what a client can take of the rest, and
// [LimitHandshakes] what it can send before.
//
// # On a mux of one's own
//
// The Handler answers its own paths and, for all others that reach it, 404. All that people and
// machines ask for may be under any prefix (http.StripPrefix), which also keeps /healthz, /readyz,
// /version, /metrics and / apart from an installer's own; the Client's URL has the prefix then. The
// webhook kubeconfig of kube-apiserver names the whole URL of token reviews, prefix and all. One path
// is where kubeadm looks for it at the HOST:PORT of a join command, Server.Advertise, and is mounted
// at the root of that host: /api/v1/namespaces/kube-public/configmaps/cluster-info.
//
// It is served with a certificate that the cluster's CA has signed: joining nodes trust nothing else.
//
// Middleware may log, count and refuse. It leaves the body unread; a ResponseWriter that it wraps
// has Unwrap (see http.ResponseController), or slow readers are not cut off; what it logs is the path
// without the query; and compression is better left to this package, which does it once for all.
// The bounds of HTTPServer are those of the whole http.Server, the bounds on requests in flight those
// of one Handler: it is made once. An Authenticate of one's own need not look at bearer tokens; the
// answer 401 still names them, as the way that everybody has.
//
// examples/mount-server is all of that.
package server
