package joinformat

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A shell must read any quoted value as one word with exactly that value.
func TestQuotedValueIsOneShellWord(t *testing.T) {
	dir := t.TempDir()
	for _, value := range []string{
		"", "plain", "two words", "'", "''", "it's", `\`, `'\''`, `"`, "$HOME", "$(touch pwned)", "`touch pwned`", "'; touch pwned; '", "a\nb", "\n", "*", "~", "#x", "-n", "!", "&", "|touch pwned", "ä\x1b\xff",
	} {
		sh := exec.CommandContext(t.Context(), "sh", "-c", "value="+quote(value)+`; set -- `+quote(value)+`; printf '%s|%s|%s' "$#" "$1" "$value"`)
		sh.Dir = dir
		out, err := sh.CombinedOutput()
		if want := "1|" + value + "|" + value; err != nil || string(out) != want {
			t.Errorf("%q as %s: %v, %q", value, quote(value), err, out)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("got files %v, %v, want none: a value was executed", files, err)
	}
}

// Every value in an assignment of the script must be quoted, even if its current format is safe.
func TestScriptAssignsQuotedValues(t *testing.T) {
	for line := range strings.Lines(scriptText) {
		for field := range strings.FieldsSeq(line) {
			if name, value, found := strings.Cut(field, "="); found && strings.Contains(value, "{{") && !strings.HasPrefix(value, "{{QUOTED_") {
				t.Errorf("%s is assigned without quotes: %s", name, line)
			}
		}
	}
}
