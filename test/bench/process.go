package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// ticks is USER_HZ, in which Linux counts the time of processes: 100 on every architecture that
// Go runs on.
const ticks = 100

// stat is the part of /proc/PID/stat that is used here (proc_pid_stat(5)).
type stat struct {
	name    string
	parent  int
	cpu     time.Duration
	started time.Duration // after the machine did
}

func readStat(pid int) (stat, error) {
	path := fmt.Sprintf("/proc/%d/stat", pid)
	data, err := os.ReadFile(path)
	if err != nil {
		return stat{}, fmt.Errorf("what a process has used is read from Linux' /proc: %w", err)
	}
	// The name is in parentheses and may hold anything.
	open, end := strings.IndexByte(string(data), '('), strings.LastIndexByte(string(data), ')')
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("%s is not as it should be", path)
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

// cpu is the processor time that a process has used, in the kernel too.
func cpu(pid int) (time.Duration, error) {
	s, err := readStat(pid)
	return s.cpu, err
}

// startedAt is when a process began, to a hundredth of a second.
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

// resident is the memory that a process has, in bytes.
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

// controlPlaneCPU is what kube-apiserver and etcd have used together.
func controlPlaneCPU() (time.Duration, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			return 0, err
		}
		s, err := readStat(pid)
		if err != nil || s.parent != os.Getpid() {
			continue // gone meanwhile, or not ours
		}
		if s.name == "kube-apiserver" || s.name == "etcd" {
			sum += s.cpu
		}
	}
	return sum, nil
}

// used is what is used from now on until the function returned is called: processor time of the
// contender and of the control plane.
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
