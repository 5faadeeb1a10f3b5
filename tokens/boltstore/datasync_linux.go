package boltstore

import (
	"os"
	"syscall"
)

// datasync has what was written on the disk, without times of the file, which nobody needs.
func datasync(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return err
		}
	}
}
