// Package cluster runs a real Kubernetes control plane on loopback, and joins nodes to it with the
// real kubeadm and the real kubelet. Each node has its own mount and PID namespaces. Package cluster
// does not run kubejoin: the tests and the demo start kubejoin beside it.
//
// [Build] builds the programs once. [Start] runs etcd and kube-apiserver. In tests, [ForTest] and [Shared] build and start.
// [Cluster.StartKCM] starts kube-controller-manager. [Cluster.Join] needs root, see [NeedRoot].
package cluster
