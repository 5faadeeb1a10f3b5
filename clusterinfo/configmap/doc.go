// Package configmap keeps the ConfigMap kube-public/cluster-info signed, and watches it for
// those who wait for a signature or serve it. What belongs into it is computed by package
// clusterinfo; electing the one replica that runs the [Signer] is left to the program.
package configmap
