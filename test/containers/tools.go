//go:build tools

// Package containers pins the container runtime of the clusters in test/kubeadm, and builds it from its published
// module. It is a separate module, because containerd and Kubernetes require different versions of the same modules.
package containers

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
