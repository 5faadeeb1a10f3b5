//go:build unix

package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/host/datadir"
	"github.com/kubejoin/kubejoin/internal/testing/must"
)

// Catches a file that Open does not check: it could belong to another user.
func TestOpenChecksEveryFileOfTheDataFolder(t *testing.T) {
	o := Options{Listen: "127.0.0.1:0", DataDir: filepath.Join(t.TempDir(), "data"), CA: CA{Duration: 24 * time.Hour}}
	s := newService(o, slog.New(slog.DiscardHandler), t.Output())
	served := must.Value(s.withoutCluster(t.Context(), nil))(t)
	must.OK(t, served.listening())
	s.close()
	entries := must.Value(os.ReadDir(o.DataDir))(t)
	dir := datadir.Dir(o.DataDir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
		must.OK(t, os.Chmod(dir.Path(e.Name()), 0o622))
		if dir.Open() == nil {
			t.Errorf("%s can be written by others, and Open accepts the folder", e.Name())
		}
		must.OK(t, os.Chmod(dir.Path(e.Name()), 0o600))
	}
	if err := dir.Open(); err != nil {
		t.Error(err)
	}
	want := []string{datadir.CA, datadir.Bundle, datadir.Operators, datadir.Curlrc, datadir.Store, datadir.WebhookToken}
	if slices.Sort(want); !slices.Equal(names, want) {
		t.Errorf("the folder has %q, want %q", names, want)
	}
}
