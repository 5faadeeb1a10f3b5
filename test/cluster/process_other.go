//go:build !linux

package cluster

import "syscall"

// ownGroup makes a process the leader of its own group.
func ownGroup(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	if attr == nil {
		attr = new(syscall.SysProcAttr)
	}
	attr.Setpgid = true
	return attr
}

// ownNamespaces returns nil: namespaces, and the kubelet that needs them, exist only on Linux.
func ownNamespaces() *syscall.SysProcAttr { return nil }

// MachineNamespaces returns nil, like ownNamespaces.
func MachineNamespaces() *syscall.SysProcAttr { return nil }
