//go:build !linux

package atomicfile

// keepAttributes does nothing: kubejoin replaces files of hosts only on Linux.
func keepAttributes(string, string) error { return nil }
