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

// ownNamespaces is for Linux alone: elsewhere there is no kubelet to be put into them.
func ownNamespaces() *syscall.SysProcAttr { return nil }
