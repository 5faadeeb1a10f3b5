package safetext_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/kubejoin/kubejoin/internal/safetext"
)

// An unquoted path in a printed command could run another command.
func TestQuoteMakesOneWord(t *testing.T) {
	dir := t.TempDir()
	for _, value := range []string{
		"", "/var/lib/kubejoin", "/a b", "/it's", `/a\b`, `"`, "$HOME", "$(touch pwned)", "`touch pwned`", "';touch pwned;'", "a\nb", "*", "~", "#x", "[a]", "{a,b}", "a;touch pwned", "a&", "ä",
	} {
		sh := exec.CommandContext(t.Context(), "sh", "-c", "set -- "+safetext.Quote(value)+`; printf '%s|%s' "$#" "$1"`)
		sh.Dir = dir
		out, err := sh.CombinedOutput()
		if want := "1|" + value; err != nil || string(out) != want {
			t.Errorf("%q as %s: %v, %q", value, safetext.Quote(value), err, out)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("files %v, %v", files, err)
	}
}
