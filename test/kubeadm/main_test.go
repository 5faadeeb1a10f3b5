package kubeadm

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) {
	var err error
	switch node := os.Getenv(nodeChild); {
	case node != "":
		err = playNode(context.Background(), node)
	case os.Getenv(child) != "":
		err = waitToBeKilled()
	default:
		harness.Main(m)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func waitToBeKilled() error {
	c, err := bringUp(context.Background(), os.Stdout)
	if err != nil {
		return err
	}
	fmt.Println("up: " + c.name)
	select {} // until the test kills this process
}
