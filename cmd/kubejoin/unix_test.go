//go:build unix

package main

import (
	"os/signal"
	"syscall"
)

// With this, a write beyond the limit of the file size fails as on a full disk, and does not end the program.
func init() { signal.Ignore(syscall.SIGXFSZ) }
