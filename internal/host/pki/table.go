package pki

import (
	"bytes"
	"slices"

	"github.com/kubejoin/kubejoin/signer/rotation"
	corev1 "k8s.io/api/core/v1"
)

// An authority lists the files and pods that depend on a CA on a host that kubeadm set up. Paths are below
// /etc/kubernetes. A host need not have all files: a worker has only the bundle and kubelet.conf of the cluster CA.
// [Host.look] completes the list.
type authority struct {
	bundle, key string
	// leaves are certificate files that have a key file with the same name. kubeconfigs contain a client certificate, its
	// key and the CA bundle. The new CA signs both again.
	leaves, kubeconfigs []string
	// serving is the serving certificate whose clients may not trust the new CA yet.
	serving string
	// kubelet is true if the kubelet's client certificate and kubelet.conf depend on the CA.
	kubelet bool
	// pods are in the order in which Apply waits for them: kube-apiserver needs the etcd of its host.
	pods []pod

	// trusting are kubeconfigs in which only the CAs change. others are files that Apply does not change.
	trusting []string
	others   []rotation.File
}

// A pod is a static pod that reads the certificates of the bundle, or a kubeconfig, only when it starts.
type pod struct {
	name       string // of the process and of its manifest
	bundle     bool
	kubeconfig string
	// kubelets is true if the pod reads the bundle only to verify kubelets, and only before Kubernetes 1.36.
	kubelets bool

	// The next fields describe the pod as it is on this host. once are the files that the pod reads only when it starts.
	once     []string
	manifest corev1.Pod
	// container is the container name of a pod that kubeadm did not create; empty for kubeadm's pods. Such a pod may re-read
	// its mounted files, and only the operator knows whether it may be restarted.
	container string
}

const kubeletConf = "kubelet.conf"

// authorities maps each CA to the files that depend on it. No file depends on two CAs. kube-apiserver reloads its client
// CAs and its certificates, but not --etcd-cafile, and --kubelet-certificate-authority only from Kubernetes 1.36 on.
var authorities = map[rotation.CA]authority{
	rotation.Cluster: {
		bundle: "pki/ca.crt", key: "pki/ca.key",
		leaves:      []string{"pki/apiserver.crt", "pki/apiserver-kubelet-client.crt"},
		serving:     "pki/apiserver.crt",
		kubeconfigs: []string{"admin.conf", "super-admin.conf", "controller-manager.conf", "scheduler.conf"},
		kubelet:     true,
		pods: []pod{
			{name: "kube-apiserver", bundle: true, kubelets: true},
			{name: "kube-controller-manager", bundle: true, kubeconfig: "controller-manager.conf"},
			{name: "kube-scheduler", kubeconfig: "scheduler.conf"},
		},
	},
	rotation.FrontProxy: {
		bundle: "pki/front-proxy-ca.crt", key: "pki/front-proxy-ca.key",
		leaves: []string{"pki/front-proxy-client.crt"},
	},
	rotation.Etcd: {
		bundle: "pki/etcd/ca.crt", key: "pki/etcd/ca.key",
		leaves: []string{"pki/etcd/server.crt", "pki/etcd/peer.crt", "pki/etcd/healthcheck-client.crt", "pki/apiserver-etcd-client.crt"},
		pods:   []pod{{name: "etcd", bundle: true}, {name: "kube-apiserver", bundle: true}},
	},
}

// changed returns the files whose present content differs from the wanted content.
func (a authority) changed(present, want contents) (names []string) {
	for _, name := range a.files() {
		if want[name] != nil && (present[name] == nil || !bytes.Equal(present[name], want[name])) {
			names = append(names, name)
		}
	}
	return names
}

// files returns all paths in the order in which Apply writes them: first trusted CAs, then certificates that are
// presented, then the key that signs.
func (a authority) files() []string {
	list := slices.Concat([]string{a.bundle}, a.leaves, a.kubeconfigs, a.trusting)
	if a.kubelet {
		list = append(list, kubeletConf)
	}
	return slices.DeleteFunc(append(list, a.key), func(name string) bool { return name == "" }) // a renewal has no CA files
}

// signed returns the files whose certificate is signed again.
func (a authority) signed() []string { return slices.Concat(a.leaves, a.kubeconfigs) }
