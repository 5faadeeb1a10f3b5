package pki

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A system finds processes of the host.
type system interface {
	// listener returns the process that listens on the address of the service; the zero process if there is none.
	listener(s service) (process, error)
	// healthy returns nil if a GET of the URL succeeds.
	healthy(ctx context.Context, url string) error
	// end terminates a process: it sends SIGTERM, and kills the process after the grace period.
	end(ctx context.Context, p process, grace time.Duration) error
	// boot returns the present boot.
	boot() (boot, error)
}

// A boot has an ID that no other boot has. At is the time of the boot, computed with the current clock. If the clock is
// changed, a later At of the same boot differs by that change.
type boot struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
}

// A process is a running process. started is computed with the current clock, so the time since started stays right if the
// clock is changed.
type process struct {
	pid     int
	started time.Time
}

// machine is the system of this machine, which has to be Linux.
type machine struct{}

// kubeletComm is the name of the kubelet's process. Static pods may run as other users than root.
const kubeletComm = "kubelet"

// ending is how long a killed process may still listen after /proc has stopped showing its files.
const ending = 3 * time.Second

var errNotVisible = errors.New("is not visible")

// listener finds a process by its socket. It compares the address too, because a pod in the network of the host may listen
// on the same port of another address.
func (m machine) listener(s service) (process, error) {
	for began := time.Now(); ; {
		p, err := m.listenerNow(s)
		if !errors.Is(err, errNotVisible) || time.Since(began) > ending {
			return p, err
		}
		const pause = 100 * time.Millisecond
		time.Sleep(pause)
	}
}

func (machine) listenerNow(s service) (process, error) {
	if s.pod != "" {
		return inContainer(s.pod, s.file)
	}
	var address net.IP
	if u, err := url.Parse(s.url); err == nil {
		address = net.ParseIP(u.Hostname())
	}
	inodes, err := listening(address, s.port)
	if err != nil || len(inodes) == 0 {
		return process{}, err
	}
	other := ""
	for pid, comm := range holders(inodes) {
		info, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		if err != nil {
			continue
		}
		user := info.Sys().(*syscall.Stat_t).Uid //nolint:forcetypeassert // of Linux
		if s.comm != "" && comm != s.comm || s.comm == kubeletComm && user != 0 && int(user) != os.Geteuid() {
			other = fmt.Sprintf("process %d, %q of user %d, listens on port %d of the %s; see what it is with: ps -fp %d", pid, comm, user, s.port, s.comm, pid)
			continue
		}
		started, err := startedAt(pid)
		if err != nil {
			continue
		}
		return process{pid, started}, nil
	}
	if other != "" {
		return process{}, errors.New(other)
	}
	return process{}, fmt.Errorf("the process that listens on port %d %w; run the command as root of the host; a container needs hostPID, hostNetwork, SYS_PTRACE, and no AppArmor profile", s.port, errNotVisible)
}

// holders yields the processes that have one of the sockets open, with their names. It skips processes that this user
// may not see.
func holders(inodes []string) iter.Seq2[int, string] {
	return func(yield func(int, string) bool) {
		all, _ := filepath.Glob("/proc/[0-9]*/fd/*") // fails only for a malformed pattern
		for _, file := range all {
			target, err := os.Readlink(file)
			if err != nil || !slices.Contains(inodes, target) {
				continue // the process or the file is gone
			}
			pid, err := strconv.Atoi(strings.Split(file, "/")[2])
			if err != nil {
				continue
			}
			comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if err == nil && !yield(pid, strings.TrimSuffix(string(comm), "\n")) {
				return
			}
		}
	}
}

// ListenerOf names a process that listens on a port of this machine. It returns the empty string if no such process
// is visible to this user.
func ListenerOf(port int) string {
	inodes, err := listening(nil, port)
	if err != nil {
		return ""
	}
	for pid, comm := range holders(inodes) {
		return fmt.Sprintf("process %d, %q", pid, comm)
	}
	return ""
}

// inContainer returns the oldest process of the containers with a name that mount a file of the host. It returns the zero
// process if no container does. The kubelet mounts a file of its own into each container; the path of that file contains the
// container's name. If a mounted file was replaced since, mountinfo shows its path with a suffix.
func inContainer(name, file string) (oldest process, err error) {
	at, err := mounted("self", func(m mount) bool { _, below := cutFolder(file, m.point); return below })
	if err != nil || at.point == "" {
		return process{}, err
	}
	rest, _ := cutFolder(file, at.point)
	path := filepath.Join(at.root, rest)
	all, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	users, err2 := os.Readlink("/proc/self/ns/user")
	if err := errors.Join(err, err2); err != nil {
		return process{}, err
	}
	for _, info := range all {
		id := strings.Split(info, "/")[2]
		if is, err := os.Readlink("/proc/" + id + "/ns/user"); err != nil || is != users {
			continue // ignore processes in other user namespaces, where any user can mount anything
		}
		if own, err := mounted(id, func(m mount) bool { return strings.Contains(m.root, "/containers/"+name+"/") }); err != nil || own.point == "" {
			continue // the process has ended, or is in another container
		}
		has, err := mounted(id, func(m mount) bool {
			_, below := cutFolder(path, strings.TrimSuffix(m.root, "//deleted"))
			return m.device == at.device && below
		})
		pid, err2 := strconv.Atoi(id)
		if errors.Join(err, err2) != nil || has.point == "" {
			continue
		}
		if started, err := startedAt(pid); err == nil && (oldest.pid == 0 || started.Before(oldest.started)) {
			oldest = process{pid, started}
		}
	}
	return oldest, nil
}

// A mount is a line of /proc/PID/mountinfo: see proc_pid_mountinfo(5).
type mount struct{ device, root, point string }

// mounted returns the mount of a process that fits and has the longest mount point; the zero mount if none fits.
func mounted(pid string, fits func(mount) bool) (longest mount, err error) {
	content, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	for line := range strings.Lines(string(content)) {
		words := strings.Fields(line)
		if len(words) < 5 {
			continue
		}
		space := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\134`, `\`)
		if m := (mount{words[2], space.Replace(words[3]), space.Replace(words[4])}); len(m.point) >= len(longest.point) && fits(m) {
			longest = m
		}
	}
	return longest, err
}

// listening returns the sockets that accept connections to an address and a port in this network namespace, as /proc/PID/fd
// names them. A nil address matches every address. If several sockets match, the kernel gives connections to the most specific
// one: bound to the address, else to all addresses of its family, else to all addresses.
func listening(address net.IP, port int) (inodes []string, err error) {
	const state, inode, listen = 3, 9, "0A" // columns of /proc/net/tcp
	const exact, family, any, none = 0, 1, 2, 3
	best := none
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		content, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // the file is missing without IPv6
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(bytes.NewReader(content))
		for lines.Scan() {
			words := strings.Fields(lines.Text())
			if len(words) <= inode || words[state] != listen {
				continue
			}
			local, found := strings.CutSuffix(words[1], fmt.Sprintf(":%04X", port))
			ip, rank := kernelIP(local), none
			switch {
			case !found:
			case address == nil, ip.Equal(address):
				rank = exact
			case ip.IsUnspecified() && (len(ip) == net.IPv4len) == (address.To4() != nil):
				rank = family
			case ip.IsUnspecified():
				rank = any
			}
			if rank < best {
				best, inodes = rank, nil
			}
			if found && rank == best && rank != none {
				inodes = append(inodes, "socket:["+words[inode]+"]")
			}
		}
	}
	return inodes, nil
}

// kernelIP parses an address in /proc/net/tcp, which has words of 4 bytes in the order of the machine; nil if it is malformed.
func kernelIP(text string) net.IP {
	ip, err := hex.DecodeString(text)
	if err != nil || len(ip)%net.IPv4len != 0 {
		return nil
	}
	for at := 0; at < len(ip); at += net.IPv4len {
		binary.NativeEndian.PutUint32(ip[at:], binary.BigEndian.Uint32(ip[at:]))
	}
	return ip
}

// startedAt returns when a process started, computed with the current clock.
func startedAt(pid int) (time.Time, error) {
	const startTime = 19 // field 22 of proc_pid_stat(5); 2 fields are before the last parenthesis, and the first one has number 1
	const ticks = 100    // per second, on all architectures that Go supports
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return time.Time{}, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= startTime {
		return time.Time{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	start, err := strconv.ParseInt(fields[startTime], 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	b, err := machine{}.boot()
	return b.At.Add(time.Duration(start) * time.Second / ticks), err
}

func (machine) boot() (boot, error) {
	const id, uptime = "/proc/sys/kernel/random/boot_id", "/proc/uptime"
	name, err := os.ReadFile(id)
	if err != nil {
		return boot{}, err
	}
	content, err := os.ReadFile(uptime)
	if err != nil {
		return boot{}, err
	}
	first, _, _ := strings.Cut(string(content), " ")
	up, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return boot{}, fmt.Errorf("%s: %w", uptime, err)
	}
	return boot{strings.TrimSpace(string(name)), time.Now().Add(-time.Duration(up * float64(time.Second)))}, nil
}

func (machine) end(ctx context.Context, p process, grace time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		grace = min(grace, time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	handle, err := os.FindProcess(p.pid) // on Linux, the handle cannot refer to a later process with this PID
	if err != nil {
		return err
	}
	defer func() { _ = handle.Release() }()
	const same = time.Second
	if started, err := startedAt(p.pid); err != nil || started.Sub(p.started).Abs() > same {
		return nil // the process has already ended
	}
	err = handle.Signal(syscall.SIGTERM)
	for ; err == nil && ctx.Err() == nil; err = handle.Signal(syscall.Signal(0)) {
		const pause = 50 * time.Millisecond
		time.Sleep(pause)
	}
	if err == nil {
		err = handle.Kill()
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

func (machine) healthy(ctx context.Context, url string) error {
	const timeout = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// Like the kubelet's probes, healthy verifies no certificate: it sends no secret, and uses only the status of the response.
	web := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // see above
	response, err := web.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read-only, so Close loses nothing
	const enough = 1 << 10
	_, _ = io.CopyN(io.Discard, response.Body, enough)
	if response.StatusCode < http.StatusOK || response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s returned %s", url, response.Status)
	}
	return nil
}
