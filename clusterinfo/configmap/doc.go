// Package configmap keeps the ConfigMap kube-public/cluster-info signed, and watches it for callers that wait
// for a signature or that serve cluster-info. Package clusterinfo computes its content. If the program has
// several replicas, it must elect one that runs the [Signer].
package configmap
