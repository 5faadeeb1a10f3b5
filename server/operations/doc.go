// Package operations has what kubejoin does for a request of the API or of a command, and how its values are shown. The server
// calls it for the API, and commands that work on a cluster without a server call it, too.
package operations
