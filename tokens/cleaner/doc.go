// Package cleaner deletes expired tokens and finished claims from any store of package tokens. Each
// of [Tokens] and [Claims] is one loop to run beside whatever issues certificates.
package cleaner
