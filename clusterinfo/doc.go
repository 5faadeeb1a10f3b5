// Package clusterinfo implements the data that a joining node trusts: the discovery kubeconfig with the
// cluster's address and CAs, its signatures by bootstrap tokens, the CA pins, and the join command that carries
// them. The package computes these values, and discovers them as a joining node does. Package
// clusterinfo/configmap keeps the ConfigMap in a cluster up to date.
//
// Most callers need [Kubeconfig], [Pins] and [JoinCommand]; a node needs [Discover].
package clusterinfo
