//go:build amd64 || arm64

package boltstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

// Roles of a process that traces a child. After a space follows the role of the child.
const (
	traceIssue  = "trace issue"
	traceCreate = "trace create"
)

func init() {
	roles[traceIssue] = func(path string) error { return loseAtEachAcknowledgement("issue", path, 400, holdsCertificates) }
	roles[traceCreate] = func(path string) error { return loseAtEachAcknowledgement("create", path, 60, holdsTokens) }
}

// These tests run a store under ptrace and model the disk after a power failure. The modeled disk has only synced bytes,
// and only files whose directory was synced. When the store acknowledges a write, the modeled disk must contain the write.
func TestCertificatesSurvivePowerLoss(t *testing.T) { traced(t, traceIssue) }
func TestTokensSurvivePowerLoss(t *testing.T)       { traced(t, traceCreate) }

// traced runs the tracer in its own process: the tracer waits for any child, and this process has other children.
func traced(t *testing.T, role string) {
	t.Helper()
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BOLTSTORE_TEST_ROLE="+role, "BOLTSTORE_TEST_FILE="+filepath.Join(t.TempDir(), "tokens.db"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// holdsCertificates returns an error unless each of the certificates is in the record exactly once.
func holdsCertificates(s *boltstore.Store, acknowledged []string) error {
	found, err := serials(s.Issued())
	if err != nil {
		return err
	}
	for _, serial := range acknowledged {
		if found[serial] != 1 {
			return fmt.Errorf("certificate %s is in the record %d times, want once", serial, found[serial])
		}
	}
	return nil
}

func holdsTokens(s *boltstore.Store, ids []string) error {
	for _, id := range ids {
		if _, err := s.Get(context.Background(), id, tokens.Live); err != nil {
			return err
		}
	}
	return nil
}

// loseAtEachAcknowledgement runs a process in a role until the process has acknowledged most names. At each acknowledgement
// it checks the disk as a power failure would leave it.
func loseAtEachAcknowledgement(role, path string, most int, holds func(*boltstore.Store, []string) error) error {
	runtime.LockOSThread() // ptrace belongs to a thread
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BOLTSTORE_TEST_ROLE="+role, "BOLTSTORE_TEST_FILE="+path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	var status syscall.WaitStatus
	pid := cmd.Process.Pid
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		return err
	}
	const exitKill = 0x100000 // PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACESYSGOOD|syscall.PTRACE_O_TRACECLONE|exitKill); err != nil {
		return err
	}
	if err := syscall.PtraceSyscall(pid, 0); err != nil {
		return err
	}
	d := &disk{folder: filepath.Dir(path), files: map[string]*onDisk{}}
	var acknowledged []string
	for len(acknowledged) < most {
		thread, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case !status.Stopped() && thread == pid:
			return fmt.Errorf("the store ended after %d acknowledgements: %v", len(acknowledged), status)
		case !status.Stopped():
			continue
		}
		signal := 0
		switch stop := status.StopSignal(); stop {
		case syscall.SIGTRAP | 0x80:
			said, err := d.follow(thread)
			if err != nil {
				return err
			}
			for _, name := range strings.Fields(said) {
				if name != "ready" {
					acknowledged = append(acknowledged, name)
				}
			}
			if n := len(acknowledged); said != "" && (n < 20 || n%37 == 0) {
				if err := d.check(acknowledged, holds); err != nil {
					return fmt.Errorf("power is lost after %d acknowledgements: %w", n, err)
				}
			}
		case syscall.SIGTRAP, syscall.SIGSTOP: // a new thread
		default:
			signal = int(stop)
		}
		if err := syscall.PtraceSyscall(thread, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// A disk models the files in one directory after a power failure.
type disk struct {
	folder string
	files  map[string]*onDisk
	doing  map[int]func(result int64) // by thread, from the start to the end of a system call
}

// onDisk is one file of a disk.
type onDisk struct {
	named   bool // true if the directory was synced after the file was created
	synced  []byte
	pending []change
}

// A change is a write or truncation that is not synced yet.
type change func([]byte) []byte

func writeAt(offset int64, data []byte) change {
	return func(content []byte) []byte {
		if missing := int(offset) + len(data) - len(content); missing > 0 {
			content = append(content, make([]byte, missing)...)
		}
		copy(content[offset:], data)
		return content
	}
}

func truncateTo(size int64) change {
	return func(content []byte) []byte {
		if missing := int(size) - len(content); missing > 0 {
			return append(content, make([]byte, missing)...)
		}
		return content[:size]
	}
}

// callInfo is struct ptrace_syscall_info of Linux 5.3.
type callInfo struct {
	op     uint8
	_      [3]uint8
	_      uint32
	_      [2]uint64
	number uint64 // at the end of a system call: its result
	args   [6]uint64
}

const (
	getCallInfo = 0x420e // PTRACE_GET_SYSCALL_INFO
	callBegins  = 1
	callEnds    = 2
)

// follow applies the system call of a thread to the disk. It returns the text that the call writes to standard output.
func (d *disk) follow(thread int) (said string, err error) {
	var info callInfo
	if _, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, getCallInfo, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		return "", fmt.Errorf("PTRACE_GET_SYSCALL_INFO: %w", errno)
	}
	if d.doing == nil {
		d.doing = map[int]func(int64){}
	}
	if info.op == callEnds {
		if done := d.doing[thread]; done != nil && int64(info.number) >= 0 {
			done(int64(info.number))
		}
		delete(d.doing, thread)
		return "", nil
	} else if info.op != callBegins {
		return "", nil
	}
	number, fd := info.number, int(info.args[0])
	switch number {
	case syscall.SYS_WRITE, syscall.SYS_PWRITE64, syscall.SYS_FTRUNCATE, syscall.SYS_FSYNC, syscall.SYS_FDATASYNC:
	case syscall.SYS_PWRITEV, syscall.SYS_WRITEV, syscall.SYS_MSYNC, syscall.SYS_SYNC_FILE_RANGE, syscall.SYS_FALLOCATE:
		return "", fmt.Errorf("this test does not support system call %d", number)
	default:
		return "", nil
	}
	if number == syscall.SYS_WRITE && fd == syscall.Stdout {
		data, err := memory(thread, info.args[1], info.args[2])
		return string(data), err
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", thread, fd))
	if err != nil {
		return "", nil // the system call failed
	}
	if path == d.folder {
		if number == syscall.SYS_FSYNC {
			names, err := os.ReadDir(path)
			if err != nil {
				return "", err
			}
			d.doing[thread] = func(int64) {
				for _, name := range names {
					d.file(filepath.Join(path, name.Name())).named = true
				}
			}
		}
		return "", nil
	}
	if filepath.Dir(path) != d.folder {
		return "", nil
	}
	f := d.file(path)
	switch number {
	case syscall.SYS_FTRUNCATE:
		d.doing[thread] = func(int64) { f.pending = append(f.pending, truncateTo(int64(info.args[1]))) }
	case syscall.SYS_FSYNC, syscall.SYS_FDATASYNC:
		n := len(f.pending) // only these: writes during the sync may not be synced
		d.doing[thread] = func(int64) {
			for _, c := range f.pending[:n] {
				f.synced = c(f.synced)
			}
			f.pending = f.pending[n:]
		}
	default:
		data, err := memory(thread, info.args[1], info.args[2])
		if err != nil {
			return "", err
		}
		offset := int64(info.args[3])
		if number == syscall.SYS_WRITE {
			if offset, err = position(thread, fd); err != nil {
				return "", err
			}
		}
		d.doing[thread] = func(n int64) { f.pending = append(f.pending, writeAt(offset, data[:n])) }
	}
	return "", nil
}

func (d *disk) file(path string) *onDisk {
	if d.files[path] == nil {
		d.files[path] = &onDisk{}
	}
	return d.files[path]
}

// memory reads the memory of a stopped thread.
func memory(thread int, address, length uint64) (data []byte, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mem", thread))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data = make([]byte, length)
	_, err = f.ReadAt(data, int64(address))
	return data, err
}

// position returns the offset of the next write to a file.
func position(thread, fd int) (offset int64, err error) {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", thread, fd))
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(string(content), "pos: %d", &offset)
	return offset, err
}

// check opens a store on the disk as a power failure would leave it now. It tries disks without unsynced changes, and with
// some unsynced changes in any order.
func (d *disk) check(acknowledged []string, holds func(*boltstore.Store, []string) error) error {
	for _, some := range []bool{false, true} {
		folder, err := os.MkdirTemp(d.folder, "left")
		if err != nil {
			return err
		}
		for path, f := range d.files {
			content := bytes.Clone(f.synced)
			for _, c := range f.pending {
				if some && rand.IntN(2) == 0 {
					content = c(content)
				}
			}
			if f.named || some {
				if err := os.WriteFile(filepath.Join(folder, filepath.Base(path)), content, 0o600); err != nil {
					return err
				}
			}
		}
		s, err := boltstore.Open(filepath.Join(folder, "tokens.db"))
		if err != nil {
			return err
		}
		if err := errors.Join(holds(s, acknowledged), s.Close(), os.RemoveAll(folder)); err != nil {
			return err
		}
	}
	return nil
}
