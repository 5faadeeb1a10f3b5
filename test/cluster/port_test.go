package cluster_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/kubejoin/kubejoin/test/cluster"
)

const askForPorts = "KUBEJOIN_TEST_ASK_FOR_PORTS"

// Catches a port that FreePort returns twice, in one process or in two, before a server listens on it.
func TestFreePortsAreUniqueAcrossProcesses(t *testing.T) {
	const each = 250
	if os.Getenv(askForPorts) != "" {
		for range each {
			port := must.Value(cluster.FreePort())(t)
			fmt.Println(port)
		}
		_, err := io.Copy(io.Discard, os.Stdin) // keep the ports reserved until the test has ended
		if err != nil {
			t.Fatal(err)
		}
		return
	}

	owners := map[string]string{}
	own := func(owner, port string) {
		if other, taken := owners[port]; taken {
			t.Errorf("port %s was returned to %s and to %s, want only one", port, other, owner)
		}
		owners[port] = owner
	}
	for i := range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFreePortsAreUniqueAcrossProcesses$")
		cmd.Env = append(os.Environ(), askForPorts+"=1")
		stdin := must.Value(cmd.StdinPipe())(t)
		stdout := must.Value(cmd.StdoutPipe())(t)
		must.OK(t, cmd.Start())
		t.Cleanup(func() {
			_ = stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Errorf("process %d: %v", i, err)
			}
		})
		printed := bufio.NewScanner(stdout)
		for range each {
			if !printed.Scan() {
				t.Fatalf("process %d: no more ports: %v", i, printed.Err())
			}
			own(fmt.Sprint("process ", i), printed.Text())
		}
	}
	for range each {
		port := must.Value(cluster.FreePort())(t)
		own("this process", fmt.Sprint(port))
	}
}
