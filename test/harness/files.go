package harness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

// ReadFile is [os.ReadFile] that must succeed.
func ReadFile(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// ReplaceFile replaces a file in one step, so that no reader sees half of it.
func ReplaceFile(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// RepositoryFile is the path of a file or folder of the repository.
func RepositoryFile(t *testing.T, name string) string {
	t.Helper()
	root, err := cluster.Repository()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, name)
}
