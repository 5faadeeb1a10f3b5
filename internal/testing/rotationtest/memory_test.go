package rotationtest_test

import (
	"testing"

	"github.com/kubejoin/kubejoin/internal/testing/rotationtest"
	"github.com/kubejoin/kubejoin/signer/rotation"
)

func TestMemory(t *testing.T) {
	rotationtest.Run(t, rotation.CAs, func(*testing.T) rotationtest.Backend { return &rotationtest.Memory{} })
}
