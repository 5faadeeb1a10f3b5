// Package client calls the HTTPS API of kubejoin, with the types of package server/api. [Client] is its one type: of a server
// elsewhere, or, by [InProcess], of a handler in this process.
package client
