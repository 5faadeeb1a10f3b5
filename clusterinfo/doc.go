// Package clusterinfo is what a joining node trusts: the discovery kubeconfig with the cluster's
// address and CAs, its signatures by bootstrap tokens, the pins of the CAs, and the join command
// that carries them. It computes values and, as a joining node, discovers them; keeping the
// ConfigMap in a cluster up to date is left to package clusterinfo/configmap.
//
// Most callers need [Kubeconfig], [Pins] and [JoinCommand]; a node needs [Discover].
package clusterinfo
