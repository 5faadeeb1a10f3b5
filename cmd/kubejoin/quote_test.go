package main

import (
	"os"
	"os/exec"
	"testing"
)

// A path in a command that kubejoin prints is one word of a shell, and means itself.
func TestShellQuoteMakesOneWord(t *testing.T) {
	dir := t.TempDir()
	for _, value := range []string{
		"", "/var/lib/kubejoin", "/a b", "/it's", `/a\b`, `"`, "$HOME", "$(touch pwned)", "`touch pwned`", "';touch pwned;'", "a\nb", "*", "~", "#x", "[a]", "{a,b}", "a;touch pwned", "a&", "ä",
	} {
		sh := exec.CommandContext(t.Context(), "sh", "-c", "set -- "+shellQuote(value)+`; printf '%s|%s' "$#" "$1"`)
		sh.Dir = dir
		out, err := sh.CombinedOutput()
		if want := "1|" + value; err != nil || string(out) != want {
			t.Errorf("%q as %s: %v, %q", value, shellQuote(value), err, out)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("files %v, %v", files, err)
	}
}
