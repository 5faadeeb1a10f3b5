// Package convert turns requests of the API into values of the library, and these values into objects of the API. The
// server uses it, and so do commands that work on a cluster without a server.
package convert
