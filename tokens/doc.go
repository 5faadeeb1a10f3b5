// Package tokens defines the Kubernetes bootstrap token: its value, the [Record] that says what it
// may do, and the [Store] that keeps records. A token with [Limits] leaves a [Claim] for each node
// name that it takes, and [Claims] keeps those. It imports the standard library alone.
//
// Most callers need [Generate], [Parse] and a Store: package tokens/secretstore keeps tokens in
// a cluster's Secrets, tokens/boltstore in one file. Package tokens/cleaner deletes expired tokens
// and releases claims. Package clusterinfo signs with tokens. Package signer, which issues
// certificates, enforces limits. The shortest way to a token and its join command is client.InProcess of package
// server/client.
package tokens
