package test

import (
	"path/filepath"
	"testing"
)

func standalone(t *testing.T, dataDir string, flags ...string) *program {
	t.Helper()
	return serve(t, t.TempDir(), filepath.Join(dataDir, "ca.crt"), filepath.Join(dataDir, "curlrc"), append([]string{"--data-dir=" + dataDir}, flags...)...)
}
