package joinformat

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// Whatever a value of the script holds, a shell takes it as one word that means itself.
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
		t.Errorf("files %v, %v", files, err)
	}
}

// Every value that the script assigns is quoted: those that are safe today may not be so tomorrow.
func TestScriptAssignsQuotedValues(t *testing.T) {
	for line := range strings.Lines(scriptText) {
		for field := range strings.FieldsSeq(line) {
			if name, value, found := strings.Cut(field, "="); found && strings.Contains(value, "{{") && !strings.HasPrefix(value, "{{QUOTED_") {
				t.Errorf("%s is assigned as it is: %s", name, line)
			}
		}
	}
}
