package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/kubejoin/kubejoin/internal/codes/codepage"
	"github.com/kubejoin/kubejoin/internal/testing/must"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var namedFlag = regexp.MustCompile("[` ]--([a-z0-9-]+)")

// TestConfigurationPageNamesFlagsThatExist catches a flag that docs/configuration.md still has under its old name.
func TestConfigurationPageNamesFlagsThatExist(t *testing.T) {
	page := must.Value(os.ReadFile("../../docs/configuration.md"))(t)
	known := map[string]bool{}
	eachFlag(rootCommand(), func(_ *cobra.Command, f *pflag.Flag) { known[f.Name] = true })
	named := namedFlag.FindAllSubmatch(page, -1)
	if len(named) < 20 {
		t.Fatalf("%d flags found: docs/configuration.md has more", len(named))
	}
	for _, m := range named {
		if !known[string(m[1])] {
			t.Errorf("docs/configuration.md names --%s, which does not exist", m[1])
		}
	}
}

// docs/codes.md has the exit codes of commands that exist, and the help of each of them names its own.
func TestExitCodesAreThoseOfCommands(t *testing.T) {
	all := must.Value(codepage.All())(t)
	explained := map[string]bool{} // by command
	for _, e := range all {
		if e.Kind != codepage.Exit {
			continue
		}
		for path := range strings.SplitSeq(e.Class, ", ") {
			if strings.HasPrefix(path, "all ") || strings.Contains(path, ".sh") {
				continue
			}
			cmd, rest, err := rootCommand().Find(strings.Fields(path))
			if err != nil || len(rest) > 0 {
				t.Errorf("exit code %s: there is no command %q", e.Code, path)
			} else if !regexp.MustCompile(`(?s)exit code is.*\b` + e.Code + `\b`).MatchString(cmd.Long) {
				t.Errorf("the help of %s does not name exit code %s", path, e.Code)
			}
			explained[path+" "+e.Code] = true
		}
	}
	if len(explained) == 0 {
		t.Error("no command has an exit code of its own: this test could not fail")
	}
}
