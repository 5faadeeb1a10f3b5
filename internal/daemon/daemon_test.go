package daemon

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
)

func TestBallastOnlyWithDefaultGCSettings(t *testing.T) {
	for _, test := range []struct {
		gogc, limit string
		want        int
	}{{"", "", garbageRoom}, {"100", "", 0}, {"off", "", 0}, {"", "64MiB", 0}} {
		t.Setenv("GOGC", test.gogc)
		t.Setenv("GOMEMLIMIT", test.limit)
		if got := len(gcBallast()); got != test.want {
			t.Errorf("GOGC=%q, GOMEMLIMIT=%q: got a ballast of %d bytes, want %d", test.gogc, test.limit, got, test.want)
		}
	}
}

// The port is in use. Catches a kubejoin that creates a CA and credentials before it fails, and an error that does not name the
// process on the port.
func TestPortInUseCreatesNothing(t *testing.T) {
	taken := must.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = taken.Close() }()
	dir := filepath.Join(t.TempDir(), "data")
	o := Options{DataDir: dir}
	o.Listen = taken.Addr().String()
	err := Run(t.Context(), o, slog.New(slog.DiscardHandler), io.Discard)
	want := fmt.Sprintf("address already in use: process %d, ", os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "has the port; kubejoin has created nothing") {
		t.Errorf("got %v, want %q", err, want)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s: got %v, want no folder", dir, err)
	}
}
