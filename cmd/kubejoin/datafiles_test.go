//go:build unix

package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubejoin/kubejoin/internal/datadir"
	"github.com/spf13/pflag"
)

// A file that Open does not check could be another user's.
func TestOpenChecksEveryFileOfTheDataFolder(t *testing.T) {
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
	dir := datadir.Dir(o.dataDir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		if err := os.Chmod(dir.Path(e.Name()), 0o622); err != nil {
			t.Fatal(err)
		}
		if dir.Open() == nil {
			t.Errorf("%s can be written by others, and Open accepts the folder", e.Name())
		}
		if err := os.Chmod(dir.Path(e.Name()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := dir.Open(); err != nil {
		t.Error(err)
	}
	// The journal of the store is made with the first certificate.
	want := []string{datadir.CA, datadir.Bundle, datadir.Operators, datadir.Curlrc, datadir.Store, datadir.WebhookToken}
	if slices.Sort(want); !slices.Equal(names, want) {
		t.Errorf("the folder has %q, want %q", names, want)
	}
}
