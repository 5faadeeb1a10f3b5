// Package tokens is what a Kubernetes bootstrap token is: its value, the record that says what
// it is good for, the [Store] that keeps records, and the [Cleaner] that ends expired ones. A
// token with [Limits] leaves a [Claim] for each node name that it takes: [Claims] keeps them, and
// the [ClaimCleaner] releases them.
//
// Most callers need [Generate], [Parse] and a Store: package tokens/secretstore keeps tokens in
// a cluster's Secrets, tokens/boltstore in one file. What is signed with a token is in package
// clusterinfo. Limits are held by what issues certificates, package signer, and by nothing in
// here. The shortest way to a token and its join command is client.InProcess of package
// server/client.
package tokens
