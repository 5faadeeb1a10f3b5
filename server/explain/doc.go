// Package explain describes in one sentence why a machine has or has not joined, and what to do next. [Explain]
// derives an [api.NodeExplanation] from [Facts].
//
// It makes no requests: package explain/kube reads the facts from a cluster.
package explain
