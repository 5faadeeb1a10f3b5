//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/internal/testing/wait"
	"github.com/kubejoin/kubejoin/server/api"
	"golang.org/x/sys/unix"
)

// A terminal is a pseudo-terminal, and what it shows.
type terminal struct {
	user, program *os.File

	mu            sync.Mutex
	width, height int
	rows          []string // with those that have scrolled away
	top, row, col int      // top is the first row that is visible
	written       bytes.Buffer
}

func newTerminal(t *testing.T, width, height int) *terminal {
	t.Helper()
	user := must.Value(os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0))(t)
	must.OK(t, unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0))
	number := must.Value(unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN))(t)
	program := must.Value(os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	term := &terminal{user: user, program: program, rows: []string{""}}
	term.resize(t, width, height)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for buffer := make([]byte, 4096); ; {
			n, err := user.Read(buffer)
			if err != nil { // all programs have closed it
				return
			}
			term.write(buffer[:n])
		}
	}()
	t.Cleanup(func() {
		_ = program.Close()
		<-ended
		_ = user.Close()
	})
	return term
}

func (t *terminal) resize(test *testing.T, width, height int) {
	test.Helper()
	must.OK(test, unix.IoctlSetWinsize(int(t.user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(height), Col: uint16(width)}))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.width, t.height = width, height
	t.top = max(0, len(t.rows)-height)
}

// write shows bytes as a terminal does. It knows the sequences of kubejoin.
func (t *terminal) write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written.Write(b)
	down := func() {
		if t.row++; t.row == len(t.rows) {
			t.rows = append(t.rows, "")
		}
		t.top = max(t.top, t.row-t.height+1)
	}
	for text := string(b); text != ""; {
		if rest, home := strings.CutPrefix(text, "\x1b[H"); home {
			t.row, t.col, text = t.top, 0, rest
			continue
		}
		if rest, clear := strings.CutPrefix(text, "\x1b[J"); clear {
			t.rows = append(t.rows[:t.row], t.rows[t.row][:t.col])
			text = rest
			continue
		}
		c := text[0]
		text = text[1:]
		switch c {
		case '\r':
			t.col = 0
		case '\n':
			down()
		default:
			if t.col == t.width {
				t.col = 0
				down()
			}
			row := t.rows[t.row] + strings.Repeat(" ", max(0, t.col+1-len(t.rows[t.row])))
			t.rows[t.row] = row[:t.col] + string(rune(c)) + row[t.col+1:]
			t.col++
		}
	}
}

// shows returns what is visible, and what has scrolled away.
func (t *terminal) shows() (visible, above []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.rows[t.top:]), slices.Clone(t.rows[:t.top])
}

// await waits until the last visible line is the summary, and returns the visible lines.
func (t *terminal) await(test *testing.T, summary string) (visible []string) {
	test.Helper()
	wait.OK(test, summary, func() error {
		visible, _ = t.shows()
		if n := len(visible); n < 2 || visible[n-2] != summary || visible[n-1] != "" {
			return fmt.Errorf("the terminal shows\n%s", strings.Join(visible, "\n"))
		}
		return nil
	})
	return visible
}

// start starts kubejoin as the only program of the terminal.
func (t *terminal) start(test *testing.T, s *joinServer, args ...string) *exec.Cmd {
	test.Helper()
	cmd := exec.CommandContext(test.Context(), "kubejoin", s.args("", args...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = t.program, t.program, t.program
	cmd.Env = []string{"HOME=/none", "TERM=xterm"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must.OK(test, cmd.Start())
	return cmd
}

// On a terminal, the table is updated in place. A resize, a message and Ctrl-C must leave no parts of an older table, and what the
// terminal has shown before must stay in its history.
func TestTimelineOnTerminal(t *testing.T) {
	t.Parallel()
	s := newJoinServer(t)
	s.set(3, "", machine("worker-1", api.JoinJoining, "=.....", "NotApproved"))
	term := newTerminal(t, 100, 30)
	must.Value(term.program.WriteString("kubeadm join 192.0.2.1:6443\n"))(t)
	before := must.Value(unix.IoctlGetTermios(int(term.user.Fd()), unix.TCGETS))(t)
	cmd := term.start(t, s, "timeline", "--token", "abcdef", "--watch")
	term.await(t, "0 of 3 joined, 1 wait: 1 NotApproved, 2 not seen")
	s.set(3, "", machine("worker-1", api.JoinJoining, "====..", "CertificateIssued"), machine("worker-2", api.JoinStuck, "==.x..", "TokenSpent"))
	lines := term.await(t, "0 of 3 joined, 2 wait: 1 TokenSpent, 1 CertificateIssued, 1 not seen")
	if want := []string{"NODE ", "worker-2 ", "worker-1 ", "worker-2: refused 5 s ago", "  kubejoin token create", "0 of 3", ""}; len(lines) != len(want) || !slices.EqualFunc(lines, want, strings.HasPrefix) {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}

	// The server restarts, and the user makes the terminal smaller.
	s.set(3, "connection")
	wait.OK(t, "a retry", func() error {
		if lines, _ := term.shows(); !strings.Contains(strings.Join(lines, "\n"), "retrying in ") {
			return fmt.Errorf("got\n%s", strings.Join(lines, "\n"))
		}
		return nil
	})
	term.resize(t, 50, 8)
	var all = []string{"worker-1", "worker-2", "worker-3"}
	joins := make([]api.Join, 0, 40)
	for i := range 40 {
		joins = append(joins, machine(fmt.Sprintf("worker-%d", i+10), api.JoinStuck, "==.x..", "TokenSpent"))
	}
	s.set(3, "", joins...)
	wait.OK(t, "the small table", func() error {
		lines, _ = term.shows()
		if n := len(lines); n < 2 || lines[n-2] != "0 of 3 joined, 40 wait: 40 TokenSpent" || lines[0][:5] != "NODE " || n != 8 {
			return fmt.Errorf("got\n%s", strings.Join(lines, "\n"))
		}
		return nil
	})

	// All have joined.
	term.resize(t, 100, 30)
	joins = nil
	for _, name := range all {
		joins = append(joins, machine(name, api.JoinJoined, "======", api.Joined))
	}
	s.set(3, "", joins...)
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0", err)
	}
	lines = term.await(t, "3 of 3 joined")
	if len(lines) < 6 || !strings.HasPrefix(lines[len(lines)-6], "NODE ") {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	if _, above := term.shows(); !slices.Contains(above, "kubeadm join 192.0.2.1:6443") {
		t.Errorf("got history %q, want what the terminal has shown before", above)
	}

	// Ctrl-C, with a terminal that does not know its size.
	s.set(3, "", machine("worker-1", api.JoinJoining, "=.....", "NotApproved"))
	must.OK(t, unix.IoctlSetWinsize(int(term.user.Fd()), unix.TIOCSWINSZ, &unix.Winsize{}))
	cmd = term.start(t, s, "timeline", "--watch")
	term.await(t, "0 of 1 joined, 1 wait: 1 NotApproved")
	must.Value(term.user.WriteString("\x03"))(t)
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitInterrupt {
		t.Errorf("after Ctrl-C: got %v, want exit code %d", err, exitInterrupt)
	}
	after := must.Value(unix.IoctlGetTermios(int(term.user.Fd()), unix.TCGETS))(t)
	rest := strings.NewReplacer("\x1b[H", "", "\x1b[J", "").Replace(term.written.String())
	if *before != *after || strings.Contains(rest, "\x1b") {
		t.Errorf("the terminal is not as before: %q", rest)
	}
}
