package boltstore

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const unknown = "another process"

// holder returns which process has locked the file, as Linux reports it in /proc. Use it only in error
// messages: the process may have ended by now.
func holder(path string) string {
	file, err := os.Stat(path)
	if err != nil {
		return unknown
	}
	locks, err := os.Open("/proc/locks")
	if err != nil {
		return unknown
	}
	defer locks.Close() //nolint:errcheck // only read
	return holderIn(locks, file)
}

func holderIn(locks io.Reader, file os.FileInfo) string {
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: FLOCK  ADVISORY  WRITE 4711 fd:01:131085 0 EOF
		f := strings.Fields(lines.Text())
		if len(f) < 6 || f[1] != "FLOCK" {
			continue
		}
		pid, _ := strconv.Atoi(f[4]) // 0 if invalid: process 0 has no open files
		if !hasOpen(pid, file) {
			continue
		}
		if pid == os.Getpid() {
			return "this process itself"
		}
		// Read only comm, the name of the program, because its arguments may contain secrets.
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			return fmt.Sprintf("process %d", pid)
		}
		return fmt.Sprintf("process %d (%s)", pid, strings.TrimSpace(string(name)))
	}
	return unknown
}

// hasOpen reports whether a process has the file open. It does not use the device and inode numbers in
// /proc/locks: on overlayfs and btrfs, they differ from those that stat returns.
func hasOpen(pid int, file os.FileInfo) bool {
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if open, err := os.Stat(fd); err == nil && os.SameFile(open, file) {
			return true
		}
	}
	return false
}
