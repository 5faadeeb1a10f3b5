package ha

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/etcd"
	"github.com/kubejoin/kubejoin/test/harness"
	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/boltstore"
)

var storeBlock = regexp.MustCompile("(?ms)^<!-- run by TestCommandsOfOperatePage -->\n```sh\n(.*?)^```$")

// TestCommandsOfOperatePage runs the commands about stores in docs/operate.md one after the other, with its own etcd.
func TestCommandsOfOperatePage(t *testing.T) {
	harness.Parallel(t)
	c := etcd.ForTest(t, etcd.Options{})
	files := must.Value(c.User("root"))(t)
	dir := t.TempDir()
	for name, file := range map[string]string{"etcd-ca.crt": files.CA, "kubejoin.crt": files.Cert, "kubejoin.key": files.Key} {
		must.OK(t, os.Symlink(file, filepath.Join(dir, name)))
	}
	must.OK(t, os.Mkdir(filepath.Join(dir, "kubejoin-data"), 0o700))
	s := must.Value(boltstore.Open(filepath.Join(dir, "kubejoin-data/kubejoin.db")))(t)
	token := tokens.Generate()
	must.Value(s.Create(t.Context(), tokens.NewRecord(token, time.Hour, time.Now())))(t)
	must.OK(t, s.Close())
	page := must.Value(os.ReadFile(harness.RepositoryFile(t, "docs/operate.md")))(t)
	blocks := storeBlock.FindAllSubmatch(page, -1)
	wants := []string{"copied and compared 1 tokens", "copied and compared 1 tokens", "no findings"}
	if len(blocks) != len(wants) {
		t.Fatalf("docs/operate.md has %d blocks of its commands, want %d", len(blocks), len(wants))
	}
	for i, block := range blocks {
		const inPage = "https://10.0.0.11:2379,https://10.0.0.12:2379"
		if !strings.Contains(string(block[1]), inPage) {
			t.Errorf("block %d does not name %s", i, inPage)
		}
		cmd := exec.CommandContext(t.Context(), "sh", "-ec", strings.ReplaceAll(string(block[1]), inPage, strings.Join(c.Endpoints(), ",")))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(harness.Kubejoin())+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), wants[i]) || strings.Contains(string(out), token.RevealSecret()) {
			t.Errorf("%s: %v, want %q in\n%s", block[1], err, wants[i], out)
		}
	}
}
