//go:build tools

// Package kube pins the real Kubernetes components that the end-to-end tests run, and builds them from
// their published modules. It is a separate module, so that importers of kubejoin do not require them. go.mod has the
// newest version of Kubernetes, and go.VERSION.mod each older one that kubejoin supports.
package kube

import (
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-proxy"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
	_ "k8s.io/kubernetes/cmd/kubeadm"
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
