// Package client asks the HTTPS API of kubejoin, with the types of package server/api. [Client] is
// its one type; [Handler] lets it ask a server.Server in the same process, with no network.
package client
