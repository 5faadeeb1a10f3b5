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
	switch {
	case os.Getenv(probeChild) != "":
		err = playProbe()
	case os.Getenv(nodeChild) != "":
		err = playNode(context.Background(), os.Getenv(nodeChild))
	default:
		harness.Main(m)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
