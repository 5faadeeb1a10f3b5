// Package commands runs the commands of the docs as a reader pastes them: every block of shell commands in README.md and
// docs, in the order of the page. A comment above a block may name another test that runs the block, or a section that the
// reader has run before.
package commands

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

// inOwnNetwork is an environment variable that is set once the tests run in their own network.
const inOwnNetwork = "KUBEJOIN_TEST_IN_OWN_NETWORK"

// The commands of the pages listen on port 9443. So the tests and their clusters run in their own network, in which no
// other program uses this port.
func TestMain(m *testing.M) {
	if flag.Parse(); !testing.Short() && os.Geteuid() == 0 && os.Getenv(inOwnNetwork) == "" {
		unshare, err := exec.LookPath("unshare")
		if err == nil {
			// kubeadm needs a default route.
			const setUp = `ip link set lo up && ip link add machine type veth peer name other && ip link set other up && ip link set machine up &&
				ip addr add 198.51.100.10/24 dev machine && ip route add default via 198.51.100.1 && exec "$0" "$@"`
			args := append([]string{"unshare", "--net", "sh", "-c", setUp}, os.Args...)
			err = syscall.Exec(unshare, args, append(os.Environ(), inOwnNetwork+"=yes"))
		}
		fmt.Fprintln(os.Stderr, "a network for the tests:", err)
		os.Exit(1)
	}
	harness.Main(m)
}
