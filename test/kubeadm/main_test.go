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
	case os.Getenv(killerChild) != "":
		err = playKiller(os.Getenv(killerChild))
	case os.Getenv(tracerChild) != "":
		err = playTracer(os.Getenv(tracerChild), os.Args[1:])
	case os.Getenv(writerChild) != "":
		err = playWrites(os.Getenv(writerChild))
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
