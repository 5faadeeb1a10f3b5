package cluster

import "syscall"

// ownGroup makes a process the leader of its own group. The kernel kills the process when this program ends, even if this
// program is killed.
func ownGroup(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	if attr == nil {
		attr = new(syscall.SysProcAttr)
	}
	attr.Setpgid = true
	attr.Pdeathsig = syscall.SIGKILL
	return attr
}

// ownNamespaces gives a process its own mount and PID namespaces. When the process ends, the kernel kills all
// processes in them.
func ownNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
}

// MachineNamespaces gives a process its own mount, PID, network, host name and IPC namespaces. When the process ends, the
// kernel kills all processes in them, and removes their mounts and network interfaces.
func MachineNamespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
}
