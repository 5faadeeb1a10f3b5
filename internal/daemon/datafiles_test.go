//go:build unix

package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/datadir"
)

// A file that Open does not check could belong to another user.
func TestOpenChecksEveryFileOfTheDataFolder(t *testing.T) {
	o := Options{Listen: "127.0.0.1:0", DataDir: filepath.Join(t.TempDir(), "data"), CA: CA{Duration: 24 * time.Hour}}
	s := newService(o, slog.New(slog.DiscardHandler), t.Output())
	if err := s.withoutCluster(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.listening(); err != nil {
		t.Fatal(err)
	}
	s.close()
	entries, err := os.ReadDir(o.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	dir := datadir.Dir(o.DataDir)
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
	// The store creates its journal with the first certificate.
	want := []string{datadir.CA, datadir.Bundle, datadir.Operators, datadir.Curlrc, datadir.Store, datadir.WebhookToken}
	if slices.Sort(want); !slices.Equal(names, want) {
		t.Errorf("the folder has %q, want %q", names, want)
	}
}
