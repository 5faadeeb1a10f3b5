// Package commands runs the commands of the docs: every block of shell commands in README.md and docs, in the order of
// its page, as a reader pastes them. A comment above a block may name another test that runs it, or a section that the
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

// inOwnNetwork is set in the environment of tests that run in a network of their own.
const inOwnNetwork = "KUBEJOIN_TEST_IN_OWN_NETWORK"

// The commands of the pages listen on port 9443. So the tests and their clusters run in a network of their own, in which
// no other program uses it.
func TestMain(m *testing.M) {
	if flag.Parse(); !testing.Short() && os.Geteuid() == 0 && os.Getenv(inOwnNetwork) == "" {
		unshare, err := exec.LookPath("unshare")
		if err == nil {
			// kubeadm wants a default route.
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
