// Package commands runs the commands of the docs: every block of shell commands in README.md and docs, in the order of
// its page, as a reader pastes them. A comment above a block may name another test that runs it, or a section that the
// reader has run before.
package commands

import (
	"testing"

	"github.com/kubejoin/kubejoin/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }
