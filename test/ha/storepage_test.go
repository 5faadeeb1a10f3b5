package ha

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

var storeBlock = regexp.MustCompile("(?ms)^<!-- run by TestCommandsOfStorePage -->\n```sh\n(.*?)^```$")

// TestCommandsOfStorePage runs the commands of docs/store.md one after the other, with another etcd.
func TestCommandsOfStorePage(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{})
	files, err := c.User("root")
	must(t, err)
	dir := t.TempDir()
	for name, file := range map[string]string{"etcd-ca.crt": files.CA, "kubejoin.crt": files.Cert, "kubejoin.key": files.Key} {
		must(t, os.Symlink(file, filepath.Join(dir, name)))
	}
	must(t, os.Mkdir(filepath.Join(dir, "kubejoin-data"), 0o700))
	s, err := boltstore.Open(filepath.Join(dir, "kubejoin-data/kubejoin.db"))
	must(t, err)
	token := tokens.Generate()
	_, err = s.Create(t.Context(), tokens.NewRecord(token, time.Hour, time.Now()))
	must(t, err)
	must(t, s.Close())
	page, err := os.ReadFile(harness.RepositoryFile(t, "docs/store.md"))
	must(t, err)
	blocks := storeBlock.FindAllSubmatch(page, -1)
	wants := []string{"copied and compared 1 tokens", "copied and compared 1 tokens", "no findings"}
	if len(blocks) != len(wants) {
		t.Fatalf("docs/store.md has %d blocks, want %d", len(blocks), len(wants))
	}
	for i, block := range blocks {
		const inPage = "https://10.0.0.11:2379,https://10.0.0.12:2379"
		if !strings.Contains(string(block[1]), inPage) {
			t.Errorf("block %d does not name %s", i, inPage)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.ReplaceAll(string(block[1]), inPage, strings.Join(c.Endpoints(), ",")))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(harness.Kubejoin)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), wants[i]) || strings.Contains(string(out), token.RevealSecret()) {
			t.Errorf("%s: %v, want %q in\n%s", block[1], err, wants[i], out)
		}
	}
}
