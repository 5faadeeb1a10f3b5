// Package commands runs the commands of the docs: every block of shell commands in README.md and docs, in the order of
// its page, as a reader pastes them. A block stays out only behind a comment that says why.
package commands

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
