// Package test proves kubejoin end to end: the real program beside the real kube-apiserver,
// kubeadm, kubelet and kube-controller-manager, which package test/cluster runs. It has tests
// alone.
package test
