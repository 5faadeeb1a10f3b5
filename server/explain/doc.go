// Package explain says in one sentence why a machine has or has not joined, and what to do next:
// [Explain] makes an [api.NodeExplanation] of [Facts].
//
// It asks nobody: package explain/kube gathers the facts of a cluster.
package explain
