// Package approval decides whether a requester may have the certificate it requests. Ordered rules examine a
// [Request] and [Facts], and return approve, deny or wait with a reason.
//
// This package signs nothing and uses no network. Package signer signs, and package signer/kubefacts provides the Facts
// of a cluster.
package approval
