package ha

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
	"github.com/kubejoin/kubejoin/test/harness"
)

// commandBlock is a block of the page whose commands this test runs.
var commandBlock = regexp.MustCompile("(?ms)^<!-- run by TestCommandsOfHAPage -->\n```sh\n(.*?)^```$")

// haPrepare starts servers as if each ran in its own terminal, and waits until the last port is ready.
const haPrepare = `
set -euo pipefail
ip link set lo up
in_terminal() {
	local port=$1 log=$2
	shift 2
	"$@" &> "$log" &
	for _ in {1..600}; do
		curl -skf -o /dev/null "https://127.0.0.1:$port/readyz" && return
		kill -0 $! || break # it has ended
		sleep 0.2
	done
	cat "$log"
	return 1
}
`

// haCheck checks the effect of the commands. By then, the replica of the page has replaced the first replica of make run-ha.
const haCheck = `
curl -K kubejoin-ha-data/curlrc -X POST https://127.0.0.1:9444/v1/token/print-join-command # with the rights of user kubejoin
if etcdctl --cert kubejoin-ha-data/etcd/user-kubejoin.crt --key kubejoin-ha-data/etcd/user-kubejoin.key get /other; then
	echo 'user kubejoin can read keys outside its prefix' && exit 1
fi
`

// TestCommandsOfHAPage runs the commands of docs/ha.md on loopback, with the real etcdctl. The page uses the paths and
// addresses of make run-ha. It catches an etcd user with too few rights, or too many.
func TestCommandsOfHAPage(t *testing.T) {
	harness.Parallel(t)
	cluster.NeedRoot(t) // to create a separate network in which the ports are free
	etcdctl := must.Value(cluster.BuildEtcdctl(t.Context(), t.Output()))(t)
	// make run-ha looks for etcd in the repository.
	work := must.Value(os.MkdirTemp(harness.RepositoryFile(t, "bin/test"), "ha-page-"))(t)
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	demo := filepath.Join(work, "demo")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", demo, "./test/demo")
	build.Dir = harness.RepositoryFile(t, "")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	must.OK(t, os.Symlink(harness.Kubejoin(), filepath.Join(work, "kubejoin")))

	page := string(harness.ReadFile(t, harness.RepositoryFile(t, "docs/ha.md")))
	var script strings.Builder
	blocks := commandBlock.FindAllStringSubmatch(page, -1)
	for _, block := range blocks {
		script.WriteString(strings.NewReplacer(
			"make run-ha\n", "in_terminal 9445 demo.log demo -ha -kubejoin kubejoin\n",
			"kubejoin serve ", "eval \"$(grep '^kill .*kubejoin-1,' demo.log)\"\nin_terminal 9443 serve.log kubejoin serve ",
			"https://10.0.0.11:2379,https://10.0.0.12:2379,https://10.0.0.13:2379", "https://127.0.0.1:2379,https://127.0.0.1:22379,https://127.0.0.1:32379",
			"/etc/etcd/", "kubejoin-ha-data/etcd/",
			"/etc/kubejoin/", "",
			"/var/lib/kubejoin", "data",
		).Replace(block[1]))
	}
	if len(blocks) < 7 {
		t.Errorf("%d blocks of commands were found: the page has more", len(blocks))
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", haPrepare+"set -x\n"+script.String()+haCheck)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "PATH="+work+":"+etcdctl+":"+os.Getenv("PATH"), "HOME="+work)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		log, _ := os.ReadFile(filepath.Join(work, "serve.log"))
		t.Errorf("%v\n%s\n%s", err, output.String(), log)
	}
}
