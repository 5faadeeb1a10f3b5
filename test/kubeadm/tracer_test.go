package kubeadm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// tracerChild is set in a process of this test binary that runs a command until it kills it: see playTracer. The value is the
// file with the list of writes.
const tracerChild = "KUBEJOIN_TEST_TRACER"

// exitKilled is the exit code of a tracer that killed its command.
const exitKilled = 137

// playTracer runs a command. Right before the first write that is not in the list, it kills the command with SIGKILL, and
// adds the write to the list. So each run gets further, until one ends by itself. All writes to a folder that is not finished
// count as one, as do all removals of temporary files. strace cannot do that: it counts the system calls of each thread, and
// Go moves from thread to thread.
func playTracer(list string, args []string) error {
	content, err := os.ReadFile(list)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	killed := strings.Split(string(content), "\n")
	runtime.LockOSThread() // one thread is the tracer, and starts the command with the filter
	if err := stopAtWrites(); err != nil {
		return err
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), tracerChild+"=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid, seen := cmd.Process.Pid, map[string]int{}
	for thread, configured := pid, false; ; {
		var status syscall.WaitStatus
		if thread, err = syscall.Wait4(-1, &status, syscall.WALL, nil); err != nil {
			return fmt.Errorf("waiting for a thread: %w", err)
		}
		if status.Exited() || status.Signaled() {
			if thread == pid {
				if status.Signaled() {
					os.Exit(1)
				}
				os.Exit(status.ExitStatus())
			}
			continue
		}
		if !configured {
			const traceSeccomp, killWithTracer = 1 << 7, 1 << 20
			if err := syscall.PtraceSetOptions(pid, syscall.PTRACE_O_TRACECLONE|traceSeccomp|killWithTracer); err != nil {
				return err
			}
			configured = true
		}
		deliver := 0
		switch stop := status.StopSignal(); stop {
		case syscall.SIGTRAP, syscall.SIGSTOP: // of the tracer, for example in a new thread, or where the filter stops
			if write := writeOf(thread); write != "" {
				if strings.Contains(write, ".unfinished/") {
					write = "write to a folder that is not finished" // once: each run makes it again
				} else if !strings.HasPrefix(write, "remove ") { // removals are of what an earlier kill left, or of a whole folder
					seen[write]++
					write = fmt.Sprintf("%s, time %d", write, seen[write])
				}
				if !slices.Contains(killed, write) { // the command ends with this process
					if err := os.WriteFile(list, append(content, write+"\n"...), 0o600); err != nil {
						return err
					}
					os.Exit(exitKilled)
				}
			}
		default:
			deliver = int(stop)
		}
		if err := syscall.PtraceCont(thread, deliver); err != nil && !errors.Is(err, syscall.ESRCH) { // it has just ended
			return err
		}
	}
}

const pidfdSendSignal = 424 // on all architectures

// stopAtWrites installs a seccomp filter in this thread. A program that the thread then starts stops for its tracer at the
// system calls that [writeOf] knows. If it stopped at every system call, a run would take 1.5 times as long.
func stopAtWrites() error {
	const number, firstArgument = 0, 16 // offsets in struct seccomp_data
	const allow, trace = 0x7fff0000, 0x7ff00000
	load := func(offset uint32) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: offset}
	}
	answer := func(action uint32) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_RET | syscall.BPF_K, K: action}
	}
	// is skips instructions unless the loaded value is the one given.
	is := func(value uint32, otherwise uint8) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K, K: value, Jf: otherwise}
	}
	filter := []syscall.SockFilter{load(number)}
	for _, call := range []uint32{syscall.SYS_RENAMEAT, syscall.SYS_SYMLINKAT, syscall.SYS_UNLINKAT, syscall.SYS_KILL, pidfdSendSignal} {
		filter = append(filter, is(call, 1), answer(trace))
	}
	filter = append(filter, is(syscall.SYS_WRITE, 3), load(firstArgument), is(uint32(syscall.Stderr), 1), answer(trace), answer(allow))
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	const setSeccomp, modeFilter = 22, 2
	const setNoNewPrivileges = 38 // without this, only root may install a filter
	if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, setNoNewPrivileges, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("giving up new privileges: %w", errno)
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setSeccomp, modeFilter, uintptr(unsafe.Pointer(&program))); errno != 0 {
		return fmt.Errorf("installing a seccomp filter: %w", errno)
	}
	return nil
}

// digits are those of names of temporary files, times and process IDs.
var digits = regexp.MustCompile(`[0-9]{2,}`)

// writeOf describes the system call that a thread is about to make, if it changes files or processes, or announces that.
func writeOf(thread int) string {
	const getSyscallInfo, stoppedByFilter = 0x420e, 3
	var info struct { // struct ptrace_syscall_info, the same on all architectures
		op       uint8
		_        [3]uint8
		_        uint32
		_, _, nr uint64
		args     [6]uint64
		_        [2]uint64
	}
	_, _, failed := syscall.RawSyscall6(syscall.SYS_PTRACE, getSyscallInfo, uintptr(thread), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if failed != 0 || info.op != stoppedByFilter {
		return ""
	}
	text := func(address, length uint64) string {
		memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", thread))
		if err != nil {
			return err.Error()
		}
		defer memory.Close()
		data := make([]byte, length)
		n, _ := memory.ReadAt(data, int64(address)) // fewer at the end of a page
		data, _, _ = bytes.Cut(data[:n], []byte{0})
		return digits.ReplaceAllString(string(data), "#")
	}
	const longest, negative = 4096, 1 << 31 // as AT_FDCWD, for a path that is not below an open folder
	switch info.nr {
	case syscall.SYS_RENAMEAT:
		return "rename to " + text(info.args[3], longest)
	case syscall.SYS_SYMLINKAT:
		return "link " + text(info.args[2], longest)
	case syscall.SYS_UNLINKAT:
		if info.args[0] < negative {
			return "remove what is in a folder"
		}
		name := filepath.Base(text(info.args[1], longest))
		if strings.HasPrefix(name, ".") {
			return "remove a temporary file" // that an earlier kill left
		}
		return "remove " + name
	case syscall.SYS_KILL, pidfdSendSignal:
		if info.args[1] != 0 {
			return fmt.Sprintf("signal %d", info.args[1])
		}
	case syscall.SYS_WRITE:
		if line := text(info.args[1], info.args[2]); info.args[0] == uint64(syscall.Stderr) && strings.Contains(line, "restarting ") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// writerChild is set in a process of this test binary that makes writes below a folder.
const writerChild = "KUBEJOIN_TEST_WRITER"

func playWrites(dir string) error {
	file := filepath.Join(dir, "1")
	write := func() error { return errors.Join(os.WriteFile(file+".new", nil, 0o600), os.Rename(file+".new", file)) }
	signal.Ignore(syscall.SIGTERM)
	for _, name := range []string{".1", ".2", "1.link"} { // of a run that was killed
		_ = syscall.Unlink(filepath.Join(dir, name))
	}
	err := errors.Join(write(), os.Symlink(file, file+".link"))
	fmt.Fprintln(os.Stderr, "restarting process", os.Getpid())
	self, failed := os.FindProcess(os.Getpid()) // which signals by pidfd
	return errors.Join(err, failed, syscall.Kill(os.Getpid(), syscall.SIGTERM), self.Signal(syscall.SIGTERM), write())
}

// TestTracerKillsBeforeEachWrite runs a command under the tracer until it ends by itself.
func TestTracerKillsBeforeEachWrite(t *testing.T) {
	dir := t.TempDir()
	list := filepath.Join(dir, "list")
	for kills := 0; ; kills++ {
		cmd := exec.CommandContext(t.Context(), os.Args[0], os.Args[0])
		cmd.Env = append(os.Environ(), tracerChild+"="+list, writerChild+"="+dir)
		output, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		if cmd.ProcessState.ExitCode() != exitKilled || kills == 10 {
			t.Fatalf("after %d kills: %v: %s", kills, err, output)
		}
	}
	want := "remove a temporary file\nremove 1.link\nrename to 1, time 1\nlink 1.link, time 1\nrestarting process #, time 1\nsignal 15, time 1\nsignal 15, time 2\nrename to 1, time 2\n"
	got := strings.ReplaceAll(string(must.Value(os.ReadFile(list))(t)), digits.ReplaceAllString(dir, "#")+"/", "")
	if got != want {
		t.Errorf("killed before:\n%s\nwant:\n%s", got, want)
	}
}
