package cluster

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ticks is USER_HZ, the number of clock ticks per second in Linux' process times. It is 100 on every architecture that Go
// supports.
const ticks = 100

// A Stat has some fields of /proc/PID/stat (proc_pid_stat(5)).
type Stat struct {
	Name    string
	Parent  int
	CPU     time.Duration // user and system time
	Started time.Duration // time from boot to start
}

// ReadStat returns the Stat of a process. It needs the /proc of Linux.
func ReadStat(pid int) (Stat, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return Stat{}, fmt.Errorf("read process times (needs /proc of Linux): %w", err)
	}
	// The name is in parentheses and may contain any characters, including spaces and parentheses.
	open, end := strings.IndexByte(string(data), '('), strings.LastIndexByte(string(data), ')')
	if open < 0 || end < open {
		return Stat{}, fmt.Errorf("malformed %s", path)
	}
	fields := strings.Fields(string(data[end+1:]))
	number := func(i int) time.Duration {
		if i-3 >= len(fields) {
			err = errors.Join(err, fmt.Errorf("%s has %d fields", path, len(fields)+2))
			return 0
		}
		n, wrong := strconv.ParseInt(fields[i-3], 10, 64)
		err = errors.Join(err, wrong)
		return time.Duration(n)
	}
	const tick = time.Second / ticks
	return Stat{
		Name: string(data[open+1 : end]), Parent: int(number(4)),
		CPU: (number(14) + number(15)) * tick, Started: number(22) * tick,
	}, err
}

// CPU returns the CPU time of the process, user and system. It also works after the process has ended.
func (p *Process) CPU() (time.Duration, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(), nil
	default:
		s, err := ReadStat(p.PID())
		return s.CPU, err
	}
}

// CPU returns the CPU time of the cluster's processes, by name. It adds up processes with the same name.
func (c *Cluster) CPU() (map[string]time.Duration, error) {
	c.processes.mu.Lock()
	defer c.processes.mu.Unlock()
	byName := map[string]time.Duration{}
	var errs []error
	for _, p := range c.processes.processes {
		used, err := p.CPU()
		byName[p.Name] += used
		errs = append(errs, err)
	}
	return byName, errors.Join(errs...)
}
