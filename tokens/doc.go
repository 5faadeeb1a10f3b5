// Package tokens defines the Kubernetes bootstrap token: its value, its [Record] and the [Store] of records. A token with
// [Limits] holds a [Claim] for each node name that it takes. [Claims] stores these claims. Outside kubejoin's own packages,
// it imports only the standard library.
//
// Most callers need [Generate], [Parse] and a Store. Package tokens/secretstore stores tokens in the
// Secrets of a cluster, package tokens/boltstore in one file. Package tokens/cleaner deletes expired
// tokens and releases claims. Package clusterinfo signs cluster-info with tokens. Package signer
// enforces limits when it issues certificates. The shortest way to a token and its join command is
// package clusterinfo/mint.
package tokens
