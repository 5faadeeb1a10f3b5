package harness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"sigs.k8s.io/yaml"
)

// ReadFile is [os.ReadFile], but fails the test on an error.
func ReadFile(t *testing.T, file string) []byte {
	t.Helper()
	return must.Value(os.ReadFile(file))(t)
}

// ReplaceFile replaces a file atomically, so that no reader sees a partial file.
func ReplaceFile(t *testing.T, file string, content []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(file+".new", content, 0o600))
	must.OK(t, os.Rename(file+".new", file))
}

// RepositoryFile returns the path of a file or folder of the repository.
func RepositoryFile(t *testing.T, name string) string {
	t.Helper()
	root := must.Value(cluster.Repository())(t)
	return filepath.Join(root, name)
}

// AppendLists reads the lists of apiServer in the YAML lists, and appends them to the same lists in the file of a
// ClusterConfiguration.
func AppendLists(t *testing.T, file string, lists []byte) {
	t.Helper()
	var into, from map[string]any
	must.OK(t, yaml.Unmarshal(ReadFile(t, file), &into))
	must.OK(t, yaml.Unmarshal(lists, &from))
	server, _ := into["apiServer"].(map[string]any)
	for name, list := range from["apiServer"].(map[string]any) {
		old, _ := server[name].([]any)
		server[name] = append(old, list.([]any)...)
	}
	must.OK(t, os.WriteFile(file, must.Value(yaml.Marshal(into))(t), 0o600))
}
