package cluster_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/kubejoin/kubejoin/test/cluster"
)

const askForPorts = "KUBEJOIN_TEST_ASK_FOR_PORTS"

// Nobody gets a port that another has, in this process or in another, though none listens yet.
func TestFreePortsAreUniqueAcrossProcesses(t *testing.T) {
	const each = 250
	if os.Getenv(askForPorts) != "" {
		for range each {
			port, err := cluster.FreePort()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Println(port)
		}
		_, err := io.Copy(io.Discard, os.Stdin) // the ports are this process's until the test has ended
		if err != nil {
			t.Fatal(err)
		}
		return
	}

	owners := map[string]string{}
	own := func(owner, port string) {
		if other, taken := owners[port]; taken {
			t.Errorf("port %s is %s's and %s's", port, other, owner)
		}
		owners[port] = owner
	}
	for i := range 2 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFreePort$")
		cmd.Env = append(os.Environ(), askForPorts+"=1")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
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
		port, err := cluster.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		own("this process", fmt.Sprint(port))
	}
}
