// Package cluster runs a real Kubernetes control plane on loopback, and joins nodes to it with
// the real kubeadm and the real kubelet, each in a mount namespace of its own. It runs nothing of
// kubejoin: the tests and the demo put kubejoin beside it.
//
// [Build] makes the programs once. [Start] runs etcd and kube-apiserver, without a
// kube-controller-manager unless [Cluster.StartKCM] is called; in a test, [ForTest] and
// [Shared] do both. [Cluster.Join] needs root, see [NeedRoot].
package cluster
