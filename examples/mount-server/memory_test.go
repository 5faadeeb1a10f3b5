package main

import (
	"testing"

	"github.com/kubejoin/kubejoin/tokens"
	"github.com/kubejoin/kubejoin/tokens/storetest"
)

func TestMemory(t *testing.T) {
	storetest.Run(t, func(*testing.T) tokens.Store { return &memory{} })
}
