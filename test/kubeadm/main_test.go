package kubeadm

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		harness.Main(m)
	}
	c, err := bringUp(context.Background(), os.Stdout)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("up: " + c.name)
	select {} // until the test kills this process
}
