// Package tokens is what a Kubernetes bootstrap token is: its value, the record that says what
// it is good for, the [Store] that keeps records, and the [Cleaner] that ends expired ones.
//
// Most callers need [Generate], [Parse] and a Store: package tokens/secretstore keeps tokens in
// a cluster's Secrets, tokens/boltstore in one file. What is signed with a token is in package
// clusterinfo; which machine may have a certificate on it, in signer.
package tokens
