// Package cleaner deletes expired tokens and releases claims that are no longer needed, in any store of
// package tokens. [Tokens] and [Claims] are one loop each. Run them next to the signer.
package cleaner
