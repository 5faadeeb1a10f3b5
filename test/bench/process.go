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

	"github.com/kubejoin/kubejoin/test/cluster"
)

// cpu returns the processor time of a process, user and system.
func cpu(pid int) (time.Duration, error) {
	s, err := cluster.ReadStat(pid)
	return s.CPU, err
}

// startedAt returns when a process started, with a resolution of 10 ms.
func startedAt(pid int) (time.Time, error) {
	s, err := cluster.ReadStat(pid)
	if err != nil {
		return time.Time{}, err
	}
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	text, _, _ := strings.Cut(string(data), " ")
	uptime, err := time.ParseDuration(text + "s")
	return time.Now().Add(s.Started - uptime), err
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
func controlPlaneCPU() (sum time.Duration, err error) {
	pids, err := childrenNamed("kube-apiserver", "etcd")
	for _, pid := range pids {
		if s, err := cluster.ReadStat(pid); err == nil { // after an error, the process has ended
			sum += s.CPU
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
		if s, err := cluster.ReadStat(pid); err == nil && s.Parent == os.Getpid() && slices.Contains(names, s.Name) {
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
