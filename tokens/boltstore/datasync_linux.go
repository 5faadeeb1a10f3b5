package boltstore

import (
	"os"
	"syscall"
)

// datasync flushes the data of a file to the disk. It skips metadata that is not needed to read the data,
// such as timestamps.
func datasync(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR {
			return err
		}
	}
}
