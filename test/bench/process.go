package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ticks is USER_HZ, the unit of process times in Linux, per second. It is 100 on every architecture that Go supports.
const ticks = 100

// stat has some fields of /proc/PID/stat (proc_pid_stat(5)).
type stat struct {
	name    string
	parent  int
	cpu     time.Duration
	started time.Duration // since boot
}

func readStat(pid int) (stat, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return stat{}, fmt.Errorf("read process times (needs /proc of Linux): %w", err)
	}
	// The name is in parentheses and may contain any characters, including spaces and parentheses.
	open, end := strings.IndexByte(string(data), '('), strings.LastIndexByte(string(data), ')')
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("malformed %s", path)
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
	return stat{
		name: string(data[open+1 : end]), parent: int(number(4)),
		cpu: (number(14) + number(15)) * tick, started: number(22) * tick,
	}, err
}

// cpu returns the processor time of a process, user and system.
func cpu(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.cpu, err
}

// startedAt returns when a process started, with a resolution of 10 ms.
func startedAt(pid int) (time.Time, error) {
	s, err := readStat(pid)
	if err != nil {
		return time.Time{}, err
	}
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	text, _, _ := strings.Cut(string(data), " ")
	uptime, err := time.ParseDuration(text + "s")
	return time.Now().Add(s.started - uptime), err
}

// resident returns the resident memory of a process, in bytes.
func resident(pid int) (float64, error) { return memoryOf(pid, "VmRSS") }

// memoryOf returns the value of a line of /proc/PID/status (proc_pid_status(5)), in bytes.
func memoryOf(pid int, name string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			n, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc/%d/status lacks %s", pid, name)
}

// controlPlaneCPU returns the processor time of kube-apiserver and etcd together.
func controlPlaneCPU() (time.Duration, error) { return processCPU("kube-apiserver", "etcd") }

// processCPU returns the processor time of the child processes with these names together.
func processCPU(names ...string) (sum time.Duration, err error) {
	pids, err := childrenNamed(names...)
	for _, pid := range pids {
		if s, err := readStat(pid); err == nil { // otherwise it has ended
			sum += s.cpu
		}
	}
	return sum, err
}

// childrenNamed returns the child processes with these names.
func childrenNamed(names ...string) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			return nil, err
		}
		if s, err := readStat(pid); err == nil && s.parent == os.Getpid() && slices.Contains(names, s.name) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// used starts a measurement. The returned function returns the processor time of the contender and of the control
// plane since then.
func (p running) used() (func() (own, plane time.Duration, err error), error) {
	own, err := cpu(p.PID())
	if err != nil {
		return nil, err
	}
	plane, err := controlPlaneCPU()
	return func() (time.Duration, time.Duration, error) {
		ownNow, err := cpu(p.PID())
		planeNow, err2 := controlPlaneCPU()
		return ownNow - own, planeNow - plane, errors.Join(err, err2)
	}, err
}
