package cluster

import "syscall"

// ownGroup makes a process the leader of its own group, and has the kernel kill it when this
// program dies in whatever way.
func ownGroup(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	if attr == nil {
		attr = new(syscall.SysProcAttr)
	}
	attr.Setpgid = true
	attr.Pdeathsig = syscall.SIGKILL
	return attr
}

// ownNamespaces gives a process mount and PID namespaces. What runs in them is killed when the
// process ends.
func ownNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
}
