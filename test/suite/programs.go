package main

import (
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/kubejoin/kubejoin/internal/testing/need"
)

// missing are the programs of [need.Known] that this machine lacks.
func missing() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(need.Known)), func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	})
}

// packagesOf are the Debian packages that have these programs.
func packagesOf(programs []string) []string {
	var packages []string
	for _, program := range programs {
		packages = append(packages, strings.Fields(need.Known[program].Debian)...)
	}
	slices.Sort(packages)
	return slices.Compact(packages)
}

// printMissing prints which tests do not run without these programs, and how to install the programs.
func printMissing(out io.Writer, programs []string) {
	if len(programs) == 0 {
		return
	}
	fmt.Fprintln(out, "Some programs are missing. Tests that need them are skipped:")
	for _, program := range programs {
		fmt.Fprintf(out, "  %-16s %s\n", program, need.Known[program].For)
	}
	fmt.Fprintf(out, "Install them with:\n  apt-get install --no-install-recommends %s\n", strings.Join(packagesOf(programs), " "))
}

// wantSpace is the disk space in GiB for the images of all machines, and for the build results of Go.
const wantSpace = 12

// printSpace warns if the disk of a folder has less free space than wantSpace.
func printSpace(out io.Writer, dir string) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	if free := disk.Bavail * uint64(disk.Bsize) >> 30; free < wantSpace {
		fmt.Fprintf(out, "The disk of %s has %d GiB left, and the tests may need %d. What Go has built is removed with:\n  go clean -cache\n", dir, free, wantSpace)
	}
	return nil
}
