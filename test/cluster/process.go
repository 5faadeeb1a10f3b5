package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A Process is a program that this program has started. On Linux, it ends at the latest with this program.
type Process struct {
	// Name is the name of the process in errors.
	Name string
	// LogFile is the path of the log with standard output and standard error.
	LogFile string

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	err  error         // error of Wait; read it only after done is closed
}

// StartProcess starts cmd and appends its output to logFile. cmd leads its own process group, so that a Ctrl-C
// for this program does not reach it.
func StartProcess(name, logFile string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = ownGroup(cmd.SysProcAttr)
	if err := startOnLastingThread(cmd); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	p := &Process{Name: name, LogFile: logFile, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// starts runs the functions that it receives on one thread that never ends. Linux sends a child its parent-death
// signal when the thread that started it ends, and the Go runtime may end other threads.
var starts = sync.OnceValue(func() chan<- func() {
	c := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range c {
			f()
		}
	}()
	return c
})

func startOnLastingThread(cmd *exec.Cmd) error {
	result := make(chan error)
	starts() <- func() { result <- cmd.Start() }
	return <-result
}

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns the error of a process that has ended. It is nil for exit code 0, and while the process runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Signal sends s to the process group: the process and its children.
func (p *Process) Signal(s syscall.Signal) error {
	return syscall.Kill(-p.PID(), s)
}

// Stop sends SIGTERM to the process group, waits up to grace until the process has ended, and then sends SIGKILL. With zero
// grace, it sends only SIGKILL. Stop returns when the process has ended. If the process has already ended, or p is nil,
// Stop does nothing.
func (p *Process) Stop(grace time.Duration) {
	if p == nil {
		return
	}
	select {
	case <-p.done: // do not signal: another process may have its ID now
		return
	default:
	}
	if grace > 0 {
		_ = p.Signal(syscall.SIGTERM)
		select {
		case <-p.done:
		case <-time.After(grace):
		}
	}
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
}

// Log returns the output of the process so far.
func (p *Process) Log() string {
	data, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// WaitFor calls ready until it returns nil, the process ends or ctx ends. Its error contains the end of the log.
func (p *Process) WaitFor(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s has ended: %w (%w)\n%s", p.Name, orExited(p.err), err, tail(p.LogFile, 30))
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (%w)\n%s", p.Name, context.Cause(ctx), err, tail(p.LogFile, 30))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func orExited(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// tail returns the last n lines of a file, each indented.
func tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "  " + err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return "  " + strings.Join(lines[max(0, len(lines)-n):], "\n  ")
}

// run runs a command and returns its standard output. The error contains its standard error.
func run(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = env
	cmd.WaitDelay = time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
