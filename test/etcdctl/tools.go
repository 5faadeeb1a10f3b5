//go:build tools

// Package etcdctl pins the etcdctl that the commands of the docs run. It is a separate module, so that importers of kubejoin
// do not require it.
package etcdctl

import _ "go.etcd.io/etcd/etcdctl/v3"
