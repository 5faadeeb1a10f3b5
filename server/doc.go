// Package server is the HTTPS API of kubejoin as an http.Handler: it hands out join commands,
// looks after tokens and claims, says why a machine has not joined, and answers discovery.
// [Server] is the one type that most importers need; package server/client asks it, also in the
// same process.
//
// It keeps nothing: tokens are in a tokens.Store, cluster-info is where [ClusterInfo] finds it,
// and who may do what is decided by the functions that the importer gives. Listening and the
// certificate are the caller's; [Server.HTTPServer] bounds what a client can take of the rest.
package server
