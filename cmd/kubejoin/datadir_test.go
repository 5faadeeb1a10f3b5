//go:build unix

package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
)

// A file that is not in dataFiles could be another user's.
func TestDataFilesAreAllFilesOfTheDataFolder(t *testing.T) {
	var o serveOptions
	o.register(pflag.NewFlagSet("", pflag.PanicOnError))
	o.given = func(string) bool { return false }
	o.dataDir = filepath.Join(t.TempDir(), "data")
	s := newService(o, slog.New(slog.DiscardHandler), t.Output())
	if err := standalone(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	s.close()
	entries, err := os.ReadDir(o.dataDir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if !slices.Contains(dataFiles, e.Name()) {
			t.Errorf("%s is not in dataFiles", e.Name())
		}
	}
	for _, name := range dataFiles {
		if name != "kubejoin.db-journal" && !slices.Contains(names, name) { // made with the first certificate
			t.Errorf("%s is not in the folder: %q", name, names)
		}
	}
}

func TestDataFolderIsClosedToOthers(t *testing.T) {
	dir := dataDir(filepath.Join(t.TempDir(), "data"))
	old := syscall.Umask(0)
	err := dir.open()
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(string(dir)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("made with mode %04o, %v; want 0700", info.Mode().Perm(), err)
	}
	for bit := os.FileMode(1); bit <= 0o040; bit <<= 1 {
		mode := 0o700 | bit
		if err := os.Chmod(string(dir), mode); err != nil {
			t.Fatal(err)
		}
		if err := dir.open(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("mode %04o", mode)) || !strings.Contains(err.Error(), ": chmod ") {
			t.Errorf("mode %04o: %v, want a refusal with the command that mends it", mode, err)
		}
	}
	if err := os.Chmod(string(dir), 0o500); err != nil {
		t.Fatal(err)
	}
	if err := dir.open(); err != nil {
		t.Errorf("mode 0500: %v", err)
	}
}
