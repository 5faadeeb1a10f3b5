// Package client asks the HTTPS API of kubejoin, with the types of package server/api. [Client] is
// its one type: of a server elsewhere, or, by [InProcess], of a token store that is at hand.
package client
