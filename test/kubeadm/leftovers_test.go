package kubeadm

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// A stock lists what a cluster could leave behind on the host. It leaves out everything that other tests change at the same
// time.
type stock struct{ mounts, links, namespaces, cgroups, files []string }

func takeStock(t *testing.T) (s stock) {
	t.Helper()
	mounts := must.Value(os.ReadFile("/proc/self/mountinfo"))(t)
	s.mounts = strings.Split(string(mounts), "\n")
	s.links = glob(t, "/sys/class/net/*")
	s.namespaces = glob(t, "/run/netns/*")
	s.cgroups = glob(t, "/sys/fs/cgroup/k*", "/sys/fs/cgroup/*/k8s.io*", "/sys/fs/cgroup/*/kubepods*", "/sys/fs/cgroup/*/kubelet*")
	s.files = glob(t, "/var/lib/etcd", "/var/lib/containerd", "/etc/cni", "/etc/containerd", "/run/containerd", "/opt/containerd",
		"/opt/cni", "/var/log/pods", "/var/log/containers", "/var/log/kube*", "/run/flannel", "/run/xtables.lock", "/run/kube[^j]*")
	return s
}

func glob(t *testing.T, patterns ...string) (found []string) {
	t.Helper()
	for _, pattern := range patterns {
		names := must.Value(filepath.Glob(pattern))(t)
		found = append(found, names...)
	}
	return found
}

// compare fails the test for each thing that a deleted cluster left behind. processes are the processes of that cluster.
func (s stock) compare(t *testing.T, name string, processes map[string]string) {
	t.Helper()
	after := takeStock(t)
	for what, pair := range map[string][2][]string{
		"mounts":                   {s.mounts, after.mounts},
		"network interfaces":       {s.links, after.links},
		"named network namespaces": {s.namespaces, after.namespaces},
		"cgroups":                  {s.cgroups, after.cgroups},
		"files":                    {s.files, after.files},
		"files of the cluster":     {nil, glob(t, filepath.Join(os.TempDir(), "*"+name+"*"))},
		"cgroups of the cluster":   {nil, glob(t, "/sys/fs/cgroup/"+name, "/sys/fs/cgroup/*/"+name)},
	} {
		for _, more := range pair[1] {
			if !slices.Contains(pair[0], more) {
				t.Errorf("%s are left behind: %s", what, more)
			}
		}
	}
	if len(processes) < 8 {
		t.Errorf("the cluster had %d processes: the check of processes could not fail", len(processes))
	}
	now := allProcesses()
	for id, command := range processes {
		if p, ok := now[id]; ok && p.state != "Z" {
			t.Errorf("process %s is left behind: %s", id, command)
		}
	}
}

// A process is a part of /proc/PID/stat.
type process struct{ parent, state, command string }

// allProcesses returns all processes of this machine by their ID and start time.
func allProcesses() map[string]process {
	all := map[string]process{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		// Field 2 is the command in parentheses, and may contain any character.
		head, tail, _ := strings.Cut(string(stat), " (")
		end := strings.LastIndex(tail, ") ")
		fields := strings.Fields(tail[end+2:])
		all[head+" "+fields[19]] = process{parent: fields[1], state: fields[0], command: tail[:end]}
	}
	return all
}

// processesBelow returns the commands of the processes below a process, by ID and start time.
func processesBelow(root int) map[string]string {
	all := allProcesses()
	found := map[string]string{}
	ids := map[string]bool{fmt.Sprint(root): true}
	for grown := true; grown; {
		grown = false
		for key, p := range all {
			id, _, _ := strings.Cut(key, " ")
			if ids[p.parent] && !ids[id] {
				ids[id], grown = true, true
				found[key] = p.command
			}
		}
	}
	return found
}

// processesOf returns the processes of a cluster in the form of processesBelow.
func processesOf(c *Cluster) map[string]string {
	found := map[string]string{}
	for _, m := range append([]*Machine{c.outside}, c.machines...) {
		maps.Copy(found, processesBelow(m.init.PID()))
	}
	return found
}
