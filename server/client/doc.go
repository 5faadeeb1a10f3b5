// Package client calls the HTTPS API of kubejoin, with the types of package server/api. A [Client] calls a server
// over the network or, if [InProcess] made it, a handler in this process.
package client
